"""HTTP/1.1 without I/O: bytes in, requests out; answers' heads and errors as bytes.

The loop feeds the parser from non-blocking reads, a connection's own thread from blocking ones.
Any bytes give a Request, None (more is needed) or an ApiError after which the connection ends.
"""
import re
import time
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

from api_common import OPENAI_VERSION, ApiError, __version__

MAX_HEAD_BYTES = 65536              # all headers together (API overview page: up to 64 KiB)
MAX_LINE_BYTES = 16384              # the request line
MAX_HEADERS = 200
MAX_CHUNK_LINE_BYTES = 4096         # a chunk's size line with its extensions
MAX_TRAILER_BYTES = 16384
CHUNKS_AT_ONCE = 1000               # steps of a chunked body in one feed: some 2 ms
HEAD_CACHE_ENTRIES = 512            # parsed heads kept by their bytes: 2.3 to 6.5 us saved each
HEAD_CACHE_BYTES = 2048             # a longer head is not kept

_HTTP_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HTTP_VERSION = re.compile(r"HTTP/(\d)\.(\d)\Z")
_HTTP_HEX = re.compile(rb"[0-9A-Fa-f]{1,16}\Z")
_HTTP_DIGITS = re.compile(r"[0-9]{1,18}\Z")
_HTTP_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

# parser states
_AT_HEAD, _AT_BODY, _AT_CHUNK_SIZE, _AT_CHUNK_DATA, _AT_CHUNK_END, _AT_TRAILER, _AT_END = range(7)


class RequestHead:
    """A parsed head; shared between equal requests, so nobody changes it.

    method str; path str, percent-decoded; query_text str; http10 bool; headers {lower-case name:
    str, repeated ones joined with ", "}; length int, of the body; chunked bool; keep_alive bool,
    what the client wants; expect_continue bool; asks: whether a header is one of ours, x-mockturtle-*.
    """

    __slots__ = ("method", "path", "query_text", "http10", "headers", "length", "chunked",
                 "keep_alive", "expect_continue", "asks")

    def query(self):
        """{name: [str]}; "include[]" counts as "include"."""
        if not self.query_text:
            return {}
        found = parse_qs(self.query_text, keep_blank_values=True)
        for name in [name for name in found if name.endswith("[]")]:
            found.setdefault(name[:-2], []).extend(found.pop(name))
        return found


class Request:
    """A request that was fully read. head: RequestHead; body: bytes."""

    __slots__ = ("head", "body")

    def __init__(self, head, body):
        self.head = head
        self.body = body


def _bad_request(message, status=400):
    return ApiError(status, message, close=True)


def parse_head(data):
    """A head's bytes, blank line included, as RequestHead. Raises ApiError (closing)."""
    text = data[:-4].decode("latin-1")
    lines = text.split("\r\n")
    if "\n" in text.replace("\r\n", "") or "\r" in text.replace("\r\n", ""):
        # RFC 9112 2.2: a bare CR or LF read as a line end is how requests are smuggled
        raise _bad_request("A header line does not end in CR LF.")
    if len(lines) > MAX_HEADERS + 1:
        raise _bad_request("More than %d header lines." % MAX_HEADERS, 431)
    head = RequestHead()
    target = _parse_request_line(head, lines[0])
    headers = {}
    framing = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not _HTTP_TOKEN.match(name):
            raise _bad_request("A header line is malformed.")
        value = value.strip(" \t")
        if _HTTP_BAD_VALUE.search(value):
            raise _bad_request("The header '%s' holds a control character." % name)
        name = name.lower()
        if name in headers:
            if name in ("content-length", "transfer-encoding", "host"):
                raise _bad_request("The header '%s' is repeated." % name)
            headers[name] += ("; " if name == "cookie" else ", ") + value
        else:
            headers[name] = value
            if name in ("content-length", "transfer-encoding"):
                framing.append(name)
    head.headers = headers
    head.asks = any(name.startswith("x-mockturtle-") for name in headers)
    _parse_framing(head, framing)
    if not head.http10 and "host" not in headers:
        raise _bad_request("The Host header is missing.")
    _parse_target(head, target)
    tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    head.keep_alive = "keep-alive" in tokens if head.http10 else "close" not in tokens
    expect = headers.get("expect", "").lower()
    if expect and expect != "100-continue":
        raise _bad_request("The expectation cannot be met.", 417)
    head.expect_continue = bool(expect) and not head.http10
    return head


