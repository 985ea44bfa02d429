"""What the server counts of itself: requests, ends, tokens, when they went out and how late frames were.

Written by the loop, the pacer and workers, read by the shutdown summary and the metrics page. What is
counted per request is put on a list and worked into the histograms many at a time (0.6 us a request for 2.6).
"""
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import compress, count
from operator import add, mul, sub
from time import monotonic

# Upper bounds of the lateness buckets in ms: fine where a frame should be, coarse above.
LATENESS_BOUNDS_MS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
                      50.0, 75.0, 100.0, 250.0, 500.0, 1000.0)
LATENESS_STEP_S = 0.00025           # the pacer's fine histogram: one slot a quarter millisecond
LATENESS_SLOTS = 4002               # 1 s of them, the first for what is not late, one for the rest

GAP_STEP_S = 0.00025                # a slot of the gaps between tokens
GAP_SLOTS = 2001                    # up to half a second; the rare longer ones are looked at one by one
SENT_NEVER = -10 ** 15              # a slot of time from which every gap is a long one

# Bounds as vLLM has them (its v1/metrics/loggers.py), so that its dashboards and queries fit.
TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
                 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
ITL_BOUNDS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                40.0, 80.0)
REQUEST_BOUNDS_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
                    240.0, 480.0, 960.0, 1920.0, 7680.0)
CHOICES_BOUNDS = (1, 2, 5, 10, 20)

