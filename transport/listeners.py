"""Listening sockets, and how many files the process may have open."""
import errno
import os
import socket


def bind_listeners(settings, backlog):
    """Listening sockets for the settings' hosts; without any, 127.0.0.1 and, where it exists, ::1.

    Clients that resolve `localhost` try ::1 first. Raises OSError that names the address.
    """
    for attempt in range(20):
        try:
            return _bind_all(settings.host or ("127.0.0.1", "::1"), settings.port, backlog,
                             not settings.host)
        except OSError as exc:
            # port 0: the free one that the first address got may be taken on the second
            if settings.port or exc.errno != errno.EADDRINUSE or attempt == 19:
                raise


def _bind_all(hosts, port, backlog, first_is_enough):
    listeners = []
    for number, host in enumerate(hosts):
        try:
            listeners.append(_bind_listener(host, port, backlog))
        except OSError as exc:
            if number and first_is_enough and exc.errno != errno.EADDRINUSE:
                continue                    # no IPv6 here: 127.0.0.1 alone
            for sock in listeners:
                sock.close()
            raise OSError(exc.errno, "cannot listen on %s port %d: %s" % (host, port, exc.strerror or exc))
        port = listeners[0].getsockname()[1]    # port 0: all addresses get the one that was free
    return listeners


def _bind_listener(host, port, backlog):
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM,
                                                  flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # on Windows it would let two servers have one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def raise_file_limit():
    """The soft limit of open files to the hard one. Returns it, or None where there is none."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            return soft                     # macOS: the hard limit may be "unlimited" and refused
    return None if soft == resource.RLIM_INFINITY else soft


def is_loopback(sock):
    """Whether a listening socket can be reached from this machine only."""
    host = sock.getsockname()[0]
    return host == "::1" or host.startswith("127.")
