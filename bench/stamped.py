"""The two ends of the gateway test: an upstream whose words are the times at which they were sent, and who reads them.

    python -m bench.stamped serve --port N --itl-ms MS --output-tokens N
    python -m bench.stamped ask       a load as one JSON object on standard input, its figures on standard output

Both use the monotonic clock, which all processes of a machine share, so a word's age on arrival is what the way from
one end to the other took. Each is one thread with non-blocking sockets. Loopback only.
"""

import argparse
import array
import heapq
import json
import re
import socket
import sys
import time

from bench.poller import READ, new_poller, raise_file_limit
from bench.stats import summary_ms

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"mock-model","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)
_END = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"mock-model","choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":%d}}\n\n'
    b"data: [DONE]\n\n"
)
_STAMP = re.compile(rb'"(?:content|delta)": ?"@(\d+\.\d+)@"')  # the same in chat's and in Responses' deltas
_OVERLAP = 64  # bytes in which a stamp may have been cut by a packet's border


def plain(body):
    """A plain 200 as bytes."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def framed(data):
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Upstream:
    """Streams `tokens` words to whoever posts, one every `itl_s`, each the monotonic time of its send."""

    def __init__(self, port, itl_s, tokens):
        self.itl_s, self.tokens = itl_s, tokens
        self.poller = new_poller()
        self.inbox = {}  # descriptor -> (socket, bytearray)
        self.due = []  # heap of (time, descriptor, how many words were sent)
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(1024)
        self.listener.setblocking(False)
        self.poller.register(self.listener.fileno(), READ)

    def serve(self):
        """For ever."""
        while True:
            wait = self.due[0][0] - time.monotonic() if self.due else 1.0
            for descriptor, _ in self.poller.poll(max(0.0, wait)):
                if descriptor == self.listener.fileno():
                    self.accept()
                elif descriptor in self.inbox:
                    self.receive(descriptor)
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                self.say(*heapq.heappop(self.due))

    def accept(self):
        sock, _ = self.listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox[sock.fileno()] = sock, bytearray()
        self.poller.register(sock.fileno(), READ)

    def drop(self, descriptor):
        self.poller.unregister(descriptor)
        self.inbox.pop(descriptor)[0].close()

    def receive(self, descriptor):
        sock, data = self.inbox[descriptor]
        try:
            got = sock.recv(65536)
        except OSError:
            got = b""
        if not got:
            self.drop(descriptor)
            return
        data += got
        head, end, body = bytes(data).partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if not end or length and len(body) < int(length.group(1)):
            return
        del data[:]
        if head.startswith(b"GET"):
            sock.send(plain(b'{"object":"list","data":[{"id":"mock-model","object":"model"}]}'))
            return
        sock.send(_HEAD + framed(_CHUNK % (b'{"role":"assistant","content":""}', b"null")))
        heapq.heappush(self.due, (time.monotonic() + self.itl_s, descriptor, 0))

    def say(self, when, descriptor, sent):
        """The next word, or the end. A descriptor that was closed meanwhile is passed over."""
        if descriptor not in self.inbox:
            return
        sock = self.inbox[descriptor][0]
        try:
            if sent < self.tokens:
                sock.send(framed(_CHUNK % (b'{"content":"@%.6f@"}' % time.monotonic(), b"null")))
                heapq.heappush(self.due, (when + self.itl_s, descriptor, sent + 1))
            else:
                last = _CHUNK % (b"{}", b'"stop"') + _END % (self.tokens, self.tokens + 8)
                sock.send(framed(last) + b"0\r\n\r\n")
        except OSError:
            self.drop(descriptor)


class Reader:
    """Keeps `conns` streams going and notes the age of each word on arrival.

    spec: {"port", "path", "body": str, "conns", "secs", "warmup_s", "spread_s"}. A connection serves one stream after
    the other; one that ends early is an error.
    """

    def __init__(self, spec):
        self.spec = spec
        body = spec["body"].encode()
        self.request = (
            "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer sk-test\r\nAccept: text/event-stream\r\n"
            "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (spec["path"], spec["port"], len(body))
        ).encode() + body
        self.poller = new_poller()
        self.conns = {}  # descriptor -> [socket, tail of what came]
        self.ages = array.array("d")
        self.words = self.errors = self.answers = 0

    def open(self):
        sock = socket.create_connection(("127.0.0.1", self.spec["port"]), 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(self.request)
        sock.setblocking(False)
        self.conns[sock.fileno()] = [sock, b""]
        self.poller.register(sock.fileno(), READ)

    def run(self):
        spec, clock = self.spec, time.monotonic
        began, cpu = clock(), time.process_time()
        measure_from = began + spec["warmup_s"]
        end = measure_from + spec["secs"]
        opened = 0
        now = began
        while now < end:
            while opened < spec["conns"] and now >= began + spec["spread_s"] * opened / spec["conns"]:
                self.open()
                opened += 1
            for descriptor, _ in self.poller.poll(0.005 if opened < spec["conns"] else min(0.5, end - now)):
                self.receive(descriptor, measure_from)
            now = clock()
        for sock, _ in self.conns.values():
            sock.close()
        return {
            "age_ms": summary_ms(self.ages), "words": self.words, "measured": len(self.ages), "answers": self.answers,
            "errors": self.errors, "client_cores": (time.process_time() - cpu) / (clock() - began),
        }

    def receive(self, descriptor, measure_from):
        conn = self.conns[descriptor]
        try:
            data = conn[0].recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        now = time.monotonic()
        if not data:
            self.errors += 1
            self.poller.unregister(descriptor)
            del self.conns[descriptor]
            conn[0].close()
            return
        data = conn[1] + data
        at = 0
        for found in _STAMP.finditer(data):
            self.words += 1
            at = found.end()
            if now >= measure_from:
                self.ages.append(now - float(found.group(1)))
        if b"0\r\n\r\n" in data[-8:]:
            self.answers += 1
            conn[1] = b""
            conn[0].send(self.request)
        else:
            conn[1] = data[max(at, len(data) - _OVERLAP):]


def main():
    raise_file_limit()
    if sys.argv[1:2] == ["ask"]:
        print(json.dumps(Reader(json.loads(sys.stdin.readline())).run()), flush=True)
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["serve"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float)
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--output-tokens", type=int, default=128)
    options = parser.parse_args()
    Upstream(options.port, options.itl_ms / 1e3, options.output_tokens).serve()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
