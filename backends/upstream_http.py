"""What an upstream sends, taken apart without I/O: the answer's head, its framing, its event stream.

In: bytes, cut anywhere. Out: the head's status and headers, body bytes, and the data of each SSE event. Any
bytes either parse or raise UpstreamFault; nothing else.
"""

MAX_ANSWER_HEAD_BYTES = 65536
MAX_EVENT_BYTES = 64 << 20          # of one event, or one JSON answer: pictures come as base64
_CHUNK_LINE_BYTES = 4096            # a chunk's size with its extensions
_LENGTH_DIGITS = 19                 # of a content-length: int() takes no thousands of them


class UpstreamFault(Exception):
    """The upstream broke the protocol, or off. fresh: nothing of an answer had come."""

    def __init__(self, message, fresh=False):
        super().__init__(message)
        self.message = message
        self.fresh = fresh


class AnswerReader:
    """One HTTP/1.x answer. feed() bytes as they come, feed_eof() at the connection's end.

    status: int, None until the head is complete. headers: {lower-case name: value}. over: the body is complete.
    reusable: whether the connection may be used again after it. rest: bytes behind the answer, which nobody
    asked for.
    """

    def __init__(self):
        self.status = None
        self.headers = {}
        self.over = False
        self.reusable = False
        self.rest = b""
        self._buffer = b""
        self._seen = False          # any byte has come
        self._chunked = False
        self._left = 0              # bytes of the body or the chunk that are still to come; None: until the end
        self._state = self._head

    def feed(self, data):
        """The body's bytes in it, a list. Raises UpstreamFault."""
        self._seen = True
        if self._state == self._until_end and not self._buffer:
            return [data]
        self._buffer = self._buffer + data if self._buffer else data
        out = []
        while not self.over and self._state(out):
            pass
        if self.over and self._buffer:
            self.rest, self._buffer, self.reusable = self._buffer, b"", False
        return out

    def feed_eof(self):
        """The upstream has closed. Raises UpstreamFault when that cut the answer off."""
        if self.over:
            return
        if self._state == self._until_end:
            self.over = True
            return
        if not self._seen:
            raise UpstreamFault("the upstream closed the connection without an answer", fresh=True)
        raise UpstreamFault("the upstream closed the connection in mid-answer")

    # ---- states: each takes from the buffer and says whether it got on -------------------------

    def _head(self, out):
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        size = 4
        bare = buffer.find(b"\n\n")             # some small servers end their lines so
        if bare >= 0 and (end < 0 or bare < end):
            end, size = bare, 2
        if end < 0:
            if len(buffer) > MAX_ANSWER_HEAD_BYTES:
                raise UpstreamFault("the upstream's answer has too long a head")
            if len(buffer) >= 5 and not buffer.startswith(b"HTTP/"):
                raise UpstreamFault("the upstream does not speak HTTP")
            return False
        lines = buffer[:end].decode("latin-1").replace("\r\n", "\n").split("\n")
        self._buffer = buffer[end + size:]
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (len(code) == 3 and code.isascii() and code.isdigit()):
            raise UpstreamFault("the upstream does not speak HTTP/1")
        status = int(code)
        if 100 <= status < 200:
            if status == 101:
                raise UpstreamFault("the upstream switched protocols")
            return True                         # an interim answer: the real one follows
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                name = name.strip().lower()
                headers[name] = headers[name] + ", " + value.strip() if name in headers else value.strip()
        self.status, self.headers = status, headers
        tokens = [token.strip().lower() for token in headers.get("connection", "").split(",")]
        self.reusable = "close" not in tokens if version != "HTTP/1.0" else "keep-alive" in tokens
        self._begin_body(status, headers)
        return True

    def _begin_body(self, status, headers):
        length = headers.get("content-length")
        if status in (204, 304):
            self.over = True
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunked = True
            self._state = self._chunk_size
        elif length is not None:
            length = length.split(",")[0].strip()       # a proxy may have repeated it
            if not (length.isascii() and length.isdigit() and len(length) <= _LENGTH_DIGITS):
                raise UpstreamFault("the upstream's content-length is no number")
            self._left = int(length)
            self._state = self._counted
            self.over = not self._left
        else:
            self.reusable = False
            self._state = self._until_end

    def _until_end(self, out):
        if self._buffer:
            out.append(self._buffer)
            self._buffer = b""
        return False

    def _counted(self, out):
        data = self._buffer[:self._left]
        if not data:
            return False
        self._buffer = self._buffer[len(data):]
        self._left -= len(data)
        out.append(data)
        if self._left:
            return False
        if self._chunked:
            self._state = self._chunk_end
            return True
        self.over = True
        return False

    def _chunk_size(self, out):
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > _CHUNK_LINE_BYTES:
                raise UpstreamFault("the upstream's chunk has too long a size line")
            return False
        digits = self._buffer[:end].partition(b";")[0].strip()
        try:
            if not digits.isalnum():
                raise ValueError
            self._left = int(digits, 16)
        except ValueError:
            raise UpstreamFault("the upstream's chunk has no size")
        self._buffer = self._buffer[end + 1:]
        self._state = self._counted if self._left else self._trailer
        return True

    def _chunk_end(self, out):
        """The line end behind a chunk's data."""
        if self._buffer.startswith(b"\r\n"):
            self._buffer = self._buffer[2:]
        elif self._buffer.startswith(b"\n"):
            self._buffer = self._buffer[1:]
        elif self._buffer in (b"", b"\r"):
            return False
        else:
            raise UpstreamFault("the upstream's chunk is longer than its size")
        self._state = self._chunk_size
        return True

    def _trailer(self, out):
        """Lines behind the last chunk, up to an empty one."""
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_ANSWER_HEAD_BYTES:
                raise UpstreamFault("the upstream's trailer is too long")
            return False
        line, self._buffer = self._buffer[:end].strip(), self._buffer[end + 1:]
        if not line:
            self.over = True
        return True