def _parse_request_line(head, line):
    words = line.split(" ")
    if len(words) != 3 or not words[1]:
        raise _bad_request("The request line is malformed.")
    method, target, version = words
    if not _HTTP_TOKEN.match(method) or len(method) > 32:
        raise _bad_request("The request's method is malformed.")
    found = _HTTP_VERSION.match(version)
    if not found:
        raise _bad_request("The request's HTTP version is malformed.")
    if found.group(1) != "1":
        raise _bad_request("Only HTTP/1.0 and HTTP/1.1 are spoken here.", 505)
    head.method = method
    head.http10 = found.group(2) == "0"
    if any(char <= " " or char == "\x7f" for char in target):
        raise _bad_request("The request's target is malformed.")
    return target


def _parse_framing(head, framing):
    """Where the body ends. Two answers to that are a smuggled request (RFC 9112 6.3)."""
    if len(framing) == 2:
        raise _bad_request("Both Content-Length and Transfer-Encoding are given.")
    head.length, head.chunked = 0, False
    if "content-length" in head.headers:
        if not _HTTP_DIGITS.match(head.headers["content-length"]):
            raise _bad_request("The Content-Length is not a number.")
        head.length = int(head.headers["content-length"])
    elif "transfer-encoding" in head.headers:
        if head.http10:
            raise _bad_request("HTTP/1.0 has no Transfer-Encoding.")
        if head.headers["transfer-encoding"].lower() != "chunked":
            raise _bad_request("Only the transfer coding 'chunked' is known.", 501)
        head.chunked = True


def _parse_target(head, target):
    if target[0] != "/":
        # absolute form, as sent to proxies; "*" is for OPTIONS alone
        found = re.match(r"https?://[^/?#]*(.*)\Z", target, re.IGNORECASE)
        if found:
            target = found.group(1)
            if not target.startswith("/"):
                target = "/" + target
        elif target != "*" or head.method != "OPTIONS":
            raise _bad_request("The request's target is malformed.")
    target = target.partition("#")[0]
    path, _, head.query_text = target.partition("?")
    head.path = unquote(path) if "%" in path else path


