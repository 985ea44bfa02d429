"""The backend that plays what backends/record.py has written: the same deltas at the same times, or faster.

In: a folder of recordings, read and checked at the start. Out: for each request the plan that was recorded for it, or
an error that names the recording which comes nearest. It never waits, so the player plays its plans.
"""
import os
import threading
from array import array

from api_common import ApiError, TakesLong, escape_json
from backends.contract import Backend, Failure, TextDelta, TextRun
from backends.fixture import FixtureFault, read_fixture
from backends.neutral import (first_difference, kept_request, likeness, neutral_request, request_key, request_leaves,
                              steady_request)

LONG_MATCH_TOKENS = 1000            # of a context: taking more apart takes the loop's thread 1 ms and longer
LONG_MATCH_BYTES = 5000             # the same for a body
FEW_RECORDINGS = 16                 # so many are looked through for the nearest at once
SHOWN_FAULTS = 3                    # of files that are no recordings: so many are named


class KeptExchange:
    """A recording as it is played. file: its name. request, how: as in Recording. plan: [(due_s, delta)], runs of text
    as TextRuns; error: an ApiError to fail with at end_s, or None. Times are at the speed that was asked for, but
    recorded_s, that of its end."""

    __slots__ = ("file", "request", "how", "plan", "error", "end_s", "recorded_s")

    def __init__(self, file, recording, rate, shared):
        """rate: what times are multiplied with."""
        self.file = file
        self.request = recording.request
        self.how = recording.how
        self.plan = _planned_runs(recording.entries, rate, shared)
        self.error = recording.error
        self.end_s = recording.end_s * rate
        self.recorded_s = recording.end_s

    def new_error(self):
        """The error, new for each request: a raised one holds on to where it was raised."""
        error = self.error
        return ApiError(error.status, error.message, error.type, error.code, error.param, error.headers)


def _planned_runs(entries, rate, shared):
    """A plan in which two and more texts of one choice behind each other are a TextRun. shared: {piece: (piece,
    escape)} of all recordings, which have most of their tokens in common."""
    plan, run = [], []

    def close_run():
        if len(run) > 1:
            pairs = [shared.setdefault(delta.text, (delta.text, escape_json(delta.text))) for _, delta in run]
            plan.append((run[0][0], TextRun([pair[0] for pair in pairs], [pair[1] for pair in pairs],
                                            array("d", [due_s for due_s, _ in run]), run[0][1].choice)))
        else:
            plan.extend(run)
        run.clear()
    for at_s, delta in entries:
        entry = at_s * rate, delta
        if delta.__class__ is TextDelta and delta.text and delta.logprobs is None:
            if run and run[0][1].choice != delta.choice:
                close_run()
            run.append(entry)
        else:
            close_run()
            plan.append(entry)
    close_run()
    return plan


class _Shelf:
    """The recordings of one request, in the order in which they are played; the last again and again."""

    __slots__ = ("exchanges", "played")

    def __init__(self):
        self.exchanges = []
        self.played = 0

    def next(self):
        at = min(self.played, len(self.exchanges) - 1)
        self.played += 1
        return self.exchanges[at]


