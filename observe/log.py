"""The log: lines from any thread, written to stderr in batches by one writer.

A request costs its thread an append; its line is formatted by the writer's thread, and only when the
level asks for it. Keys never reach it.
"""
import json
import sys
import threading
import time
from collections import deque

LOG_BATCH_S = 0.1                   # how long lines may wait for the writer
LOG_BODY_CHARS = 4000               # how much of a request's body is logged
# a notice is what a person or a script that started the server waits for: it is always written
_LOG_RANKS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "notice": 4}


class RequestRecord:
    """What is logged of one request when it is over.

    tokens: (prompt, completion) or None. ttft_s, duration_s: floats or None. ended: "completed",
    "client left" or an error's message. body: bytes or None.
    """

    __slots__ = ("method", "path", "status", "model", "tokens", "ttft_s", "duration_s", "ended", "body")

    def __init__(self, method, path, status, model, tokens, ttft_s, duration_s, ended, body):
        self.method = method
        self.path = path
        self.status = status
        self.model = model
        self.tokens = tokens
        self.ttft_s = ttft_s
        self.duration_s = duration_s
        self.ended = ended
        self.body = body


class Log:
    """level: the lowest that is written. form: "text" or "json". stream: where to; None is stderr.
    secrets: texts that are masked wherever they turn up."""

    def __init__(self, level="info", form="text", stream=None, secrets=(), wall=time.time):
        self._rank = _LOG_RANKS[level]
        self._json = form == "json"
        self._stream = stream
        self._secrets = [secret for secret in secrets if secret]
        self._wall = wall
        self._waiting = deque()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._idle = True               # the writer sleeps until _wake is set
        self._thread = None
        self._lock = threading.Lock()   # guards _thread, and the stream against close()
        self.wants_requests = self._rank <= _LOG_RANKS["info"]
        self.wants_bodies = self._rank <= _LOG_RANKS["debug"]

    def write(self, level, message):
        """One message, perhaps of several lines (a traceback)."""
        if _LOG_RANKS[level] >= self._rank:
            self._add((self._wall(), level, message))

    def request(self, record):
        """A finished request; call it only when wants_requests."""
        self._add((self._wall(), "info", record))

    def _add(self, entry):
        self._waiting.append(entry)
        if self._idle:
            self._idle = False
            self._wake.set()
            if self._thread is None:
                with self._lock:
                    if self._thread is None:
                        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                        self._thread.start()

    def _run(self):
        while not self._closed.is_set():
            self._wake.wait()
            self._wake.clear()
            self._closed.wait(LOG_BATCH_S)      # let a batch gather: one write for all of it
            self._idle = True           # before the last look, so that no line waits unseen
            self.flush()

    def close(self):
        """Write what waits and end the writer."""
        self._closed.set()
        self._wake.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        self.flush()

    def flush(self):
        """Write all that waits, on the caller's thread."""
        with self._lock:
            lines = []
            while self._waiting:
                lines.append(self._line(*self._waiting.popleft()))
            if lines:
                text = "".join(lines)
                for secret in self._secrets:
                    text = text.replace(secret, "***")
                stream = self._stream or sys.stderr
                stream.write(text)
                stream.flush()

    def _line(self, when, level, content):
        record = content.__class__ is RequestRecord
        if self._json:
            value = {"time": round(when, 3), "level": level}
            if record:
                value.update(self._record_fields(content))
            else:
                value["message"] = content
            return json.dumps(value) + "\n"
        if record:
            content = self._record_text(content)
        return "mockturtle: %s%s\n" % ("" if level in ("info", "notice") else level + ": ", content)

    @staticmethod
    def _record_fields(record):
        fields = {"event": "request", "method": record.method, "path": record.path,
                  "status": record.status, "ended": record.ended,
                  "duration_ms": round(record.duration_s * 1000, 1)}
        if record.model is not None:
            fields["model"] = record.model
        if record.tokens is not None:
            fields["prompt_tokens"], fields["completion_tokens"] = record.tokens
        if record.ttft_s is not None:
            fields["ttft_ms"] = round(record.ttft_s * 1000, 1)
        if record.body is not None:
            fields["body"] = record.body[:LOG_BODY_CHARS].decode("utf-8", "replace")
        return fields

    @staticmethod
    def _record_text(record):
        parts = [record.method, record.path[:200], str(record.status)]
        if record.model is not None:
            parts.append("model=" + record.model[:80])
        if record.tokens is not None:
            parts.append("tokens=%d+%d" % record.tokens)
        if record.ttft_s is not None:
            parts.append("ttft=%.1fms" % (record.ttft_s * 1000))
        parts += ["time=%.1fms" % (record.duration_s * 1000), record.ended]
        text = " ".join(parts).replace("\r", " ").replace("\n", " ")
        if record.body is not None:
            text += " body=" + record.body[:LOG_BODY_CHARS].decode("utf-8", "replace").replace("\n", " ")
        return text