MODEL_NAMES = 10                    # names of clients' own that are counted apart; --model's always are
MODEL_NAME_CHARS = 200              # a longer one is not
OTHER_NAMES = "other"               # stands for all that are not counted apart
KIND_NAMES = 50                     # the same for add_labelled()
COUNTED_AT_ONCE = 256               # ends of requests that are worked in together: 0.2 ms
KNOWN_METHODS = frozenset(("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "WS"))
FINISH_REASONS = ("stop", "length", "abort", "error")       # vLLM's, of those that occur here
_VLLM_REASONS = {"tool_calls": "stop", "function_call": "stop"}


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
        counts, _ = self.histogram()
        return list(zip(LATENESS_BOUNDS_MS + (None,), counts))

    def histogram(self):
        """([count per bound of LATENESS_BOUNDS_MS and above], sum in seconds)."""
        slots = list(self.slots)
        counts = slot_counts(slots, [bound / 1000.0 for bound in LATENESS_BOUNDS_MS], LATENESS_STEP_S)
        late = sum(slots) - slots[0]
        return counts, (_slots_sum(slots) - late / 2) * LATENESS_STEP_S


def slot_counts(slots, bounds_s, step_s):
    """A list of counts per slot k, which stands for k * step_s, as counts per bound and above the last."""
    counts, begin = [], 0
    for bound in bounds_s:
        end = int(bound / step_s + 1.000001)
        counts.append(sum(slots[begin:end]))
        begin = end
    counts.append(sum(slots[begin:]))
    return counts


def _slots_sum(slots):
    """The sum of k * slots[k]: most are 0."""
    return sum(map(mul, compress(range(len(slots)), slots), filter(None, slots)))


class Histogram:
    """Counts of values up to each bound, and above the last; and their sum. Its owner has the lock."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def add(self, value, times=1):
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add_all(self, values):
        """values: any number of them, iterable."""
        values = sorted(values)
        if not values:
            return
        if values[0] == values[-1]:
            self.add(values[0], len(values))
            return
        counts, begin = self.counts, 0
        for at, bound in enumerate(self.bounds):
            end = bisect_right(values, bound, begin)
            counts[at] += end - begin
            begin = end
            if begin == len(values):
                break
        counts[-1] += len(values) - begin
        self.sum += sum(values)


class TokenTimes:
    """When tokens of streams went out, by model; written by the pacer alone.

    gaps: counts per slot of GAP_STEP_S between two sends of a stream with tokens in them. long: Histogram of the
    longer ones. ttfts: list of seconds that waits to be worked in; workers add to it as well.
    """

    __slots__ = ("gaps", "long", "ttfts")

    def __init__(self):
        self.gaps = [0] * GAP_SLOTS
        self.long = Histogram(ITL_BOUNDS_S)
        self.ttfts = []


# What ModelStats.ended takes of a request that finished: a plain tuple in this order, as it is made for each.
# usage: (prompt, completion, _, cached) tokens. limit: its max_tokens or None. queue_s, first_s, e2e_s: seconds up to
# its seat, its first token, its end; decode_s: from the first token to the last. reason: of its first choice. ttft_s:
# first_s of a plain answer that has tokens, else None. apart: tokens that came with a gap of their own, and the
# first. gaps: of a plain answer, as planned() has them.
ENDED_FIELDS = ("usage", "choices", "limit", "queue_s", "first_s", "decode_s", "e2e_s", "reason", "ttft_s", "apart",
                "gaps")


class ModelStats:
    """What is counted of one model's requests. Its Metrics has the lock, but for `times` and what waits in `ended`."""

    def __init__(self, token_bounds):
        self.times = TokenTimes()
        self.ended = []             # ENDED_FIELDS of requests that wait; anybody appends, see Metrics.work_in()
        self._plan = (None, 0, None)    # the last one that planned() looked at
        self.planned_gaps = [0] * GAP_SLOTS
        self.planned_long = Histogram(ITL_BOUNDS_S)
        self.reasons = dict.fromkeys(FINISH_REASONS, 0)
        self.finished = self.finished_tokens = self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.ttft = Histogram(TTFT_BOUNDS_S)
        self.tpot = Histogram(ITL_BOUNDS_S)
        self.e2e = Histogram(REQUEST_BOUNDS_S)
        self.queue = Histogram(REQUEST_BOUNDS_S)
        self.prefill = Histogram(REQUEST_BOUNDS_S)
        self.decode = Histogram(REQUEST_BOUNDS_S)
        self.inference = Histogram(REQUEST_BOUNDS_S)
        self.prompt = Histogram(token_bounds)
        self.computed = Histogram(token_bounds)
        self.completion = Histogram(token_bounds)
        self.longest = Histogram(token_bounds)
        self.limit = Histogram(token_bounds)
        self.choices = Histogram(CHOICES_BOUNDS)

    def planned(self, dues, count):
        """(seconds to the first token, from there to the last, gaps) of a plan of `count` tokens.

        gaps: pairs of a slot of GAP_STEP_S, which may be beyond GAP_SLOTS, and how many gaps it has. Plans without
        noise share their dues, so the last one is kept: 0.1 us for 0.9.
        """
        plan = self._plan           # replaced whole, so no lock
        if plan[0] is dues and plan[1] == count:
            return plan[2]
        found = dues[0], dues[count - 1] - dues[0], _planned_gaps(dues, count)
        self._plan = dues, count, found
        return found

    def work_in(self):
        """Put what waits into the histograms. Others may append meanwhile, but nobody else takes."""
        ttfts, ended = self.times.ttfts, self.ended
        values = ttfts[:]
        del ttfts[:len(values)]
        entries = ended[:]
        if entries:
            del ended[:len(entries)]
            values += self._work_in(entries)
        self.ttft.add_all(values)

    def _work_in(self, entries):
        usages, choices, limits, queue, first, decode, e2e, reasons, ttfts, apart, gaps = zip(*entries)
        prompt, completion, _, cached = zip(*[usage[:4] for usage in usages])
        told = sum(completion)
        self.finished += len(entries)
        self.finished_tokens += told
        self.completion_tokens += told
        self.prompt_tokens += sum(prompt)
        self.cached_tokens += sum(cached)
        for reason, times in Counter(reasons).items():
            reason = _VLLM_REASONS.get(reason, reason)
            self.reasons[reason] = self.reasons.get(reason, 0) + times
        for (tokens, alone, pairs), times in Counter(zip(completion, apart, gaps)).items():
            self._add_gaps(tokens, alone, pairs, times)
        prefill, inference = first, map(add, first, decode)
        if any(queue):
            prefill, inference = map(sub, first, queue), map(sub, inference, queue)
        self.prefill.add_all(prefill)
        self.inference.add_all(inference)
        self.tpot.add_all([seconds / (tokens - 1) if tokens > 1 else 0.0 for seconds, tokens in zip(decode, completion)])
        self.computed.add_all(map(sub, prompt, cached) if any(cached) else prompt)
        self.longest.add_all(completion if choices.count(1) == len(choices) else
                             [-(-tokens // number) for tokens, number in zip(completion, choices)])
        self.limit.add_all(filter(None, limits))
        for histogram, values in ((self.prompt, prompt), (self.completion, completion), (self.choices, choices),
                                  (self.queue, queue), (self.decode, decode), (self.e2e, e2e)):
            histogram.add_all(values)
        return [seconds for seconds, tokens in zip(ttfts, completion) if seconds is not None and tokens]

    def _add_gaps(self, tokens, apart, pairs, times):
        """The gaps of so many alike answers, but for those of streams that the pacer has counted."""
        slots = self.planned_gaps
        if tokens > apart:
            slots[0] += (tokens - apart if apart else tokens - 1) * times
        for slot, number in pairs:
            if not slot and apart > tokens:     # a prompt that was said again is no tokens of the answer
                number = max(0, number - (apart - tokens))
            if slot < GAP_SLOTS:
                slots[slot] += number * times
            else:
                self.planned_long.add(slot * GAP_STEP_S, number * times)


def _planned_gaps(dues, count):
    if count < 2:
        return ()
    gap_s = dues[1] - dues[0]
    if abs(dues[count - 1] - dues[count - 2] - gap_s) < 1e-7 \
            and abs(dues[count - 1] - dues[0] - gap_s * (count - 1)) < 1e-5:
        return ((int(gap_s / GAP_STEP_S + 0.5), count - 1),)       # all alike, as without noise
    slots = {}
    for before, after in zip(dues[:count], dues[1:count]):
        slot = int((after - before) / GAP_STEP_S + 0.5)
        slots[slot] = slots.get(slot, 0) + 1
    return tuple(slots.items())


class StepCounter:
    """Counts without a lock: one step of a C iterator is atomic, and 0.03 us for 0.25. step(): count one.
    value() costs a step, which the looks so far are subtracted for: one thread at a time."""

    __slots__ = ("step", "_looks")

    def __init__(self):
        self.step = count().__next__
        self._looks = 0

    def value(self):
        value = self.step() - self._looks
        self._looks += 1
        return value


def token_bounds(most):
    """1, 2, 5, 10, 20, 50 and so on up to `most`."""
    bounds, power = [], 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return tuple(bounds)
            bounds.append(digit * power)
        power *= 10


class Metrics:
    """All counters. models: names that are always counted apart; the first stands for the engine. max_model_len:
    the largest bound of a number of tokens. now: the monotonic clock.

    engine: None, or an object with `running` and `waiting`: how many requests (sequences) there are of each.
    cache_stats(): None, or a backends.prefix_cache.CacheStats; block_tokens: of its blocks. Set by the server.
    gauges(): what the page asks at each scrape, set by the server: {name: number}, see prometheus.py.
    """

    engine = None
    cache_stats = staticmethod(lambda: None)
    block_tokens = 16
    gauges = staticmethod(dict)

    def __init__(self, models=("mock-model",), max_model_len=1048576, now=monotonic):
        self._lock = threading.Lock()       # guards what follows, but for the steps of counters
        self._counts = {}
        self._labelled = {}                 # (name, kind) -> count
        self._answers = {}                  # (route, method, status) -> StepCounter
        self._requests, self._begun, self._ended = StepCounter(), StepCounter(), StepCounter()
        self.models = {}                    # model's name -> ModelStats; see stats_of()
        self.token_bounds = token_bounds(max_model_len)
        self._listed = frozenset(models)
        self.engine_name = models[0]
        self.now = now
        self.lateness = Lateness()
        self.count_request = self._requests.step    # one was read
        self.begun, self.ended = self._begun.step, self._ended.step     # a generation that takes time
        self.stats_of(self.engine_name)

    def add(self, name, amount=1):
        """One of the counters that prometheus.py lists."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def add_labelled(self, name, kind, amount=1):
        """A counter by kind (str), of those that prometheus.py lists. Kinds beyond KIND_NAMES are "other"."""
        with self._lock:
            key = (name, kind)
            if key not in self._labelled and sum(each == name for each, _ in self._labelled) >= KIND_NAMES:
                key = (name, OTHER_NAMES)
            self._labelled[key] = self._labelled.get(key, 0) + amount

    def count_answer(self, route, method, status):
        """A request has its answer. route: its template, or None for one that nothing here answers."""
        counter = self._answers.get((route, method, status))
        if counter is None:
            key = (route, method if method in KNOWN_METHODS else OTHER_NAMES, status)
            with self._lock:
                counter = self._answers.setdefault(key, StepCounter())
        counter.step()

    # ---- generations --------------------------------------------------------------------------

    def stats_of(self, model):
        """The ModelStats of a name, or of all the others."""
        return self.models.get(model) or self._new_stats(model)

    def _new_stats(self, model):
        with self._lock:
            if model not in self._listed and (
                    len(model) > MODEL_NAME_CHARS or len(self.models.keys() - self._listed) >= MODEL_NAMES):
                model = OTHER_NAMES
            return self.models.setdefault(model, ModelStats(self.token_bounds))

    def work_in(self, stats):
        """Many requests wait in stats.ended."""
        with self._lock:
            stats.work_in()

    def lose(self, stats, reason, prompt, completion, joined):
        """A generation ended early: "abort" or "error". prompt, completion: tokens that were read and told. joined:
        those of them that went out together with the one before."""
        self.ended()
        with self._lock:
            stats.reasons[reason] += 1
            stats.prompt_tokens += prompt
            stats.completion_tokens += completion
            stats.planned_gaps[0] += joined

    # ---- reading ------------------------------------------------------------------------------

    def get(self, name):
        return self.snapshot().get(name, 0)

    def snapshot(self):
        """{name: int} of everything that is a single number."""
        with self._lock:
            counts = dict(self._counts)
            counts["requests"] = self._requests.value()
            counts["running"] = self._running()
            for name in ("completions", "completion_tokens", "prompt_tokens", "cached_tokens"):
                counts[name] = 0
            for reason in FINISH_REASONS:
                counts["finished_" + reason] = 0
            for stats in self.models.values():
                stats.work_in()
                counts["completions"] += stats.finished
                counts["completion_tokens"] += stats.finished_tokens
                counts["prompt_tokens"] += stats.prompt_tokens
                counts["cached_tokens"] += stats.cached_tokens
                for reason, number in stats.reasons.items():
                    counts["finished_" + reason] = counts.get("finished_" + reason, 0) + number
        return counts

    def _running(self):
        ended = self._ended.value()         # first: what ends between the two looks counts as running
        return self._begun.value() - ended

    def read_answers(self):
        """{(route or None, method, status): number}."""
        with self._lock:
            return {key: counter.value() for key, counter in self._answers.items()}

    def read_counts(self):
        """({name: number} of add(), {(name, kind): number} of add_labelled())."""
        with self._lock:
            return dict(self._counts), dict(self._labelled)

    def read_load(self):
        """(running, waiting): requests that are being generated, and that wait for the engine."""
        engine = self.engine
        if engine is not None:
            return engine.running, engine.waiting
        with self._lock:
            return self._running(), 0

    def read_models(self, breathe=int):
        """[(model's name, {what: number, or (counts, sum) of a histogram})], the engine's first."""
        with self._lock:
            found = [(name, _read_stats(stats), _read_gaps(stats)) for name, stats in self.models.items()]
        for _, values, gaps in found:
            values["itl"] = _merge_gaps(*gaps)
            breathe()
        return [(name, values) for name, values, _ in found]


_STATS_HISTOGRAMS = ("ttft", "tpot", "e2e", "queue", "prefill", "decode", "inference", "prompt", "computed",
                     "completion", "longest", "limit", "choices")


def _read_stats(stats):
    stats.work_in()
    found = {"reasons": dict(stats.reasons), "prompt_tokens": stats.prompt_tokens,
             "completion_tokens": stats.completion_tokens, "cached_tokens": stats.cached_tokens}
    for name in _STATS_HISTOGRAMS:
        histogram = getattr(stats, name)
        found[name] = (list(histogram.counts), histogram.sum)
    return found


def _read_gaps(stats):
    """Copies, as the pacer writes on: ([slots], [(counts, sum) of the longer gaps])."""
    return ((list(stats.times.gaps), list(stats.planned_gaps)),
            [(list(long.counts), long.sum) for long in (stats.times.long, stats.planned_long)])


def _merge_gaps(slots, long):
    """All gaps between tokens, those of streams so far and those of plain answers: (counts, sum)."""
    counted = [slot_counts(each, ITL_BOUNDS_S, GAP_STEP_S) for each in slots] + [counts for counts, _ in long]
    seconds = sum(map(_slots_sum, slots)) * GAP_STEP_S
    return [sum(each) for each in zip(*counted)], seconds + sum(total for _, total in long)
