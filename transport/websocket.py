"""WebSockets (RFC 6455) without I/O: the handshake's check and answer, frames in, frames out.

In: bytes of a client, in any cut. Out: whole messages and control frames, or a WebSocketError that
says how the connection is to be closed. The server's side only: what comes is masked, what goes is
not. No extension is spoken.
"""
import re
from binascii import Error as Base64Error, a2b_base64, b2a_base64
from codecs import getincrementaldecoder
from hashlib import sha1

from api_common import ApiError

WS_CONTINUATION, WS_TEXT, WS_BINARY, WS_CLOSE, WS_PING, WS_PONG = 0, 1, 2, 8, 9, 10

# close codes, RFC 6455 7.4.1
WS_NORMAL = 1000
WS_GOING_AWAY = 1001
WS_PROTOCOL_ERROR = 1002
WS_UNSUPPORTED = 1003
WS_BAD_DATA = 1007
WS_POLICY = 1008
WS_TOO_BIG = 1009
WS_SERVER_FAULT = 1011

WS_CONTROL_BYTES = 125              # the longest payload of a control frame
_WS_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_WS_KNOWN_OPCODES = frozenset((WS_CONTINUATION, WS_TEXT, WS_BINARY, WS_CLOSE, WS_PING, WS_PONG))
_WS_SENT_CODES = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014))
_WS_KEY = re.compile(r"[A-Za-z0-9+/]{22}==\Z")
_WS_DECODER = getincrementaldecoder("utf-8")

# The JSON objects of bare SSE events. 0.2 us an event where many are joined; split() and index() took 0.7.
_ws_event_texts = re.compile(rb"\ndata: (\{.*)").findall

# The heads of text frames by their payload's length: an event of a stream is mostly within these.
_WS_TEXT_HEADS = [b"\x81" + bytes((size,)) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")
                  for size in range(1024)]


class WebSocketError(Exception):
    """The client broke a rule. code: the close code that it gets; reason: a few words for it."""

    def __init__(self, code, reason):
        super().__init__(reason)
        self.code = code
        self.reason = reason


# ---- the handshake ----------------------------------------------------------------------------

def _handshake_words(head, name):
    return {word.strip().lower() for word in head.headers.get(name, "").split(",")}


def check_handshake(head, body=b""):
    """The request's Sec-WebSocket-Key as str. head: http1.RequestHead.

    Raises ApiError: 426 for a request that asks for no WebSocket or for another version, 400 for one
    that is malformed. Source: RFC 6455 4.2.1; RFC 9110 15.5.22.
    """
    headers = head.headers
    if "websocket" not in _handshake_words(head, "upgrade") or head.http10 or head.method != "GET":
        raise ApiError(426, "GET %s is for WebSockets: it needs 'Upgrade: websocket'. To create a response over "
                       "HTTP, send a POST." % head.path[:100],
                       headers=[("upgrade", "websocket"), ("connection", "Upgrade")])
    if "upgrade" not in _handshake_words(head, "connection"):
        raise ApiError(400, "The WebSocket handshake lacks 'Connection: Upgrade'.")
    if headers.get("sec-websocket-version") != "13":
        raise ApiError(426, "Only version 13 of the WebSocket protocol is spoken here.", headers=[
            ("sec-websocket-version", "13"), ("upgrade", "websocket"), ("connection", "Upgrade")])
    key = headers.get("sec-websocket-key", "")
    try:
        good = bool(_WS_KEY.match(key)) and len(a2b_base64(key)) == 16
    except Base64Error:
        good = False
    if not good:
        raise ApiError(400, "The header 'Sec-WebSocket-Key' must be 16 bytes in base64.")
    if body:
        raise ApiError(400, "A WebSocket handshake has no body.")
    return key