class RequestParser:
    """One connection's reader. heads: a dict that all parsers of a server share as their cache.

    feed(bytes) returns the next Request or None; feed(b"") looks at what is left over from
    pipelining. wants_continue: set when the client waits for "100 Continue"; whoever sends it
    clears it. has_more: feed(b"") has work to do, but others should have their turn first. After an
    ApiError the parser is of no more use.
    """

    __slots__ = ("_heads", "_max_body", "_state", "_buf", "_seen", "_head", "_parts", "_missing",
                 "_body_bytes", "wants_continue", "has_more")

    def __init__(self, heads, max_body_bytes):
        self._heads = heads
        self._max_body = max_body_bytes
        self._state = _AT_HEAD
        self._buf = b""             # unread bytes: b"" or, while more is needed, a bytearray
        self._seen = 0              # how much of _buf was searched in vain
        self._head = None
        self._parts = None          # the body so far
        self._missing = 0           # bytes of the body or of the chunk that are to come
        self._body_bytes = 0
        self.wants_continue = False
        self.has_more = False

    def is_idle(self):
        """Whether nothing of a next request has come yet."""
        return self._state == _AT_HEAD and not self._buf

    def in_body(self):
        return self._state != _AT_HEAD

    def take_rest(self):
        """The bytes behind the last request, which are no request: the connection changed its protocol."""
        rest, self._buf = bytes(self._buf), b""
        return rest

    def feed(self, data):
        if self._buf:
            self._buf += data
        else:
            self._buf = data
        self.has_more = False
        while True:
            state = self._state
            if state == _AT_HEAD:
                if not self._buf:
                    return None
                request = self._read_head()
            elif state == _AT_BODY:
                request = self._read_body()
            else:
                request = self._read_chunks()
            if request is not None or self._state == state or self.has_more:
                self._shelve()
                return request

    def _shelve(self):
        """Between feeds leftovers lie in a bytearray, which grows without copying."""
        if self._buf and self._buf.__class__ is bytes:
            self._buf = bytearray(self._buf)

    def _read_head(self):
        buf = self._buf
        start = 0
        while buf.startswith(b"\r\n", start):  # RFC 9112 2.2: skip empty lines before a request
            start += 2
        if start:
            self._buf = buf = buf[start:]
            self._seen = max(0, self._seen - start)
            if not buf:
                return None
        end = buf.find(b"\r\n\r\n", max(0, self._seen - 3))
        if end < 0:
            self._limit_head(buf)
            self._seen = len(buf)
            return None
        self._seen = 0
        if end > MAX_LINE_BYTES and buf.find(b"\r\n") > MAX_LINE_BYTES:
            raise _bad_request("The request line is too long.", 414)
        if end > MAX_HEAD_BYTES:
            raise _bad_request("The headers are longer than %d bytes." % MAX_HEAD_BYTES, 431)
        data = bytes(buf[:end + 4])
        rest = buf[end + 4:]
        head = self._heads.get(data)
        if head is None:
            head = parse_head(data)
            if len(data) <= HEAD_CACHE_BYTES:
                if len(self._heads) >= HEAD_CACHE_ENTRIES:
                    self._heads.clear()
                self._heads[data] = head
        if head.length > self._max_body:
            raise self._too_large()
        self._head = head
        length = head.length
        if not head.chunked and len(rest) >= length:
            body = bytes(rest[:length]) if length else b""
            self._buf = rest[length:] if len(rest) > length else b""
            return Request(head, body)
        self._buf = b""
        if head.expect_continue and not rest:
            self.wants_continue = True
        if head.chunked:
            self._state = _AT_CHUNK_SIZE
            self._parts, self._body_bytes = [], 0
            self._buf = rest
        else:
            self._state = _AT_BODY
            self._parts, self._missing = [bytes(rest)], length - len(rest)
        return None

    def _limit_head(self, buf):
        if len(buf) > MAX_LINE_BYTES:
            line_end = buf.find(b"\r\n", 0, MAX_LINE_BYTES + 2)
            if line_end < 0 or line_end > MAX_LINE_BYTES:
                raise _bad_request("The request line is too long.", 414)
        if len(buf) > MAX_HEAD_BYTES + 3:
            raise _bad_request("The headers are longer than %d bytes." % MAX_HEAD_BYTES, 431)
        if buf.find(b"\n\n", max(0, self._seen - 1)) >= 0:
            raise _bad_request("A header line does not end in CR LF.")

    def _too_large(self):
        return _bad_request("The request body is larger than %d bytes." % self._max_body, 413)

    def _read_body(self):
        data = self._buf
        if not data:
            return None
        if len(data) < self._missing:
            self._parts.append(bytes(data))
            self._missing -= len(data)
            self._buf = b""
            return None
        self._parts.append(bytes(data[:self._missing]))
        self._buf = data[self._missing:]
        return self._complete()

    def _complete(self):
        body = b"".join(self._parts)
        head = self._head
        self._head = self._parts = None
        self._state = _AT_HEAD
        self._seen = 0
        self.wants_continue = False
        return Request(head, body)

    def _read_chunks(self):
        """Go through a chunked body as far as its bytes reach; a Request at its end, else None.

        At most CHUNKS_AT_ONCE steps: then has_more is set, and somebody else has a turn.
        """
        buf, at = self._buf, 0
        request, steps = None, CHUNKS_AT_ONCE
        while request is None:
            if not steps:
                self.has_more = True
                break
            steps -= 1
            if self._state == _AT_CHUNK_DATA:
                taken = min(len(buf) - at, self._missing)
                if not taken:
                    break
                self._parts.append(bytes(buf[at:at + taken]))
                at += taken
                self._missing -= taken
                if not self._missing:
                    self._state = _AT_CHUNK_END
                continue
            end = buf.find(b"\n", at + self._seen)
            if end < 0:
                self._seen = len(buf) - at
                self._check_chunk_line(self._seen)
                break
            self._seen = 0
            self._check_chunk_line(end - at)
            line, at = bytes(buf[at:end + 1]), end + 1
            if not line.endswith(b"\r\n"):
                raise _bad_request("A line of the chunked body does not end in CR LF.")
            request = self._take_chunk_line(line[:-2])
        self._buf = buf[at:] if at < len(buf) else b""
        return request

    def _check_chunk_line(self, length):
        if self._state == _AT_TRAILER:
            if self._missing + length > MAX_TRAILER_BYTES:
                raise _bad_request("The trailers are too long.", 431)
        elif length > MAX_CHUNK_LINE_BYTES:
            raise _bad_request("A line of the chunked body is too long.")

    def _take_chunk_line(self, line):
        """A size line, the end of a chunk, or a trailer; the Request after the last."""
        if self._state == _AT_CHUNK_SIZE:
            self._read_chunk_size(line)
        elif self._state == _AT_CHUNK_END:
            if line:
                raise _bad_request("A chunk is longer than its size says.")
            self._state = _AT_CHUNK_SIZE
        elif not line:
            return self._complete()
        else:
            self._missing += len(line)          # a trailer: read, bounded, and not used
        return None

    def _read_chunk_size(self, line):
        digits = line.partition(b";")[0].strip(b" \t")
        if not _HTTP_HEX.match(digits):
            raise _bad_request("A chunk's size is malformed.")
        size = int(digits, 16)
        self._body_bytes += size
        if self._body_bytes > self._max_body:
            raise self._too_large()
        self._missing = size
        self._state = _AT_CHUNK_DATA if size else _AT_TRAILER