class EventReader:
    """Server-sent events: feed() gives the data of each complete one, as bytes.

    Lines end with LF, CR LF or CR; comments and all fields but `data` are passed over; several data lines are
    joined. Source: the WHATWG HTML standard, "Interpreting an event stream". most_bytes: of one event.
    """

    def __init__(self, most_bytes=MAX_EVENT_BYTES):
        self._most_bytes = most_bytes
        self._buffer = b""
        self._more = []             # what follows _buffer on its line: joined once, or a long line costs its square
        self._more_size = 0
        self._data = None           # the data lines of the event that is not complete
        self._size = 0
        self._begun = False

    def feed(self, chunk):
        """A list of bytes, one per event. Raises UpstreamFault for an event that never ends."""
        buffer = self._buffer
        if buffer:
            self._more.append(chunk)
            self._more_size += len(chunk)
            if self._begun and b"\n" not in chunk and b"\r" not in chunk and not buffer.endswith(b"\r"):
                self._check_size()
                return []
            buffer = self._line_so_far()
        else:
            buffer = chunk
        if not self._begun:
            if len(buffer) < 3 and b"\xef\xbb\xbf".startswith(buffer):
                self._buffer = buffer
                return []
            self._begun = True
            if buffer.startswith(b"\xef\xbb\xbf"):
                buffer = buffer[3:]
        if b"\r" in buffer:
            # a CR at the very end may be half of a CR LF: it waits for what comes next
            kept = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[:len(buffer) - len(kept)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + kept
        lines = buffer.split(b"\n")
        self._buffer = lines.pop()
        self._check_size()
        return self._read_lines(lines)

    def _line_so_far(self):
        buffer = b"".join([self._buffer] + self._more)
        self._buffer, self._more, self._more_size = b"", [], 0
        return buffer

    def _check_size(self):
        if len(self._buffer) + self._more_size + self._size > self._most_bytes:
            raise UpstreamFault("the upstream's event is too long")

    def feed_eof(self):
        """What the end of the stream completes: an event whose blank line was left out."""
        buffer = self._line_so_far()
        return self._read_lines([buffer.rstrip(b"\r"), b""])

    def _read_lines(self, lines):
        events, data = [], self._data
        for line in lines:
            if not line:
                if data is not None:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data, self._size = None, 0
            elif line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
                self._size += len(value) + 1        # empty lines are joined as well
                if data is None:
                    data = [value]
                else:
                    data.append(value)
            elif line == b"data":
                data = (data or []) + [b""]
        self._data = data
        return events
