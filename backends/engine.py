"""The loaded engine: how many requests run at once, who waits, and how much slower all of it gets.

In: requests as they begin and end. Out: for each, when it is admitted, and what the seconds of its plan
are on the clock. Everything here runs on the player's thread, but for reserve() and the counts.
"""
import threading
from collections import deque

from api_common import ApiError

# Below the knee a batch costs this share of the whole slow-down; the rest comes between knee and full.
SHARE_BELOW_KNEE = 0.2
LOAD_CURVE_OFF = ((1, 1.0),)


class LoadCurve:
    """How many times longer something takes by the number of requests that run: linear between points.

    points: ascending [(running, factor)]. Beyond the last the last slope goes on.
    """

    def __init__(self, points):
        self._points = [(float(running), float(factor)) for running, factor in points]
        if not self._points or any(a[0] >= b[0] for a, b in zip(self._points, self._points[1:])):
            raise ValueError("a load curve needs points of ascending numbers of running requests")
        if any(not 0 < factor < 1e6 for _, factor in self._points):
            raise ValueError("the factors of a load curve must be more than 0 and less than 1000000")
        self._known = {}            # running -> factor: asked for twice a request

    def factor(self, running):
        known = self._known.get(running)
        if known is None:
            known = self._known[running] = self._work_out(max(1, running))
        return known

    def is_flat(self):
        return all(factor == self._points[0][1] for _, factor in self._points)

    def _work_out(self, running):
        points = self._points
        if running <= points[0][0] or len(points) == 1:
            return points[0][1]
        for low, high in zip(points, points[1:]):
            if running <= high[0]:
                break
        slope = (high[1] - low[1]) / (high[0] - low[0])
        return max(1e-3, low[1] + slope * (running - low[0]))


def knee_curve(load_factor, knee, most):
    """The LoadCurve of --load-factor: 1 for one request, load_factor for `most`, steeper beyond the knee.

    With x = (running - 1) / (most - 1): below the knee 1 + (load_factor - 1) * 0.2 * x / knee, above it
    1 + (load_factor - 1) * (0.2 + 0.8 * (x - knee) / (1 - knee)).
    """
    if most < 2 or load_factor == 1.0:
        return LoadCurve(LOAD_CURVE_OFF)
    at_knee = 1.0 + (load_factor - 1.0) * SHARE_BELOW_KNEE
    return LoadCurve(((1, 1.0), (1 + knee * (most - 1), at_knee), (most, load_factor)))


class StretchedClock:
    """A clock that runs slower as more requests run: reads of plan seconds against real ones."""

    __slots__ = ("_curve", "_since_s", "_reading_s", "factor")

    def __init__(self, curve):
        self._curve = curve
        self._since_s = 0.0         # monotonic time of the last change of the load
        self._reading_s = 0.0       # plan seconds that had passed then
        self.factor = curve.factor(1)       # real seconds for one of a plan, at the load as it is

    def change(self, at_s, running):
        """From at_s on so many run. Changes that come out of order count from the last one."""
        if at_s > self._since_s:
            self._reading_s += (at_s - self._since_s) / self.factor
            self._since_s = at_s
        self.factor = self._curve.factor(running)

    def reading_s(self, at_s):
        return self._reading_s + max(0.0, at_s - self._since_s) / self.factor

    def when_s(self, reading_s):
        """Monotonic time of a reading, if the load stays as it is; of the last change for what is past."""
        return self._since_s + max(0.0, reading_s - self._reading_s) * self.factor


