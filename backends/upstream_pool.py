"""Connections to upstreams: where they lead, how they are made, and those that wait to be used again.

Connecting blocks and belongs on a worker. TLS is verified, proxies are those of the environment, as in urllib.
"""
import socket
import threading
import time
from base64 import b64encode
from urllib.parse import quote, unquote, urlsplit

from api_common import __version__
from backends.upstream_http import AnswerReader, UpstreamFault

POOL_IDLE_S = 60.0                  # how long a connection may wait to be used again
POOL_SIZE = 512                     # of each upstream


class UpstreamTarget:
    """One server, by its base URL.

    label: the URL without path, for logs and /health. key: what is sent as Bearer, or "". Its last word on how
    it is: up (None before it was asked), trouble (str), seen_s (monotonic).
    Raises ValueError for a URL that cannot be used.
    """

    def __init__(self, url, connect_timeout_s=10.0, ca="", key=""):
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
            raise ValueError("--upstream-url %s: expected http(s)://HOST[:PORT][/PATH]" % _without_user(url, parts))
        if "@" in parts.netloc:
            raise ValueError("--upstream-url: a URL is seen by everybody on this machine; name a variable with the key "
                             "by --upstream-api-key-env")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if self.secure else 80)
        self.label = "%s://%s" % (parts.scheme, parts.netloc)
        self.base = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~") or "/v1"
        self.root = self.base[:-3] if self.base.endswith("/v1") else self.base
        self.key = key
        self.up = None
        self.trouble = ""
        self.seen_s = 0.0
        self._netloc = parts.netloc
        self._timeout_s = connect_timeout_s
        self._tls = _make_client_context(ca) if self.secure else None
        self._proxy, self._proxy_auth = _find_proxy(parts.scheme, self.host)
        self._idle = []                     # (socket, monotonic time since when), the newest last
        self._lock = threading.Lock()       # guards _idle
        self._closed = False

    def note(self, trouble=""):
        """It answered, or why it did not."""
        self.up, self.trouble, self.seen_s = not trouble, trouble, time.monotonic()

    # ---- requests -----------------------------------------------------------------------------

    def request_bytes(self, method, path, body, authorization=None):
        """A request's bytes. path: behind the host. authorization: a header's value in place of the own key's."""
        if self._proxy is not None and not self.secure:
            path = self.label + path        # the proxy is asked for the whole URL
        lines = ["%s %s HTTP/1.1" % (method, path), "Host: " + self._netloc, "User-Agent: mockturtle/" + __version__,
                 "Accept: text/event-stream, application/json", "Accept-Encoding: identity"]
        if authorization is None and self.key:
            authorization = "Bearer " + self.key
        if authorization is not None:
            lines.append("Authorization: " + authorization)
        if self._proxy_auth and not self.secure:
            lines.append("Proxy-Authorization: " + self._proxy_auth)
        if body is not None:
            lines += ["Content-Type: application/json", "Content-Length: %d" % len(body)]
        return "\r\n".join(lines + ["", ""]).encode("latin-1", "replace") + (body or b"")

    # ---- connections --------------------------------------------------------------------------

    def take(self):
        """A connection that waits and is still open, or None."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                sock, since_s = self._idle.pop()
            if time.monotonic() - since_s < POOL_IDLE_S and _is_quiet(sock):
                return sock
            sock.close()

    def give(self, sock):
        """Keep a connection for the next request."""
        now = time.monotonic()
        with self._lock:
            old = [entry for entry in self._idle[:4] if now - entry[1] > POOL_IDLE_S]
            del self._idle[:len(old)]
            keep = not self._closed and len(self._idle) < POOL_SIZE
            if keep:
                self._idle.append((sock, now))
        for each, _ in old:
            each.close()
        if not keep:
            sock.close()

    def connect(self, most_s=float("inf")):
        """A new connection, made in most_s seconds if that is less than the time-out. Raises OSError; UpstreamFault when a proxy or TLS says no."""
        host, port = self._proxy or (self.host, self.port)
        sock = socket.create_connection((host, port), min(self._timeout_s, most_s))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.secure:
                if self._proxy is not None:
                    self._tunnel(sock)
                sock = self._tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        return sock

    def _tunnel(self, sock):
        """CONNECT through the proxy."""
        host = "[%s]" % self.host if ":" in self.host else self.host
        lines = ["CONNECT %s:%d HTTP/1.1" % (host, self.port), "Host: %s:%d" % (host, self.port)]
        if self._proxy_auth:
            lines.append("Proxy-Authorization: " + self._proxy_auth)
        sock.sendall("\r\n".join(lines + ["", ""]).encode("latin-1"))
        reader = AnswerReader()
        while reader.status is None:
            data = sock.recv(1)             # not a byte of what follows the head
            if not data:
                raise UpstreamFault("the proxy closed the connection")
            reader.feed(data)
        if reader.status != 200:
            raise UpstreamFault("the proxy answered the CONNECT with status %d" % reader.status)

    def close(self):
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for sock, _ in idle:
            sock.close()


def _without_user(url, parts):
    return url if "@" not in parts.netloc else "(with a key in it)"


def _is_quiet(sock):
    """Whether an idle connection is open and says nothing, as it should."""
    try:
        sock.setblocking(False)
        if hasattr(sock, "pending"):        # TLS: what waits may be its own housekeeping
            sock.recv(1)
        else:
            sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError as exc:
        return type(exc).__name__ == "SSLWantReadError"
    return False


def _make_client_context(ca):
    try:
        import ssl
    except ImportError:
        raise ValueError("--upstream-url: this Python was built without ssl, so https cannot be used")
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as exc:
        raise ValueError("--upstream-ca %s: %s" % (ca, exc))
    context.set_alpn_protocols(["http/1.1"])
    return context


def _find_proxy(scheme, host):
    """((host, port) or None, value of Proxy-Authorization or None), from the environment."""
    from urllib.request import getproxies, proxy_bypass
    url = getproxies().get(scheme)
    if not url or proxy_bypass(host):
        return None, None
    parts = urlsplit(url if "://" in url else "http://" + url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("the proxy of the environment is none that speaks http: %s_proxy" % scheme)
    auth = None
    if parts.username:
        pair = "%s:%s" % (unquote(parts.username), unquote(parts.password or ""))
        auth = "Basic " + b64encode(pair.encode("utf-8")).decode("ascii")
    return (parts.hostname, parts.port or 80), auth
