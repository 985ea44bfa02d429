"""A WebSocket client that sees the wire: what it sends is made byte by byte, what comes is checked."""
import json
import os

from tests.support import RawClient

KEY = "dGhlIHNhbXBsZSBub25jZQ=="        # the handshake of RFC 6455 1.3
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
HANDSHAKE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY}


def client_frame(opcode, payload=b"", fin=True, rsv=0, mask=b"\x11\x22\x33\x44", length=None, masked=True):
    """A frame as a client sends it. length: "2", "4", "10": how its length is written; None: the shortest."""
    size = len(payload)
    if length is None:
        length = "2" if size < 126 else "4" if size < 65536 else "10"
    head = bytes(((0x80 if fin else 0) | rsv << 4 | opcode,))
    flag = 0x80 if masked else 0
    if length == "2":
        head += bytes((flag | size,))
    elif length == "4":
        head += bytes((flag | 126,)) + size.to_bytes(2, "big")
    else:
        head += bytes((flag | 127,)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[at & 3] for at, byte in enumerate(payload))


def close_payload(code, reason=b""):
    return code.to_bytes(2, "big") + reason


class WebSocketClient(RawClient):
    """connect() does the handshake; turn() sends a response.create and reads its events."""

    def handshake(self, headers=None, path="/v1/responses"):
        """The answer's head; 101 or an error, whose body is read."""
        self.send_request("GET", path, headers=dict(HANDSHAKE, **(headers or {})))
        answer = self.read_head()
        if answer.status != 101:
            answer.body = self._take(int(answer.headers["content-length"]))
        return answer

    def send_frame(self, opcode, payload=b"", **values):
        self.send(client_frame(opcode, payload, mask=os.urandom(4), **values))

    def send_json(self, **body):
        self.send_frame(TEXT, json.dumps(body).encode("utf-8"))

    def create(self, **body):
        """A response.create; nothing is read."""
        self.send_json(**dict({"type": "response.create", "model": "mock-model", "input": "Hello"}, **body))

    def read_ws(self):
        """The next frame, as (opcode, payload). What RFC 6455 forbids a server to send fails the test."""
        first, second = self._take(2)
        if first & 0x70 or not first & 0x80 or second & 0x80:
            raise AssertionError("a frame with reserved bits, in fragments or masked: %02x %02x" % (first, second))
        size, shortest = second, 0
        if size == 126:
            size, shortest = int.from_bytes(self._take(2), "big"), 126
        elif size == 127:
            size, shortest = int.from_bytes(self._take(8), "big"), 65536
        if size < shortest:
            raise AssertionError("a length that is not the shortest")
        return first & 15, self._take(size)

    def read_event(self):
        """The next text frame's JSON."""
        opcode, payload = self.read_ws()
        if opcode != TEXT:
            raise AssertionError("frame %d %r where an event was due" % (opcode, payload))
        return json.loads(payload.decode("utf-8"))

    def read_turn(self):
        """The events up to the one that ends a turn."""
        events = []
        while not events or events[-1]["type"] not in TERMINAL:
            events.append(self.read_event())
        return events

    def turn(self, **body):
        self.create(**body)
        return self.read_turn()

    def read_close(self):
        """(code or None, reason) of the close frame that is next."""
        opcode, payload = self.read_ws()
        if opcode != CLOSE:
            raise AssertionError("frame %d %r where a close was due" % (opcode, payload[:200]))
        return (int.from_bytes(payload[:2], "big") if payload else None), payload[2:].decode("utf-8")