class Engine:
    """Seats for max_seqs running requests (0: any number); who finds none waits, first come first served.

    max_waiting: more are refused with 429; None for any number. prefill_curve, decode_curve: LoadCurve.
    running, waiting: how many there are now; n choices count n.
    """

    def __init__(self, max_seqs=0, max_waiting=None, prefill_curve=None, decode_curve=None):
        self.max_seqs = max_seqs
        self.running = 0
        self.tokens = 0             # of all that run: prompts and what they will say
        self._max_waiting = max_waiting
        self._queue = deque()
        self._lock = threading.Lock()   # guards the two below
        self._coming_seqs = 0           # of accepted requests that are not here yet and found room to run
        self._coming_waiters = 0        # and how many found room to wait
        self._come = deque()            # (seqs, waiters) of those that are not coming any more
        flat = LoadCurve(LOAD_CURVE_OFF)
        self.prefill = StretchedClock(prefill_curve or flat)
        self.decode = StretchedClock(decode_curve or flat)

    @property
    def waiting(self):
        return len(self._queue)

    def busy(self):
        """Requests that run, or will before one that comes now."""
        return self.running + len(self._queue)

    def reserve(self, seqs):
        """A Place for a request of so many choices, before it is planned: who is accepted comes in. None where any
        number may wait. Any thread. Raises ApiError 429 when it would have to wait and the queue is full."""
        if self._max_waiting is None:
            return None
        with self._lock:
            while self._come:
                runs, waits = self._come.popleft()
                self._coming_seqs -= runs
                self._coming_waiters -= waits
            running, waiting = self.running + self._coming_seqs, len(self._queue) + self._coming_waiters
            if not waiting and (not self.max_seqs or not running or running + seqs <= self.max_seqs):
                self._coming_seqs += seqs
                return Place(self._come, seqs, 0)
            if waiting < self._max_waiting:
                self._coming_waiters += 1
                return Place(self._come, 0, 1)
        raise ApiError(429, "The engine is overloaded: %d requests are running and %d are waiting, as many as may. "
                            "Please retry." % (running, waiting),
                       type="requests", code="rate_limit_exceeded", headers=[("retry-after", "1")])

    def _fits(self, seqs):
        return not self._queue and (not self.max_seqs or not self.running or self.running + seqs <= self.max_seqs)

    def enter(self, seat):
        """A request has come: its seat is admitted at once, or when there is room."""
        if self._fits(seat.seqs):
            self._admit(seat, seat.arrived_s)
        else:
            self._queue.append(seat)
        if seat.place is not None:
            seat.place.give_up()

    def leave(self, seat, at_s):
        """A request is over, or its client has left."""
        if seat.left:
            return
        seat.left = True
        if seat.admitted_s is None:
            try:
                self._queue.remove(seat)
            except ValueError:
                return              # it never came in
            self._fill(at_s)
            return
        self.tokens -= seat.tokens
        self._set_running(self.running - seat.seqs, at_s)
        self._fill(at_s)

    def _fill(self, at_s):
        queue = self._queue
        while queue and (not self.max_seqs or not self.running or self.running + queue[0].seqs <= self.max_seqs):
            self._admit(queue.popleft(), at_s)

    def _admit(self, seat, at_s):
        self.tokens += seat.tokens
        self._set_running(self.running + seat.seqs, at_s)
        seat.admit(at_s)

    def _set_running(self, running, at_s):
        self.running = running
        self.prefill.change(at_s, running)
        self.decode.change(at_s, running)


class Place:
    """A promise of Engine.reserve(), until the request comes in or is given up in another way."""

    __slots__ = ("_come", "_counts")

    def __init__(self, come, seqs, waiters):
        self._come = come
        self._counts = seqs, waiters

    def give_up(self):
        """Once, whoever says so. Takes no lock, as it may be the collector."""
        counts, self._counts = self._counts, None
        if counts is not None:
            self._come.append(counts)

    __del__ = give_up


class Seat:
    """One request's seat in the engine. place: what was reserved for it, or None. arrived_s, admitted_s: monotonic; admitted_s None while it waits.

    prefill_s: plan seconds up to the first token; what follows is decoding. tokens: that it holds in the engine's cache
    while it runs. Its plan counts from its admission.
    """

    __slots__ = ("engine", "arrived_s", "admitted_s", "prefill_s", "seqs", "tokens", "left", "on_admit", "place",
                 "_prefill_from", "_decode_from")

    def __init__(self, engine, arrived_s, prefill_s, seqs, tokens=0, place=None):
        self.engine = engine
        self.arrived_s = arrived_s
        self.admitted_s = None
        self.prefill_s = prefill_s
        self.seqs = seqs
        self.tokens = tokens
        self.left = False
        self.on_admit = None
        self.place = place
        self._prefill_from = self._decode_from = None

    @property
    def queue_s(self):
        """Seconds that it waited; None while it does."""
        return None if self.admitted_s is None else self.admitted_s - self.arrived_s

    def admit(self, at_s):
        self.admitted_s = max(at_s, self.arrived_s)
        self._prefill_from = self.engine.prefill.reading_s(self.admitted_s)
        if self.on_admit is not None:
            self.on_admit()

    def when_s(self, plan_s, now):
        """Monotonic time at which so many seconds of its plan have passed, if the load stays as it is."""
        engine = self.engine
        if self._decode_from is None:
            first_s = max(self.admitted_s, engine.prefill.when_s(self._prefill_from + min(plan_s, self.prefill_s)))
            if plan_s <= self.prefill_s:
                return first_s
            if first_s > now:       # still in its prefill: decoding as fast as one does now
                return first_s + (plan_s - self.prefill_s) * engine.decode.factor
            self._decode_from = engine.decode.reading_s(first_s)
        return max(self.admitted_s, engine.decode.when_s(self._decode_from + plan_s - self.prefill_s))