class ReplayBackend(Backend):
    """exchanges: [KeptExchange], those of one request in the order in which they are played; cut ones are only known to
    be there. from_gateway: calls that
    are only passed on are answered from recordings alone. exact: nothing volatile is passed over. fallback: None, or
    the Backend that answers what has no recording. commit_grace_s: a stream's head goes out after it."""

    blocking = False
    judges = True

    def __init__(self, exchanges, folder="", from_gateway=False, exact=False, fallback=None, commit_grace_s=10.0):
        self.models = tuple(dict.fromkeys(each.request["model"] for each in exchanges if "model" in each.request))
        self._exchanges = exchanges
        self._folder = folder
        self._from_gateway = from_gateway
        self._fallback = fallback
        self._commit_grace_s = commit_grace_s
        self._exact, self._steady = {}, None if exact else {}
        self._lock = threading.Lock()   # guards the shelves' counts
        self._leaves = None
        for each in exchanges:
            if each.how == "cut":
                continue
            self._exact.setdefault(request_key(each.request), _Shelf()).exchanges.append(each)
            if self._steady is not None:
                self._steady.setdefault(request_key(steady_request(each.request)), _Shelf()).exchanges.append(each)

    @classmethod
    def from_settings(cls, settings, fallback):
        """Raises ValueError that names the files which are no recordings, and what is wrong with them."""
        recordings = load_recordings(settings.replay)
        shared = {}
        rate = settings.time_scale / settings.replay_speed if settings.replay_speed else 0.0
        exchanges = [KeptExchange(file, recording, rate, shared) for file, recording in recordings]
        from_gateway = any(recording.about.get("backend") == "upstream" for _, recording in recordings)
        return cls(exchanges, settings.replay, from_gateway, settings.replay_match == "exact", fallback,
                   settings.commit_grace_s / settings.time_scale)

    def told(self):
        return "replaying %d recordings of %s" % (len(self._exchanges), self._folder)

    def included(self, item, includes):
        return item if self._fallback is None else self._fallback.included(item, includes)

    def prepare(self, request):
        return 0 if self._fallback is None else self._fallback.prepare(request)

    def cache_stats(self):
        return None if self._fallback is None else self._fallback.cache_stats()

    def reset(self):
        """Each request's first recording is the next again."""
        with self._lock:
            for shelves in (self._exact, self._steady or {}):
                for shelf in shelves.values():
                    shelf.played = 0
        if self._fallback is not None:
            self._fallback.reset()

    def close(self):
        if self._fallback is not None:
            self._fallback.close()

    # ---- requests -----------------------------------------------------------------------------

    def takes(self, request, size_bytes):
        if request.breathe is None and size_bytes > LONG_MATCH_BYTES:
            raise TakesLong()
        request.shelf = self._find(self._kept(request))
        if request.shelf is not None:
            return True
        return request.endpoint == "forward" and self._from_gateway and self._fallback is None

    def generate(self, request, cancel):
        """The plan of the request's next recording. Raises ApiError: the recorded one where nothing was said before
        it, 404 recording_not_found where there is none."""
        if request.endpoint != "forward" and request.breathe is None \
                and (request.history.tokens or 0) > LONG_MATCH_TOKENS:
            raise TakesLong()
        shelf, kept = getattr(request, "shelf", None), None     # takes() has looked
        if shelf is None:
            kept = self._kept(request)
            shelf = self._find(kept)
        if shelf is not None:
            with self._lock:
                exchange = shelf.next()
            return self._played(exchange, request)
        if self._fallback is not None:
            return self._fallback.generate(request, cancel)
        if request.breathe is None and len(self._exchanges) > FEW_RECORDINGS:
            raise TakesLong()
        raise self._not_found(kept, request.breathe)

    @staticmethod
    def _kept(request):
        return kept_request(neutral_request(request), (), request.breathe)

    def _find(self, kept):
        shelf = self._exact.get(request_key(kept))
        if shelf is None and self._steady is not None:
            shelf = self._steady.get(request_key(steady_request(kept)))
        return shelf

    def _played(self, exchange, request):
        if exchange.error is None:
            return list(exchange.plan)
        error = exchange.new_error()
        raw = request.raw or {}
        streamed_s = self._commit_grace_s if raw.get("stream") else float("inf")
        if exchange.plan or raw.get("background") or exchange.recorded_s >= streamed_s:
            return exchange.plan + [(exchange.end_s, Failure(error))]
        error.after_s = exchange.end_s
        raise error

    def _not_found(self, kept, breathe):
        """The 404 that names the nearest recording and what is different first."""
        if self._leaves is None:
            self._leaves = [self._leaves_of(each.request, breathe) for each in self._exchanges]
        asked = self._leaves_of(kept, breathe)
        best, nearest, others = -1.0, None, None
        for leaves, exchange in zip(self._leaves, self._exchanges):
            score = likeness(leaves, asked)
            if score > best:
                best, nearest, others = score, exchange, leaves
            if breathe is not None:
                breathe()
        difference = first_difference(others, asked)
        if difference is None:
            message = "The only recording of this request, %s, was cut short when its client left." % nearest.file
        else:
            message = "There is no recording of this request. The nearest is %s: at '%s' it has %s where the request has %s." \
                % ((nearest.file,) + difference)
        return ApiError(404, message, type="replay_error", code="recording_not_found")

    def _leaves_of(self, kept, breathe):
        """What is compared: normalised, unless matching is exact."""
        return request_leaves(kept if self._steady is None else steady_request(kept, breathe))


# ---- the folder -------------------------------------------------------------------------------

def load_recordings(folder):
    """[(file name, Recording)] of a folder, in the order of their names and numbers.

    Raises ValueError: a folder that cannot be read or has no whole one; files that are no recordings, with their fault.
    """
    try:
        names = sorted((name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith(".")),
                       key=_recording_order)
    except OSError as exc:
        raise ValueError("--replay %s: %s" % (folder, exc.strerror or exc))
    found, faults = [], []
    for name in names:
        try:
            found.append((name, read_fixture(os.path.join(folder, name))))
        except FixtureFault as fault:
            faults.append("%s: %s" % (name, fault))
        except OSError as exc:
            faults.append("%s: %s" % (name, exc.strerror or exc))
    if faults:
        more = "; and %d more files" % (len(faults) - SHOWN_FAULTS) if len(faults) > SHOWN_FAULTS else ""
        raise ValueError("--replay %s: %s%s" % (folder, "; ".join(faults[:SHOWN_FAULTS]), more))
    if all(recording.how == "cut" for _, recording in found):
        raise ValueError("--replay %s: there are no recordings%s" % (
            folder, " but %d that were cut short" % len(found) if found else ""))
    return found


def _recording_order(name):
    stem, _, number = name[:-len(".json")].rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, 0)
