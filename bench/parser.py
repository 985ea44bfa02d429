"""One HTTP answer, sans-I/O: bytes in, number of finished token events out.

What counts is what the project's C generator counts: a token event is a whole `data:` line that carries text, in Chat a
non-empty `"content"` string, in Responses a `response.output_text.delta`. Role, finish, usage and [DONE] frames do not
count. Lines are counted in bulk (`bytes.count`), never one by one: the client must be cheaper than the server.
"""

import re

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection:[ \t]*([^\r]*)", re.IGNORECASE)

# How the body ends, and inside a chunked body what comes next.
_BY_LENGTH, _BY_CLOSE, _CHUNK_SIZE, _CHUNK_DATA, _CHUNK_END, _TRAILER = range(6)


def count_chat(lines):
    """The non-empty content strings in whole lines of a chat stream, for both spellings of a JSON separator."""
    found = lines.count(b'"content":"')
    if found:
        return found - lines.count(b'"content":""')
    found = lines.count(b'"content": "')
    return found and found - lines.count(b'"content": ""')


def count_responses(lines):
    """The text deltas in whole lines of a Responses stream; the `event:` line has no closing quote."""
    return lines.count(b'response.output_text.delta"')


# kind of API: (counter of token events, the marks one of which a whole stream must carry)
COUNTERS = {
    "chat": (count_chat, (b"[DONE]",)),
    "responses": (count_responses, (b'response.completed"', b'response.incomplete"')),
}


class AnswerParser:
    """Parses the answers of one connection, one after the other.

    feed(data) returns the number of token events that these bytes finished. Then: `over`, the answer is whole;
    `status` (int); `done`, the API's last event was seen; `close`, the server will close; `extra`, bytes after the end.
    Raises ValueError when the bytes are not HTTP/1.x.
    """

    __slots__ = ("status", "over", "done", "close", "extra", "_count", "_marks", "_state", "_left", "_partial", "_rest")

    def __init__(self, kind):
        """kind: a key of COUNTERS; None for answers whose body is of no interest."""
        self._count, self._marks = COUNTERS[kind] if kind else (None, ())
        self.reset()

    def reset(self):
        """Be ready for the head of the next answer."""
        self.status = 0
        self.over = self.done = self.close = False
        self.extra = self._partial = self._rest = b""
        self._state = None
        self._left = 0

    def feed(self, data):
        """See the class."""
        state = self._state
        if state is None:
            data = self._head(data)
            if not data:
                return 0
            state = self._state
        if state == _CHUNK_SIZE and not self._partial:
            # The usual case of a paced stream: one frame, one chunk, one recv.
            end = data.find(b"\r\n")
            if 0 < end < 9 and b";" not in data[:end]:
                size = int(data[:end], 16)
                if size and end + size + 4 == len(data):
                    return self._lines(data[end + 2 : -2])
        if state == _BY_LENGTH:
            self._left -= len(data)
            if self._left <= 0:
                self.over = True
                if self._left < 0:
                    self.extra = data[self._left :]
                    data = data[: self._left]
            return self._lines(data) if self._count else 0
        if state == _BY_CLOSE:
            return self._lines(data) if self._count else 0
        body = self._dechunk(data)
        return self._lines(body) if body and self._count else 0

    def feed_eof(self):
        """The server closed; True if that is a proper end of the answer."""
        return self.over or self._state == _BY_CLOSE

    def _head(self, data):
        """Take in a part of the head; the bytes after it, or b"" while it is not whole."""
        data = self._partial + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > 65536:
                raise ValueError("the head of the answer is too long")
            self._partial = data
            return b""
        self._partial = b""
        head = data[: end + 2]
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise ValueError("not an HTTP/1 answer: %r" % head[:40])
        self.status = int(head[9:12])
        if self.status == 100:
            self.status = 0
            return self._head(data[end + 4 :]) if len(data) > end + 4 else b""
        connection = _CONNECTION.search(head)
        words = connection.group(1).lower() if connection else b""
        self.close = b"close" in words or (head[7:8] == b"0" and b"keep-alive" not in words)
        length = None
        if _CHUNKED.search(head):
            self._state = _CHUNK_SIZE
        else:
            length = _LENGTH.search(head)
            self._state = _BY_LENGTH if length else _BY_CLOSE
        if length:
            self._left = int(length.group(1))
            self.over = self._left == 0
        elif self._state == _BY_CLOSE:
            self.close = True
        return data[end + 4 :]

    def _dechunk(self, data):
        """The body bytes in these bytes of a chunked body, whatever the cuts."""
        pieces = []
        position, size = 0, len(data)
        while position < size:
            if self._state == _CHUNK_DATA:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _CHUNK_END
                continue
            if self._state == _CHUNK_SIZE and not self._partial:  # whole chunks: joined frames bring hundreds
                position = self._whole_chunks(data, position, pieces)
                if position == size:
                    break
            end = data.find(b"\n", position)
            if end < 0:
                self._partial += data[position:]
                break
            line = (self._partial + data[position:end]).strip()
            self._partial = b""
            position = end + 1
            if self._state == _CHUNK_END:
                if line:
                    raise ValueError("a chunk is longer than its size")
                self._state = _CHUNK_SIZE
            elif self._state == _CHUNK_SIZE:
                self._left = int(line.split(b";")[0], 16)
                self._state = _CHUNK_DATA if self._left else _TRAILER
            elif not line:
                self.over = True
                self.extra = data[position:]
                break
        return b"".join(pieces)

    @staticmethod
    def _whole_chunks(data, position, pieces):
        """Collect the chunks that are whole, from a boundary on; the position where they end."""
        find, collect, size = data.find, pieces.append, len(data)
        while True:
            end = find(b"\r\n", position, position + 10)
            if end < 0 or b";" in data[position:end]:
                return position
            begin = end + 2
            after = begin + int(data[position:end], 16)
            if after == begin or after + 2 > size or data[after : after + 2] != b"\r\n":
                return position
            collect(data[begin:after])
            position = after + 2

    def _lines(self, body):
        """Count the token events of the lines that are whole now; the cut line waits for its end."""
        if self._rest:
            body = self._rest + body
            self._rest = b""
        if body[-1:] != b"\n":
            cut = body.rfind(b"\n") + 1
            self._rest = body[cut:]
            body = body[:cut]
        if not self.done:
            for mark in self._marks:
                if mark in body:
                    self.done = True
        return self._count(body)
