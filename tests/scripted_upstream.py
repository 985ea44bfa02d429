"""An upstream that says what the test tells it to, byte by byte: the other end of the gateway's tests.

    request = upstream.next()               # what the gateway sent
    request.start()
    request.say("Hello")
    request.finish()
"""
import json
import queue
import socket
import threading

from tests.support import TIMEOUT_S


class UpstreamRequest:
    """One request that came. method, path, headers {lower-case name: value}, body (decoded JSON or None).
    closed: set when the other side has hung up. connection: the socket, the same for kept-alive requests."""

    def __init__(self, connection, method, path, headers, body):
        self.connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.closed = threading.Event()

    def send(self, data):
        self.connection.sendall(data)

    def start(self, status="200 OK", kind="text/event-stream", headers=()):
        """The head of an answer in chunks."""
        lines = ["HTTP/1.1 " + status, "Content-Type: " + kind, "Transfer-Encoding: chunked"]
        lines += ["%s: %s" % pair for pair in headers]
        self.send("\r\n".join(lines + ["", ""]).encode())

    def raw(self, data):
        """One HTTP chunk."""
        data = data.encode() if isinstance(data, str) else data
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def chunk(self, delta=None, finish=None, **more):
        """One event."""
        value = {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 1, "model": "there",
                 "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]}
        value.update(more)
        self.raw("data: %s\n\n" % json.dumps(value))

    def say(self, text):
        self.chunk({"content": text})

    def finish(self, reason="stop", usage=(3, 2)):
        """The proper end."""
        self.chunk({}, reason)
        if usage is not None:
            self.chunk(choices=[], usage={"prompt_tokens": usage[0], "completion_tokens": usage[1]})
        self.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")      # in one: the gateway may hang up at its mark

    def end(self):
        self.send(b"0\r\n\r\n")

    def answer(self, value, status="200 OK", headers=()):
        """A whole JSON answer; bytes are sent as they are."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        lines = ["HTTP/1.1 " + status, "Content-Type: application/json", "Content-Length: %d" % len(body)]
        lines += ["%s: %s" % pair for pair in headers]
        self.send("\r\n".join(lines + ["", ""]).encode() + body)

    def hang_up(self):
        self.connection.shutdown(socket.SHUT_RDWR)


class ScriptedUpstream:
    """Listens on a free port of 127.0.0.1 from the start. wrap: makes TLS of an accepted socket."""

    def __init__(self, wrap=None):
        self._wrap = wrap
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.url = "%s://127.0.0.1:%d/v1" % ("http" if wrap is None else "https", self.port)
        self.requests = []
        self.connections = []
        self._queue = queue.Queue()
        self.accepting = threading.Thread(target=self._accept, name="upstream")
        self._threads = [self.accepting]
        self.accepting.start()

    def next(self, timeout_s=TIMEOUT_S):
        """The oldest request that nobody has looked at."""
        return self._queue.get(timeout=timeout_s)

    def close(self):
        try:
            self._listener.shutdown(socket.SHUT_RDWR)       # or accept() would wait on
        except OSError:
            pass
        self._listener.close()
        for sock in self.connections:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
                sock.settimeout(3 * TIMEOUT_S)
                if self._wrap is not None:
                    sock = self._wrap(sock)
            except OSError:
                if self._listener.fileno() < 0 or self._wrap is None:
                    return
                sock.close()
                continue
            self.connections.append(sock)
            thread = threading.Thread(target=self._read, args=(sock,), name="upstream-connection")
            self._threads.append(thread)
            thread.start()

    def _read(self, sock):
        request = None
        try:
            with sock, sock.makefile("rb") as file:
                while True:
                    line = file.readline().decode("latin-1").split()
                    if len(line) < 2:
                        return
                    headers = {}
                    for field in iter(file.readline, b"\r\n"):
                        name, _, value = field.decode("latin-1").partition(":")
                        headers[name.lower()] = value.strip()
                    body = file.read(int(headers.get("content-length") or 0))
                    request = UpstreamRequest(sock, line[0], line[1], headers, json.loads(body) if body else None)
                    self.requests.append(request)
                    self._queue.put(request)
        except OSError:
            return
        finally:
            if request is not None:
                request.closed.set()
