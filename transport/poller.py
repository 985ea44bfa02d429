"""Sockets watched for bytes, room and ends: epoll where there is one, `selectors` elsewhere.

A wire is the one small object per connection through which all its bytes go. The poller knows
wires, so that an event of a closed descriptor whose number was given out again finds nobody.
"""
import select
import selectors
import socket

POLL_READ = 1
POLL_WRITE = 4
# The other side has closed or reset, also while reading is not watched (EPOLLERR, HUP, RDHUP). Where
# there is no epoll these bits never come, and an end is seen when reading is watched again.
POLL_ENDED = 0x8 | 0x10 | 0x2000

# Waits shorter than this go through select() on epoll's own descriptor, whose timeout is in
# microseconds; epoll's is in milliseconds and rounded up, which made every second tick late.
FINE_WAIT_S = 0.02


class Wire:
    """A connection's plain socket: recv, send, peek. All are non-blocking and raise
    BlockingIOError for "not now" and another OSError for "gone"."""

    __slots__ = ("sock", "fd", "send", "recv")

    def __init__(self, sock):
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.send = sock.send       # bound once: the hot path calls it per frame
        self.recv = sock.recv

    def peek(self):
        """A byte that waits, or b"" when the client has closed."""
        return self.sock.recv(1, socket.MSG_PEEK)

    def close(self):
        self.sock.close()


class EpollPoller:
    """Level-triggered epoll over wires."""

    def __init__(self):
        self._epoll = select.epoll()
        self._number = self._epoll.fileno()
        self._wires = {}            # fd -> wire
        self._masks = {}            # fd -> what is watched
        self._fine = self._number < 1024        # select() knows no higher descriptors

    def watch(self, wire, mask):
        """Watch for POLL_READ | POLL_WRITE. Ends are seen with either and with neither."""
        fd = wire.fd
        known = self._masks.get(fd)
        if known == mask and self._wires.get(fd) is wire:
            return
        # RDHUP: a client that leaves while its pipelined bytes are not read is seen all the same
        bits = mask if mask & POLL_READ else mask | select.EPOLLRDHUP
        if known is None:
            self._epoll.register(fd, bits)
        else:
            self._epoll.modify(fd, bits)
        self._wires[fd] = wire
        self._masks[fd] = mask

    def forget(self, wire):
        fd = wire.fd
        if self._wires.get(fd) is wire:
            del self._wires[fd], self._masks[fd]
            try:
                self._epoll.unregister(fd)
            except OSError:
                return              # closed already: the kernel has forgotten it by itself

    def poll(self, timeout_s):
        """[(wire, mask)]; a mask with other bits than POLL_WRITE and POLL_ENDED means: read and see."""
        if 0.0 < timeout_s < FINE_WAIT_S and self._fine:
            select.select((self._number,), (), (), timeout_s)
            timeout_s = 0
        wires = self._wires
        return [(wires[fd], mask) for fd, mask in self._epoll.poll(timeout_s) if fd in wires]

    def close(self):
        self._epoll.close()


class SelectorPoller:
    """The same over the standard library's `selectors`: kqueue, or select() on Windows."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._wires = {}

    def watch(self, wire, mask):
        events = (selectors.EVENT_READ if mask & POLL_READ else 0) \
            | (selectors.EVENT_WRITE if mask & POLL_WRITE else 0)
        known = self._wires.get(wire.fd)
        self._wires[wire.fd] = wire
        registered = known is not None and wire.fd in self._selector.get_map()
        if not events:
            if registered:
                self._selector.unregister(wire.fd)
        elif registered:
            self._selector.modify(wire.fd, events)
        else:
            self._selector.register(wire.fd, events)

    def forget(self, wire):
        if self._wires.get(wire.fd) is wire:
            del self._wires[wire.fd]
            if wire.fd in self._selector.get_map():
                self._selector.unregister(wire.fd)

    def poll(self, timeout_s):
        wires = self._wires
        return [(wires[key.fd], (POLL_READ if events & selectors.EVENT_READ else 0)
                 | (POLL_WRITE if events & selectors.EVENT_WRITE else 0))
                for key, events in self._selector.select(timeout_s) if key.fd in wires]

    def close(self):
        self._selector.close()


def make_poller():
    return EpollPoller() if hasattr(select, "epoll") else SelectorPoller()


class Waker:
    """Ends another thread's poll. It is watched like any wire; its bytes mean nothing.

    The sleeper says so before it looks at its inbox a last time, and the waker appends before it
    looks whether somebody sleeps: the other order loses wake-ups.
    """

    def __init__(self):
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self.fd = self._near.fileno()
        self.signal_fd = self._far.fileno()
        self._asleep = False

    def poll_awake(self, poller, timeout_s, inbox):
        """poller.poll(), but not sleeping when the inbox has something."""
        self._asleep = True
        if inbox:
            timeout_s = 0.0
        events = poller.poll(timeout_s)
        self._asleep = False
        for index, (wire, _) in enumerate(events):
            if wire is self:
                del events[index]
                try:
                    self._near.recv(4096)
                except BlockingIOError:
                    pass            # another look has emptied it: nothing is lost
                break
        return events

    def wake(self):
        """Any thread; costs a system call only when somebody sleeps."""
        if self._asleep:
            self._asleep = False
            try:
                self._far.send(b"w")
            except OSError:
                pass                # full of wake-ups already; or closed, and nobody sleeps there

    def close(self):
        self._near.close()
        self._far.close()