def handshake_headers(key):
    """The answer's headers, as [(name, value)]."""
    digest = sha1(key.encode("ascii") + _WS_GUID, usedforsecurity=False).digest()
    return [("upgrade", "websocket"), ("connection", "Upgrade"),
            ("sec-websocket-accept", b2a_base64(digest, newline=False).decode("ascii"))]


# ---- frames out -------------------------------------------------------------------------------

def ws_frame(opcode, payload=b""):
    """One final frame."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 65536:
        return b"%c\x7e%b%b" % (0x80 | opcode, size.to_bytes(2, "big"), payload)
    return b"%c\x7f%b%b" % (0x80 | opcode, size.to_bytes(8, "big"), payload)


def ws_close_frame(code=None, reason=""):
    """A close frame. code None: without a body. The reason is cut to what fits."""
    if code is None:
        return ws_frame(WS_CLOSE)
    told = reason.encode("utf-8", "replace")[:WS_CONTROL_BYTES - 2].decode("utf-8", "ignore").encode("utf-8")
    return ws_frame(WS_CLOSE, code.to_bytes(2, "big") + told)


def ws_event_framer(lane=None):
    """A framer, as api_common.chunked_bytes is one: bare SSE events to text frames, one JSON each.

    What is no event (a comment, [DONE]) gives none. lane: a stream_id that every event repeats.
    Source: api-reference 11.7.
    """
    extra = b"" if lane is None else b'{"stream_id":"%s",' % lane.encode("ascii")

    def frames(events):
        out = []
        for text in _ws_event_texts(events):
            if extra:
                text = extra + text[1:]
            size = len(text)
            if size < 1024:
                out.append(_WS_TEXT_HEADS[size])
                out.append(text)
            else:
                out.append(ws_frame(WS_TEXT, text))
        return b"".join(out)
    return frames


# ---- frames in --------------------------------------------------------------------------------

def ws_unmask(data, mask, at):
    """data XOR the mask, of which `at` bytes were used before. Its own inverse."""
    size = len(data)
    if not size:
        return b""
    at &= 3
    key = ((mask[at:] + mask[:at]) * (size // 4 + 1))[:size]
    # one XOR of two big integers: some 0.2 ms for 64 KB, of which a loop would need 5
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def check_close_payload(payload):
    """A close frame's (code or None, reason). Raises WebSocketError. Source: RFC 6455 7.4."""
    if not payload:
        return None, ""
    if len(payload) == 1:
        raise WebSocketError(WS_PROTOCOL_ERROR, "a close frame with half a code")
    code = int.from_bytes(payload[:2], "big")
    if code not in _WS_SENT_CODES and not 3000 <= code <= 4999:
        raise WebSocketError(WS_PROTOCOL_ERROR, "no close code: %d" % code)
    try:
        return code, payload[2:].decode("utf-8")
    except UnicodeDecodeError:
        raise WebSocketError(WS_BAD_DATA, "a close reason that is not UTF-8")


