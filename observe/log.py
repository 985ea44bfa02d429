"""The log: lines from any thread, written to stderr in batches by one writer.

A request's line is one format operation on the thread that served it, and none when the level does not
ask for it; formatting on the writer's thread made two threads fight for the GIL and cost a third of the
requests per second. Keys never reach the log.
"""
import json
import sys
import threading
import time
from collections import deque

LOG_BATCH_S = 0.1                   # how long lines may wait for the writer
LOG_LINES_WAITING = 50000           # more than these are counted and dropped
LOG_BODY_CHARS = 4000               # how much of a request's body is logged
# a notice is what a person or a script that started the server waits for: it is always written
_LOG_RANKS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "notice": 4}


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
        self._dropped = 0
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._idle = True               # the writer sleeps until _wake is set
        self._thread = None
        self._lock = threading.Lock()   # guards _thread
        self.wants_requests = self._rank <= _LOG_RANKS["info"]
        self.wants_bodies = self._rank <= _LOG_RANKS["debug"]

    def write(self, level, message):
        """One message, perhaps of several lines (a traceback)."""
        if _LOG_RANKS[level] >= self._rank:
            message = self._masked(message)
            if self._json:
                line = json.dumps({"time": round(self._wall(), 3), "level": level, "message": message})
            else:
                line = "mockturtle: %s%s" % ("" if level in ("info", "notice") else level + ": ", message)
            self._add(line + "\n")

    def request(self, method, path, status, model, usage, ttft_s, duration_s, ended, body=None):
        """A finished request; call it only when wants_requests. Secrets are masked before anything is cut
        or escaped.

        model: str or None. usage: a Usage or None. ttft_s: of a stream, or None. ended: "completed",
        "client left" or an error's message. body: bytes, when wants_bodies.
        """
        if body is not None:
            body = self._masked(body.decode("utf-8", "replace"))[:LOG_BODY_CHARS]
        if self._secrets:
            path, ended = self._masked(path), self._masked(ended)
            model = None if model is None else self._masked(model)
        if self._json:
            self._add(self._json_line(method, path, status, model, usage, ttft_s, duration_s, ended, body))
            return
        if usage is None:
            line = f"mockturtle: {method} {path} {status} time={duration_s * 1000:.1f}ms {ended}"
        else:
            ttft = "" if ttft_s is None else f" ttft={ttft_s * 1000:.1f}ms"
            counted = "(counted)" if usage.counted_here else ""
            line = f"mockturtle: {method} {path} {status} model={model} tokens={usage[0]}+{usage[1]}{counted}{ttft} " \
                   f"time={duration_s * 1000:.1f}ms {ended}"
        if body is not None:
            line += " body=" + body
        if not line.isprintable():
            line = line.encode("unicode_escape").decode("ascii")    # no request writes lines of its own
        self._add(line + "\n")

    def _masked(self, text):
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _add(self, entry):
        if len(self._waiting) >= LOG_LINES_WAITING:
            self._dropped += 1
            return
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
            thread.join(1.0)            # a reader that does not read must not keep the process alive
            if thread.is_alive():
                return
        self.flush()

    def flush(self):
        """Write all that waits, on the caller's thread."""
        lines = []
        try:
            while True:                     # another thread may be taking lines as well
                lines.append(self._waiting.popleft())
        except IndexError:
            if not lines:
                return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self.write("warning", "%d log lines were dropped: nobody reads them" % dropped)
        text = "".join(lines)
        stream = self._stream or sys.stderr
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            self._dropped += len(lines)     # the reader has gone: the server serves on, silently

    def _json_line(self, method, path, status, model, usage, ttft_s, duration_s, ended, body):
        fields = {"time": round(self._wall(), 3), "level": "info", "event": "request", "method": method,
                  "path": path, "status": status, "ended": ended, "duration_ms": round(duration_s * 1000, 1)}
        if model is not None:
            fields["model"] = model
        if usage is not None:
            fields["prompt_tokens"], fields["completion_tokens"] = usage[0], usage[1]
            if usage.counted_here:
                fields["tokens_counted_here"] = True
        if ttft_s is not None:
            fields["ttft_ms"] = round(ttft_s * 1000, 1)
        if body is not None:
            fields["body"] = body
        return json.dumps(fields) + "\n"
