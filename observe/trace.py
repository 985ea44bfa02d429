"""Ground truth about time: what was planned, what was sent when, and how wrong the server is just now.

In: finished answers and the lateness of all frames. Out: JSON lines in a file, the last answers for the control
path, and the timing error of the last seconds.
"""
import json
import threading
from collections import deque

from observe.metrics import LATENESS_STEP_S

TRACES_KEPT = 1000                  # finished answers that the control path can give
RECENT_S = 10.0                     # the load "just now" is that of so many seconds at least


class TimingTrace:
    """The traces of finished answers, each a dict of JSON values.

    path: "memory", or a file that lines are appended to. Raises ValueError when it cannot be opened. add() may be
    called on any thread and never waits for the disk: a thread of its own writes.
    """

    def __init__(self, path, on_fault, keep=TRACES_KEPT):
        """on_fault(OSError): a write failed; once, then nothing more is written."""
        self.kept = deque(maxlen=keep)
        self.count = 0
        self._on_fault = on_fault
        self._file = self._thread = None
        if path != "memory":
            try:
                self._file = open(path, "a", encoding="utf-8")
            except OSError as exc:
                raise ValueError("--timing-trace: cannot write %s: %s" % (path, exc.strerror or exc))
            self._lines = deque()
            self._ready = threading.Event()
            self._closing = False
            self._thread = threading.Thread(target=self._write, name="timing-trace", daemon=True)
            self._thread.start()

    def add(self, trace):
        self.kept.append(trace)
        self.count += 1
        if self._thread is not None:
            self._lines.append(trace)
            self._ready.set()

    def newest(self, limit):
        """The last `limit` traces, newest first."""
        kept = list(self.kept)
        return kept[:-limit - 1:-1]

    def close(self):
        """Write what is left and close the file."""
        if self._thread is not None:
            self._closing = True
            self._ready.set()
            self._thread.join()

    def _write(self):
        lines, file = self._lines, self._file
        try:
            while not self._closing or lines:
                self._ready.wait()
                self._ready.clear()
                while lines:
                    file.write(json.dumps(lines.popleft(), separators=(",", ":")) + "\n")
                file.flush()
        except OSError as exc:
            self._thread = None         # add() leaves no more lines
            lines.clear()
            self._on_fault(exc)
        finally:
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
