"""A play whose sends are counted: how many events its client was sent, and the first of their bytes.

Stands before the wire of plays that a journal writes down; the others never come here. Runs on the player's thread.
"""
from transport.broken import BareFraming, SocketFraming, event_type

COUNTED_KEPT_BYTES = 16384          # of an answer, for whoever reads the journal


class CountedSend:
    """A play's send(). events: of a stream, sent whole and not heartbeats. sent_bytes: all that the kernel took."""

    __slots__ = ("events", "sent_bytes", "_send", "_heartbeat", "_kept", "_room", "_last", "_socket", "_chunked")

    def __init__(self, play, chunked, socket):
        self.events = 0
        self.sent_bytes = 0
        self._send = play.send
        self._heartbeat = play.heartbeat
        self._kept = []
        self._room = COUNTED_KEPT_BYTES
        self._last = b""            # the last byte of the send before: an event's end may be cut in two
        self._socket = socket
        self._chunked = chunked
        play.send = self

    def __call__(self, data):
        # Counted first: a client that has something must find it counted, whatever thread looks.
        before = self.events, self.sent_bytes, self._room, self._last, len(self._kept)
        self._count(data)
        try:
            sent = self._send(data)
        except OSError:
            self._restore(before)
            raise
        if sent != len(data):
            self._restore(before)
            self._count(data[:sent])
        return sent

    def _count(self, data):
        if data.__class__ is not bytes:
            data = bytes(data)
        self.sent_bytes += len(data)
        if self._room > 0:
            self._kept.append(data[:self._room])
            self._room -= len(data)
        if self._socket:
            self.events += len(SocketFraming.split(data)[0])
        else:
            self.events += (self._last + data).count(b"\n\n") - data.count(self._heartbeat)
            self._last = data[-1:]

    def _restore(self, before):
        self.events, self.sent_bytes, self._room, self._last, kept = before
        del self._kept[kept:]

    def head(self):
        """The answer's head, as far as it is kept; b"" on a WebSocket."""
        kept = b"".join(self._kept)
        return kept.partition(b"\r\n\r\n")[0] if kept.startswith(b"HTTP/") else b""

    def data(self):
        """The data of the first events that were sent whole, as a list of bytes."""
        kept = b"".join(self._kept)
        if kept.startswith(b"HTTP/"):
            kept = kept.partition(b"\r\n\r\n")[2]
        if self._socket:
            return SocketFraming.split(kept)[0][:self.events]
        kept = kept.replace(self._heartbeat, b"")
        if self._chunked:
            kept = _unchunked_so_far(kept)
        events = [event + b"\n\n" for event in kept.split(b"\n\n")[:-1]]
        return [BareFraming.data_of(event) for event in events if b"data: " in event][:self.events]

    def names(self):
        """The types of those events."""
        return [event_type(data) for data in self.data()]


def _unchunked_so_far(data):
    """The inside of chunks, of which the last may be cut off, and any may be broken."""
    found, at = [], 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        try:
            size = int(data[at:end], 16) if end > 0 else 0
        except ValueError:
            break
        if size <= 0:
            break
        found.append(data[end + 2:end + 2 + size])
        at = end + 4 + size
    return b"".join(found)
