"""Ground truth about time: what was planned, what was sent when, and how wrong the server is just now.

In: finished answers and the lateness of all frames. Out: JSON lines in a file, the last answers for the control
path, and the timing error of the last seconds.
"""
import json
import threading
from collections import deque

from observe.metrics import LATENESS_STEP_S

TRACES_KEPT = 1000                  # finished answers that the control path can give
TRACE_BYTES_KEPT = 32 << 20         # of their JSON, some 20 bytes a frame: long answers are fewer
_TIMES_AT_ONCE = 500                # 0.3 ms
RECENT_S = 10.0                     # the load "just now" is that of so many seconds at least


class TimingTrace:
    """The traces of finished answers, each a line of JSON.

    path: "memory", or a file that lines are appended to. Raises ValueError when it cannot be opened. add() may be
    called on any thread and waits for nothing: a thread of its own makes the lines and writes them. count: of
    traces so far.
    """

    def __init__(self, path, on_fault, breathe=None, keep=TRACES_KEPT, keep_bytes=TRACE_BYTES_KEPT):
        """on_fault(OSError): a write failed; once, then nothing more is written. breathe(): called now and then on
        the writing thread, to let others run; or None."""
        self.count = 0
        self._kept = deque(maxlen=keep)
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._on_fault = on_fault
        self._breathe = breathe
        self._file = None
        if path != "memory":
            try:
                self._file = open(path, "ab")
            except OSError as exc:
                raise ValueError("--timing-trace: cannot write %s: %s" % (path, exc.strerror or exc))
        self._coming = deque()
        self._ready = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="timing-trace", daemon=True)
        self._thread.start()

    def add(self, trace, times):
        """trace: dict of JSON values. times: {name: list of seconds}, which the line gives in milliseconds."""
        self._coming.append((trace, times))
        self._ready.set()

    def newest(self, limit):
        """The last `limit` traces, newest first, as JSON bytes."""
        kept = list(self._kept)
        return kept[:-limit - 1:-1]

    def close(self):
        """Write what is left and close the file."""
        self._closing = True
        self._ready.set()
        self._thread.join()

    # ---- on the writing thread ----------------------------------------------------------------

    def _run(self):
        while not self._closing or self._coming:
            self._ready.wait()
            self._ready.clear()
            while self._coming:
                line = self._line(*self._coming.popleft())
                self._write(line + b"\n")
                self._keep(line)
                self.count += 1
            self._write(None)
        file, self._file = self._file, None
        if file is not None:
            self._close(file)

    def _line(self, trace, times):
        parts = [json.dumps(trace, separators=(",", ":"))[:-1]]
        for name, seconds in times.items():
            parts.append(',"%s":[' % name)
            for at in range(0, len(seconds), _TIMES_AT_ONCE):
                parts.append("," if at else "")
                parts.append(",".join([repr(trace_ms(each)) for each in seconds[at:at + _TIMES_AT_ONCE]]))
                if self._breathe is not None:
                    self._breathe()
            parts.append("]")
        parts.append("}")
        return "".join(parts).encode("ascii")

    def _keep(self, line):
        kept = self._kept
        if len(kept) == kept.maxlen:
            self._kept_bytes -= len(kept.popleft())
        kept.append(line)
        self._kept_bytes += len(line)
        while self._kept_bytes > self._keep_bytes and len(kept) > 1:
            self._kept_bytes -= len(kept.popleft())

    def _write(self, line):
        """A line, or None for what is still in the buffer."""
        file = self._file
        if file is None:
            return
        try:
            if line is None:
                file.flush()
            else:
                file.write(line)
        except OSError as exc:
            self._file = None
            self._on_fault(exc)
            try:
                file.close()
            except OSError:
                pass                    # what was left in the buffer; it has been said

    def _close(self, file):
        try:
            file.close()
        except OSError as exc:
            self._on_fault(exc)


def trace_ms(seconds):
    """Seconds as a trace's milliseconds; None for what never came."""
    return None if seconds is None else round(seconds * 1000, 3)


class TimingError:
    """How late frames are: since the start, and in the last seconds.

    roll() is to be called about once a second; lateness: observe.metrics.Lateness.
    """

    def __init__(self, lateness, clock):
        self._lateness = lateness
        self._clock = clock
        self._marks = deque([(clock.monotonic(), [0] * len(lateness.slots))])

    def roll(self):
        """Remember the counts, every fifth part of RECENT_S."""
        now, marks = self._clock.monotonic(), self._marks
        if now - marks[-1][0] >= RECENT_S / 5:
            marks.append((now, list(self._lateness.slots)))
            while len(marks) > 2 and now - marks[1][0] >= RECENT_S:
                marks.popleft()

    def report(self):
        """{"since_start": error, "recent": error with its "seconds"}; an error is {"frames", "p50_ms", "p90_ms",
        "p99_ms", "max_ms"}, upper bounds of quarter milliseconds, 0.0 where nothing was late."""
        slots = list(self._lateness.slots)
        since_s, before = self._marks[0]
        recent = lateness_summary([now - then for now, then in zip(slots, before)])
        recent["seconds"] = round(self._clock.monotonic() - since_s, 3)
        return {"since_start": lateness_summary(slots), "recent": recent}


def lateness_summary(slots):
    """The error object of TimingError.report() for a list of counts as Lateness.slots."""
    frames = sum(slots)
    found = {"frames": frames}
    wanted = [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("max_ms", 1.0)]
    seen = 0
    for slot, count in enumerate(slots):
        seen += count
        while wanted and count and seen >= wanted[0][1] * frames:
            found[wanted.pop(0)[0]] = slot * LATENESS_STEP_S * 1000
    for name, _ in wanted:
        found[name] = 0.0
    return found