class FrameParser:
    """One connection's reader. max_bytes: of a message, all its frames together.

    feed(bytes), then next() until it gives None: (opcode, payload bytes) of a whole message (WS_TEXT,
    WS_BINARY) or of a control frame. A text message is UTF-8. After a WebSocketError it is of no
    more use.
    """

    __slots__ = ("_max_bytes", "_buf", "_at", "_opcode", "_final", "_missing", "_mask", "_done", "_control",
                 "_message", "_parts", "_bytes", "_decoder")

    def __init__(self, max_bytes):
        self._max_bytes = max_bytes
        self._buf = bytearray()
        self._at = 0                # how much of _buf was taken
        self._opcode = None         # of the frame whose payload is being read
        self._final = False
        self._missing = 0           # bytes of its payload that are to come
        self._mask = b""
        self._done = 0              # bytes of its payload that came
        self._control = None        # payload of a control frame, so far
        self._message = None        # opcode of the message that has begun
        self._parts = []
        self._bytes = 0             # of the message, with all that its frames announced
        self._decoder = None        # of a text message

    def in_message(self):
        """Whether a message or a frame has begun and not ended."""
        return self._message is not None or self._opcode is not None or self._at < len(self._buf)

    def feed(self, data):
        if self._at:
            del self._buf[:self._at]
            self._at = 0
        self._buf += data

    def next(self):
        while True:
            if self._opcode is None and not self._read_frame_head():
                return None
            taken = min(self._missing, len(self._buf) - self._at)
            if taken:
                self._take_payload(taken)
            if self._missing:
                return None
            found = self._end_frame()
            if found is not None:
                return found

    def _read_frame_head(self):
        buf, at = self._buf, self._at
        there = len(buf) - at
        if there < 1:
            return False
        first = buf[at]
        opcode = first & 15
        if first & 0x70:
            raise WebSocketError(WS_PROTOCOL_ERROR, "a reserved bit is set")
        if opcode not in _WS_KNOWN_OPCODES:
            raise WebSocketError(WS_PROTOCOL_ERROR, "an unknown opcode")
        if opcode & 8:
            if not first & 0x80:
                raise WebSocketError(WS_PROTOCOL_ERROR, "a control frame in fragments")
        elif (opcode == WS_CONTINUATION) != (self._message is not None):
            raise WebSocketError(WS_PROTOCOL_ERROR, "a continuation of nothing" if self._message is None
                                 else "a new message inside another")
        if there < 2:
            return False
        size = buf[at + 1] & 127
        if not buf[at + 1] & 0x80:
            raise WebSocketError(WS_PROTOCOL_ERROR, "a frame without a mask")
        if opcode & 8 and size > WS_CONTROL_BYTES:
            raise WebSocketError(WS_PROTOCOL_ERROR, "a control frame that is too long")
        head = 2 if size < 126 else 4 if size == 126 else 10
        if there < head:
            return False
        if size >= 126:
            size = int.from_bytes(buf[at + 2:at + head], "big")
            if size < (126 if head == 4 else 65536) or size >> 63:
                raise WebSocketError(WS_PROTOCOL_ERROR, "a length that is not in its shortest form")
        if not opcode & 8 and self._bytes + size > self._max_bytes:
            raise WebSocketError(WS_TOO_BIG, "a message of more than %d bytes" % self._max_bytes)
        if there < head + 4:
            return False
        self._mask = bytes(buf[at + head:at + head + 4])
        self._at = at + head + 4
        self._opcode, self._final, self._missing, self._done = opcode, bool(first & 0x80), size, 0
        if opcode & 8:
            self._control = b""
        else:
            self._bytes += size
            if opcode != WS_CONTINUATION:
                self._message = opcode
                if opcode == WS_TEXT:
                    self._decoder = _WS_DECODER()
        return True

    def _take_payload(self, taken):
        at = self._at
        data = ws_unmask(self._buf[at:at + taken], self._mask, self._done)
        self._at = at + taken
        self._missing -= taken
        self._done += taken
        if self._opcode & 8:
            self._control += data
            return
        if self._message == WS_TEXT:
            self._decode(data, False)
        self._parts.append(data)

    def _decode(self, data, final):
        """Look whether a text message is UTF-8 so far: at once, not at its end (RFC 6455 8.1)."""
        try:
            self._decoder.decode(data, final)
        except UnicodeDecodeError:
            raise WebSocketError(WS_BAD_DATA, "a text that is not UTF-8")

    def _end_frame(self):
        """(opcode, payload) when the frame that has just ended ends something."""
        opcode, self._opcode = self._opcode, None
        if opcode & 8:
            payload, self._control = self._control, None
            return opcode, payload
        if not self._final:
            return None
        opcode = self._message
        if opcode == WS_TEXT:
            self._decode(b"", True)
            self._decoder = None
        payload = b"".join(self._parts)
        self._message, self._parts, self._bytes = None, [], 0
        return opcode, payload
