"""The floor: a server of canned bytes, to say what this machine and this Python can do at all.

Same flags as the product (`--port --ttft-ms --itl-ms --output-tokens`), same routes, no work in them: it looks at the
path, for `"stream":true` at the end of the body and for the refused body of `measures`, and sends fixed bytes. One
thread, one epoll, 1 ms buckets of due streams, frames of a late stream joined. A ratio to it means the same on a
fast and on a slow machine. It is a limit to compare with, not a product: it checks nothing.
"""

import argparse
import heapq
import socket
import sys
import time

from bench.poller import READ, WRITE, new_poller, raise_file_limit

_HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"mock-model","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)
_DELTA = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_0123456789abcdef",'
    b'"output_index":0,"content_index":0,"delta":"%s","logprobs":[],"sequence_number":%d}\n\n'
)
_RESPONSE = (
    b'{"id":"resp_0123456789abcdef","object":"response","created_at":1700000000,"status":"%s","model":"mock-model",'
    b'"output":[%s]}'
)
_MESSAGE = (
    b'{"id":"msg_0123456789abcdef","type":"message","role":"assistant","status":"completed",'
    b'"content":[{"type":"output_text","text":"%s","annotations":[]}]}'
)
REFUSED_MARK = b'"messages":"'  # a chat whose messages are a string


def answer(body, status=b"200 OK"):
    """A whole plain answer as bytes."""
    return _HEAD % (status, len(body)) + body


