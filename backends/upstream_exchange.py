"""One request to an upstream and its answer, from bytes to deltas.

Sent on a worker, then read by the relay without ever blocking, or by pump_exchange() with waits. Everything that goes to
an upstream and comes from it passes here: `body` and `observer` are the place to look on.
"""
import json
import re
import socket

from backends.contract import Failure, RawAnswer, ReasoningDelta, TextDelta, ToolCallDelta
from backends.upstream_deltas import read_error, upstream_failure
from backends.upstream_http import MAX_EVENT_BYTES, AnswerReader, EventReader, UpstreamFault

UPSTREAM_READ_BYTES = 65536
MAX_ERROR_BYTES = 1 << 20           # of an error's body that is looked at
FINISHED_WAIT_S = 5.0               # for usage and [DONE], when all choices have said that they are finished
DRAIN_WAIT_S = 2.0                  # for the last bytes of an answer, so that its connection can be used again
_RETRY_AFTER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\Z|[A-Z][a-z]{2,8}, ?[0-9A-Za-z :+-]{1,40}\Z")    # seconds, or a date
# NaN and Infinity, which some servers give as log probabilities, are no JSON for our clients
_UPSTREAM_JSON = json.JSONDecoder(parse_constant=lambda name: None)


class RawReader:
    """In place of a ChunkReader, for answers that are not taken apart."""

    usage = None
    finished = failed = False