# ---- answers ----------------------------------------------------------------------------------

CONTINUE_LINE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON_TYPE = b"content-type: application/json\r\n"
STREAM_TYPE = (b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
               b"x-accel-buffering: no\r\n")

_HTTP_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_HTTP_UNSAFE_HEADER = re.compile(r"[\r\n\x00]")


def header_bytes(headers):
    """[(name, value)] as header lines. A CR, LF or NUL in a value becomes a space."""
    return "".join("%s: %s\r\n" % (name, _HTTP_UNSAFE_HEADER.sub(" ", str(value)))
                   for name, value in headers).encode("latin-1", "replace")


class HeadWriter:
    """Answers' heads. The lines that do not change within a second are kept ready."""

    def __init__(self, wall=time.time):
        self._wall = wall
        self._ready = (0, {})       # (second, {status: bytes}): replaced whole, so no lock

    def start_lines(self, status):
        """Status line, server, date and API version."""
        second = int(self._wall())
        stamp, ready = self._ready
        if stamp != second:
            ready = {}
            self._ready = (second, ready)
        lines = ready.get(status)
        if lines is None:
            lines = ("HTTP/1.1 %d %s\r\nserver: mockturtle/%s\r\ndate: %s\r\nopenai-version: %s\r\n"
                     % (status, _HTTP_PHRASES.get(status, "Unknown"), __version__,
                        formatdate(second, usegmt=True), OPENAI_VERSION)).encode("ascii")
            ready[status] = lines
        return lines

    def body_head(self, status, length, request_id, processing_ms, extra=b"", type_line=JSON_TYPE):
        """The head of an answer with a body of `length` bytes, of JSON unless type_line says otherwise."""
        return b"%s%scontent-length: %d\r\nx-request-id: req_%s\r\nopenai-processing-ms: %d\r\n%s\r\n" % (
            self.start_lines(status), type_line, length, request_id.encode("ascii"), processing_ms,
            extra)

    def stream_head(self, request_id, processing_ms, chunked, extra=b""):
        """The head of an event stream. chunked: False for HTTP/1.0, where the close is the end."""
        return b"%s%s%sx-request-id: req_%s\r\nopenai-processing-ms: %d\r\n%s\r\n" % (
            self.start_lines(200), STREAM_TYPE, b"transfer-encoding: chunked\r\n" if chunked else b"",
            request_id.encode("ascii"), processing_ms, extra)

    def empty_head(self, status, request_id, extra=b""):
        """The head of an answer without a body (204)."""
        return b"%sx-request-id: req_%s\r\n%s\r\n" % (
            self.start_lines(status), request_id.encode("ascii"), extra)