def chunk(data):
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def chat_frames(words):
    """The frames of a chat stream, head first, as HTTP chunks: one before the words, one each, one after."""
    frames = [_SSE_HEAD + chunk(_CHUNK % (b'{"role":"assistant","content":""}', b"null"))]
    frames += [chunk(_CHUNK % (b'{"content":"%s"}' % word, b"null")) for word in words]
    return frames + [chunk(_CHUNK % (b"{}", b'"stop"') + b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def responses_frames(words):
    """The same for Responses."""
    event = b'event: response.%s\ndata: {"type":"response.%s","response":%s,"sequence_number":%d}\n\n'
    text = b"".join(words)
    first = event % (b"created", b"created", _RESPONSE % (b"in_progress", b""), 0)
    last = event % (b"completed", b"completed", _RESPONSE % (b"completed", _MESSAGE % text), len(words) + 1)
    deltas = [chunk(_DELTA % (word, i + 1)) for i, word in enumerate(words)]
    return [_SSE_HEAD + chunk(first)] + deltas + [chunk(last) + b"0\r\n\r\n"]


def join_frames(frames):
    """A whole stream as one chunk, for one send: what no latency at all allows."""
    data = b"".join(frames)[len(_SSE_HEAD) :]
    events = [part for part in data.split(b"\r\n") if part[-1:] == b"\n"]
    return _SSE_HEAD + chunk(b"".join(events)) + b"0\r\n\r\n"


class Conn:
    """One connection: unread bytes, unsent bytes, and the stream it plays (next frame, start in ms)."""

    __slots__ = ("sock", "fd", "inbox", "need", "outbox", "frames", "next", "start_ms")

    def __init__(self, sock):
        self.sock, self.fd = sock, sock.fileno()
        self.inbox, self.need, self.outbox = bytearray(), 0, b""
        self.frames, self.next, self.start_ms = None, 0, 0.0


class Floor:
    """The server; `serve()` runs until `running` is False or the process ends."""

    def __init__(self, port, ttft_ms, itl_ms, output_tokens):
        words = [b" token" if i else b"token" for i in range(output_tokens)]
        text = b"".join(words)
        usage = b'{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":%d}' % (output_tokens, output_tokens + 8)
        # due[i]: when frame i is due, in ms from the request; the first frame at once, the last with the last word
        self.due = [0.0] + [ttft_ms + i * itl_ms for i in range(output_tokens)]
        self.due.append(self.due[-1])
        self.streams = {b"c": chat_frames(words), b"r": responses_frames(words)}
        self.at_once = {key: join_frames(frames) for key, frames in self.streams.items()} if not self.due[-1] else {}
        self.delay_ms = ttft_ms + max(0, output_tokens - 1) * itl_ms
        self.plain = {
            b"c": answer(
                b'{"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion","created":1700000000,'
                b'"model":"mock-model","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},'
                b'"finish_reason":"stop"}],"usage":%s}' % (text, usage)
            ),
            b"r": answer(_RESPONSE % (b"completed", _MESSAGE % text)),
        }
        self.refusal = answer(
            b'{"error":{"message":"messages: a list is wanted","type":"invalid_request_error","param":"messages",'
            b'"code":null}}',
            b"400 Bad Request",
        )
        self.health = answer(b'{"status":"ok"}')
        self.models = answer(b'{"object":"list","data":[{"id":"mock-model","object":"model"}]}')
        self.conns, self.buckets, self.ticks = {}, {}, []
        self.poller = new_poller()
        self.running = True
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if sys.platform != "win32":  # there it would let two servers share a port
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(1024)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.poller.register(self.listener.fileno(), READ)

    def serve(self):
        """Accept, read, answer, play; looks at `running` at least four times a second."""
        door, poll, conns, ticks = self.listener.fileno(), self.poller.poll, self.conns, self.ticks
        while self.running:
            wait = 0.25
            if ticks:
                wait = min(wait, max(0.0, ticks[0] / 1e3 - time.perf_counter()))
            for fd, mask in poll(wait):
                if fd == door:
                    self.accept()
                    continue
                conn = conns.get(fd)
                if conn is not None and mask & WRITE:
                    self.flush(conn)
                if conn is not None and mask & ~WRITE and fd in conns:
                    self.read(conn)
            now = time.perf_counter() * 1e3
            while ticks and ticks[0] <= now:
                for conn in self.buckets.pop(heapq.heappop(ticks)):
                    if conn.frames is not None:
                        self.play(conn, now)
        for conn in list(conns.values()):
            self.drop(conn)
        self.listener.close()
        self.poller.close()

    def accept(self):
        """Take in every waiting connection."""
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conn = Conn(sock)
            self.conns[conn.fd] = conn
            self.poller.register(conn.fd, READ)

    def drop(self, conn):
        """Forget a connection; entries of it in buckets find no frames."""
        conn.frames = None
        if self.conns.pop(conn.fd, None) is not None:
            self.poller.unregister(conn.fd)
            conn.sock.close()

    def read(self, conn):
        """Read what is there and answer it once it is a whole request."""
        try:
            data = conn.sock.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(conn)
            return
        if conn.inbox or conn.need:
            conn.inbox += data
            if len(conn.inbox) < conn.need:
                return
            data = bytes(conn.inbox)
        end = data.find(b"\r\n\r\n")
        at = data.find(b"ontent-", 0, end)
        size = end + 4
        while at >= 0:  # Content-Type looks alike
            if data[at + 7 : at + 14].lower() == b"length:":
                size += int(data[at + 14 : data.index(b"\r", at)])
                break
            at = data.find(b"ontent-", at + 7, end)
        if end < 0 or len(data) < size:
            conn.need = size if end >= 0 else 0
            if not conn.inbox:
                conn.inbox += data
            return
        conn.inbox, conn.need = bytearray(), 0
        self.respond(conn, data, end)

    def respond(self, conn, data, end):
        """Send the answer to a whole request, or begin its stream. Pipelined requests are not for a floor."""
        if data.startswith(b"GET"):
            self.send(conn, self.models if data.startswith(b"GET /v1/models") else self.health)
            return
        key = b"r" if data.startswith(b"POST /v1/responses") else b"c"
        if data.find(b'"stream":true', max(end, len(data) - 512)) < 0:
            refused = len(data) - end < 512 and data.find(REFUSED_MARK, end) >= 0
            whole = self.refusal if refused else self.plain[key]
            if refused or not self.delay_ms:
                self.send(conn, whole)
                return
            conn.frames, conn.next = [whole], 0
            one_token = data.find(b'"max_tokens":1,', end, end + 100) >= 0
            self.wait(conn, time.perf_counter() * 1e3 + (self.due[1] if one_token else self.delay_ms))
        elif self.at_once:
            self.send(conn, self.at_once[key])
        else:
            conn.frames, conn.next = self.streams[key], 0
            now = conn.start_ms = time.perf_counter() * 1e3
            self.play(conn, now)

    def wait(self, conn, when_ms):
        """Put a stream into the bucket of the first whole millisecond at or after `when_ms`."""
        tick = int(when_ms) + 1
        bucket = self.buckets.get(tick)
        if bucket is None:
            self.buckets[tick] = [conn]
            heapq.heappush(self.ticks, tick)
        else:
            bucket.append(conn)

    def play(self, conn, now_ms):
        """Send every frame that is due and wait for the next."""
        frames, due = conn.frames, self.due
        if len(frames) == 1:
            conn.frames = None
            self.send(conn, frames[0])
            return
        first = at = conn.next
        elapsed = now_ms - conn.start_ms
        count = len(frames)
        while at < count and due[at] <= elapsed:
            at += 1
        conn.next = at
        if at == count:
            conn.frames = None
        else:
            self.wait(conn, conn.start_ms + due[at])
        if at > first:
            self.send(conn, frames[first] if at == first + 1 else b"".join(frames[first:at]))

    def send(self, conn, data):
        """Send now what fits; the rest waits for room."""
        if conn.outbox:
            conn.outbox += data
            return
        try:
            sent = conn.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(conn)
            return
        if sent < len(data):
            conn.outbox = data[sent:]
            self.poller.modify(conn.fd, READ | WRITE)

    def flush(self, conn):
        """There is room again."""
        data, conn.outbox = conn.outbox, b""
        self.poller.modify(conn.fd, READ)
        if data:
            self.send(conn, data)


def main():
    """Serve on 127.0.0.1 until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    parser.add_argument("--output-tokens", type=int, default=128)
    options = parser.parse_args()
    raise_file_limit()
    floor = Floor(options.port, options.ttft_ms, options.itl_ms, options.output_tokens)
    print("floor on http://127.0.0.1:%d" % floor.port, flush=True)
    try:
        floor.serve()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