class UpstreamExchange:
    """One request to an upstream and its answer. One thread at a time.

    sock: the connection, non-blocking once it is sent. over: all deltas were given out. settled: the connection is
    back in the pool, or closed. wait_s: how long nothing may come from now on. fresh: nothing has come yet; and
    reused: on a connection that others used before: together they mean that another attempt does no harm.
    observer: None, or called with (exchange, data) for all bytes that come: with request and these, an exchange can
    be recorded.
    """

    observer = None

    def __init__(self, target, method, path, body, reader, count, wait_s, authorization=None):
        """reader: a ChunkReader or RawReader. count(texts, thoughts) -> Usage where the upstream gives none, or None."""
        self.target = target
        self.path = path
        self.body = body                # what was sent, as bytes
        self.sock = None
        self.over = self.settled = False
        self.fresh, self.reused = True, False
        self.wait_s = wait_s
        self._request = target.request_bytes(method, path, body, authorization)
        self._secret = authorization or target.key
        self._chunks = reader
        self._count = count
        self._answer = AnswerReader()
        self._events = None             # EventReader, or a list of bytes for an answer that is one piece
        self._size = 0
        self._marked = False            # it said that it is over
        self._sending = False
        self._texts, self._thoughts = [], []

    @property
    def fd(self):
        return self.sock.fileno()

    # ---- on a worker --------------------------------------------------------------------------

    def send(self, sock, reused):
        """Send the request over a connection. Raises OSError."""
        self.sock, self.reused = sock, reused
        self._sending = True
        sock.settimeout(self.wait_s)
        sock.sendall(self._request)
        sock.setblocking(False)
        self._sending = False

    def interrupt_sending(self):
        """Any thread: send() ends with an OSError, if it is under way."""
        if self._sending:
            self.interrupt()

    def interrupt(self):
        """Any thread: who waits for the connection sees its end."""
        if self.settled or self.sock is None:
            return
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return                      # it has ended already

    # ---- reading ------------------------------------------------------------------------------

    def read(self):
        """The deltas of what came, which may be none. Raises ApiError; UpstreamFault with `fresh` while
        nothing of an answer has come."""
        data = self._receive()
        if data is None:
            return []
        if self.observer is not None:
            self.observer(self, data)
        if not data:
            return self._ended()
        self.fresh = False
        return self._guarded(self._take, data)

    def _receive(self):
        """Bytes, b"" at the end, None when nothing is there."""
        try:
            data = self.sock.recv(UPSTREAM_READ_BYTES)
            if hasattr(self.sock, "pending"):
                while data and self.sock.pending():     # decrypted already: the poller knows nothing of it
                    data += self.sock.recv(UPSTREAM_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as exc:
            if type(exc).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                return None
            return b""                  # a reset is an end like any other
        return data

    def _guarded(self, step, *args):
        try:
            return step(*args)
        except UpstreamFault as fault:
            if fault.fresh:
                raise
            raise self._failure(fault.message)

    def _failure(self, what, status=502):
        self.target.note(what)
        return upstream_failure("The upstream's answer cannot be used: %s." % what, status)

    def _take(self, data):
        answer = self._answer
        bodies = answer.feed(data)
        out = []
        if not self.over:
            for body in bodies:
                self._take_body(body, out)
        if answer.over:
            self._end_body(out)
        elif self.over and not answer.reusable:
            self.close()
        elif self._chunks.finished and self.wait_s > FINISHED_WAIT_S:
            self.wait_s = FINISHED_WAIT_S
        return out

    def _take_body(self, body, out):
        if self._events is None:
            body = body.lstrip()        # a JSON answer may begin with blank lines that kept its connection alive
            if not body:
                return
            if self._answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise UpstreamFault("it is compressed, which was not asked for")
            plain = self._answer.status != 200 or body[:1] in (b"{", b"[", b"<") or self._chunks.__class__ is RawReader
            self._events = [] if plain else EventReader()
        if self._events.__class__ is list:
            self._size += len(body)
            if self._size > MAX_EVENT_BYTES:
                raise UpstreamFault("it is too long")
            if self._answer.status == 200 or self._size < MAX_ERROR_BYTES:
                self._events.append(body)
            return
        self._take_events(self._events.feed(body), out)

    def _take_events(self, events, out):
        for data in events:
            if self.over:
                return
            if data == b"[DONE]" or data == b" [DONE]":
                self._marked = True
                self._finish(out)
                return
            if data.strip():
                self._take_value(self._decoded(data), out)

    def _decoded(self, data):
        text = data.decode("utf-8", "replace")
        try:
            try:
                value, end = _UPSTREAM_JSON.scan_once(text, 0)  # decode() looks for white space around, at half its price
                if end == len(text):
                    return value
            except StopIteration:
                pass                    # it begins with white space, or is none: decode() knows
            return _UPSTREAM_JSON.decode(text)
        except (ValueError, RecursionError):
            raise UpstreamFault("it is not valid JSON")

    def _take_value(self, value, out):
        for delta in self._chunks.feed(value):
            kind = delta.__class__
            if kind is Failure:
                self._redact(delta.error)
                self.over = True
            elif self._count is not None:
                if kind is TextDelta:
                    self._texts.append(delta.text)
                elif kind is ReasoningDelta:
                    self._thoughts.append(delta.text)
                elif kind is ToolCallDelta:
                    self._texts.append((delta.name or "") + delta.arguments)
            out.append(delta)

    def _ended(self):
        """The upstream has closed."""
        if self.over:
            self.close()
            return []
        self._guarded(self._answer.feed_eof)
        out = []
        self._guarded(self._end_body, out)
        return out

    def _end_body(self, out):
        """All of the answer is here."""
        if not self.over:
            status = self._answer.status
            if status != 200 and not 200 <= status < 300:
                raise self._error_answer(status)
            if self._events.__class__ is list:
                whole = b"".join(self._events)
                if whole.startswith(b"<"):
                    raise UpstreamFault("it is a page for people")
                value = self._decoded(whole)
                self._marked = True
                if self._chunks.__class__ is RawReader:
                    out.append(RawAnswer(whole))
                else:
                    self._take_value(value, out)
            elif self._events is not None:
                self._take_events(self._events.feed_eof(), out)
            else:
                raise UpstreamFault("it is empty")
            if not self.over:
                self._finish(out)
        self.close()

    def _finish(self, out):
        """The deltas that end it."""
        self.over = True
        self.wait_s = DRAIN_WAIT_S
        chunks = self._chunks
        if chunks.__class__ is RawReader:
            self.target.note()
            return
        out += chunks.end(self._marked)
        if chunks.failed:
            self.target.note("it broke off in mid-answer")
            return
        self.target.note()
        usage = chunks.usage
        if usage is None and self._count is not None:
            usage = self._count(self._texts, self._thoughts)
        if usage is not None:
            out.append(usage)

    def _error_answer(self, status):
        """What is no success, as an ApiError."""
        whole = b"".join(self._events or ())
        value = None
        if not whole.startswith(b"<"):
            try:
                value = json.loads(whole.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                value = whole[:300].decode("utf-8", "replace").strip() or None
        if 300 <= status < 400:
            return self._failure("it redirects (status %d), which is not followed" % status)
        self.target.note("" if status < 500 else "status %d" % status)
        headers = self._answer.headers
        wait = headers.get("retry-after", "")
        kept = [("retry-after", wait)] if _RETRY_AFTER.match(wait) else []
        error = read_error(status, value, "The upstream answered with status %d." % status, kept)
        self._redact(error)
        return error

    def _redact(self, error):
        """An upstream that repeats its key in a message must not tell it to our clients."""
        for secret in (self._secret, self._secret[7:] if self._secret[:7].lower() == "bearer " else ""):
            if secret:
                for name in ("message", "type", "code", "param"):
                    told = getattr(error, name)
                    if told:
                        setattr(error, name, told.replace(secret, "***"))

    def timed_out(self):
        """Nothing came for wait_s: the ApiError for it, or None when it was only to be tidied away."""
        over, finished = self.over, self._chunks.finished
        self.close()
        if over or finished:
            return None
        self.target.note("it did not answer in time")
        return upstream_failure("The upstream sent nothing for %g s." % self.wait_s, 504, "upstream_timeout")

    def finish_late(self):
        """All choices are finished and nothing more comes: the deltas that end it."""
        out = []
        if not self.over:
            self._marked = True
            self._finish(out)
        return out

    def close(self):
        """Let go of the connection, for the next request where it can be used again. Once."""
        if self.settled:
            return
        self.settled = True
        if self._answer.over and self._answer.reusable:
            self.target.give(self.sock)
        elif self.sock is not None:
            self.sock.close()


def pump_exchange(exchange, cancel):
    """An exchange's (None, delta), read with waits."""
    import select
    while not exchange.over:
        if cancel.is_set():
            return
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(exchange.fd, select.POLLIN)
            ready = poll.poll(exchange.wait_s * 1000)
        else:
            ready = select.select([exchange.fd], [], [], exchange.wait_s)[0]
        if not ready:
            error = exchange.timed_out()
            if error is not None:
                raise error
            for delta in exchange.finish_late():
                yield None, delta
            return
        for delta in exchange.read():
            yield None, delta
