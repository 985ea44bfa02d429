"""What the server counts of itself: requests, ends, tokens and how late its frames were.

Written by the loop, the pacer and workers, read by the shutdown summary and the metrics page.
"""
import threading
from bisect import bisect_left
from itertools import count

# Upper bounds of the lateness buckets in ms: fine where a frame should be, coarse above.
LATENESS_BOUNDS_MS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
                      50.0, 75.0, 100.0, 250.0, 500.0, 1000.0)
LATENESS_STEP_S = 0.00025           # the pacer's fine histogram: one slot a quarter millisecond
LATENESS_SLOTS = 4002               # 1 s of them, the first for what is not late, one for the rest


class Lateness:
    """Every timed frame's lateness (actual minus due), written by the pacer alone.

    slots: list of counts; slot k counts frames late by (k-1)..k quarter milliseconds, slot 0
    those that were not late at all, the last those over a second. No lock: one writer, and
    readers take a copy.
    """

    def __init__(self):
        self.slots = [0] * LATENESS_SLOTS

    def quantile_ms(self, share):
        """Upper bound of the slot in which this share of frames lies; 0.0 without frames."""
        slots = list(self.slots)
        want, seen = share * sum(slots), 0
        if not want:
            return 0.0
        for slot, frames in enumerate(slots):
            seen += frames
            if seen >= want:
                return slot * LATENESS_STEP_S * 1000
        return LATENESS_SLOTS * LATENESS_STEP_S * 1000

    def frames(self):
        return sum(self.slots)

    def buckets(self):
        """[(upper bound in ms, count)] by LATENESS_BOUNDS_MS, the last bound None."""
        totals = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        for slot, frames in enumerate(list(self.slots)):
            if frames:
                totals[bisect_left(LATENESS_BOUNDS_MS, slot * LATENESS_STEP_S * 1000)] += frames
        return list(zip(LATENESS_BOUNDS_MS + (None,), totals))


class Metrics:
    """Counters by name. add() is the only way to change one."""

    def __init__(self):
        self._lock = threading.Lock()       # guards _counts: += on a shared dict loses counts
        self._counts = {}
        self.lateness = Lateness()
        self._requests = count()
        self._looks = 0             # steps of _requests that were no requests
        # one step of a C iterator is atomic, so this counter needs no lock: 0.03 us for 0.25
        self.count_request = self._requests.__next__

    def add(self, name, amount=1):
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def add_completion(self, tokens):
        """An answer of so many tokens is complete: two counters for one lock."""
        with self._lock:
            counts = self._counts
            counts["completions"] = counts.get("completions", 0) + 1
            counts["completion_tokens"] = counts.get("completion_tokens", 0) + tokens

    def get(self, name):
        return self.snapshot().get(name, 0)

    def snapshot(self):
        with self._lock:
            counts = dict(self._counts)
            # a look costs a step, which the looks so far are subtracted for
            counts["requests"] = next(self._requests) - self._looks
            self._looks += 1
        return counts
