"""Readiness of sockets: epoll where there is one, `selectors` elsewhere, behind the four calls that we need.

Both speak (file descriptor, readable, writable) in terms of two masks, READ and WRITE. A hang-up or an error counts as
readable, so that the next recv reports it. One thread.
"""

import select
import selectors

READ = getattr(select, "EPOLLIN", 1)
WRITE = getattr(select, "EPOLLOUT", 4)


class SelectorPoller:
    """The part of `select.epoll` that we use, on `selectors` (kqueue, poll, select)."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()

    @staticmethod
    def _events(mask):
        return (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)

    def register(self, descriptor, mask):
        """Watch an int descriptor for READ, WRITE or both."""
        self._selector.register(descriptor, self._events(mask))

    def modify(self, descriptor, mask):
        """Change what a watched descriptor is watched for."""
        self._selector.modify(descriptor, self._events(mask))

    def unregister(self, descriptor):
        """Stop watching; must come before the descriptor is closed."""
        self._selector.unregister(descriptor)

    def poll(self, timeout_s):
        """Wait up to `timeout_s` (None: for ever); a list of (descriptor, mask)."""
        return [
            (key.fd, (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0))
            for key, events in self._selector.select(timeout_s)
        ]

    def close(self):
        """Release the selector."""
        self._selector.close()


def new_poller():
    """An object with register, modify, unregister, poll(timeout in s) and close: the fastest of this platform."""
    return select.epoll() if hasattr(select, "epoll") else SelectorPoller()


def raise_file_limit(wanted=None):
    """Raise the soft limit of open files to the hard one; the limit that holds now, or `wanted` where unknown."""
    try:
        import resource
    except ImportError:  # Windows has no such limit for sockets
        return wanted or 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (ValueError, OSError):  # macOS refuses "infinity"
        pass
    return soft if soft != resource.RLIM_INFINITY else (wanted or 65536)
