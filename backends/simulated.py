"""The default backend: a plan is content laid on a clock, made whole before the first token is due.

It never waits, so the player plays its plans without a thread. Draws are seeded by the server's
seed, a hash of the resolved request without ids, and how often this server has seen that hash.
"""
import threading
from collections import OrderedDict
from hashlib import blake2b
from heapq import merge
from random import Random

from backends.content import Prose
from backends.contract import Backend, Finish, TextDelta, TextRun, Usage
from backends.latency import ClockModel

SEEN_HASHES = 65536                 # how many request hashes are counted; the oldest go first


_FINISHES = {"stop": Finish("stop"), "length": Finish("length")}


class DrawSource:
    """Turns a request into a digest that repeats at any concurrency."""

    def __init__(self, seed):
        self._key = b"%d|" % seed
        self._seen = OrderedDict()
        self._lock = threading.Lock()   # guards _seen

    def digest(self, request):
        """16 bytes for this request: new at each repetition, unless it names its own seed."""
        text = f"{request.model}|{request.max_tokens}|"
        if request.seed is not None or request.n != 1 or request.ignore_eos or request.min_tokens \
                or request.stop or request.reasoning_effort:
            text += f"{request.min_tokens}|{request.ignore_eos}|{request.n}|{request.stop}|" \
                    f"{request.seed}|{request.reasoning_effort}|"
        base = blake2b(self._key + text.encode("utf-8", "surrogatepass") + request.history.prefix_hash,
                       digest_size=16).digest()
        if request.seed is not None:
            return base
        with self._lock:
            seen = self._seen
            count = seen.pop(base, 0)
            seen[base] = count + 1
            if len(seen) > SEEN_HASHES:
                seen.popitem(last=False)
        if not count:
            return base
        return blake2b(base + b"%d" % count, digest_size=16).digest()


class SimulatedBackend(Backend):
    """Speaks prose of a drawn length at drawn times.

    clock: a ClockModel. output_tokens, output_tokens_std: the length of an answer that no
    limit cuts, in tokens; normal with a floor of 1.
    """

    blocking = False

    def __init__(self, clock, output_tokens=128, output_tokens_std=0.0, seed=0):
        self._clock = clock
        self._output_tokens = output_tokens
        self._output_tokens_std = output_tokens_std
        self._draws = DrawSource(seed)
        self._prose = Prose()

    @classmethod
    def from_settings(cls, settings):
        clock = ClockModel(settings.ttft_ms / 1000.0, settings.itl_ms / 1000.0,
                           settings.ttft_std_ms / 1000.0, settings.itl_std_ms / 1000.0)
        return cls(clock, settings.output_tokens, settings.output_tokens_std, settings.seed)

    def generate(self, request, cancel):
        """A list of (due_s, delta): one TextRun a choice, its Finish, and the Usage.

        With several choices the runs are taken apart, so that their tokens interleave.
        """
        digest = self._draws.digest(request)
        if request.n == 1:
            run, reason = self._choice(request, digest, 0)
            count = len(run.pieces)
            end = run.dues[count - 1]
            return [(run.dues[0], run), (end, _FINISHES[reason]),
                    (end, Usage(request.history.tokens, count))]
        streams, total, end = [], 0, 0.0
        for choice in range(request.n):
            run, reason = self._choice(request, blake2b(digest + b"%d" % choice,
                                                        digest_size=16).digest(), choice)
            total += len(run.pieces)
            deltas = [(due, TextDelta(piece, None, choice))
                      for due, piece in zip(run.dues, run.pieces)]
            end = max(end, deltas[-1][0])
            streams.append(deltas + [(deltas[-1][0], Finish(reason, choice))])
        plan = list(merge(*streams, key=_plan_due))
        plan.append((end, Usage(request.history.tokens, total)))
        return plan

    def _choice(self, request, digest, choice):
        count, reason = self._length(request, digest)
        pieces, escapes = self._prose.pieces(digest, count, reason == "stop")
        return TextRun(pieces, escapes, self._clock.dues(count, digest), choice), reason

    def _length(self, request, digest):
        """How many tokens, and why it ends: "stop" by itself, "length" at the limit."""
        limit = request.max_tokens
        if limit is not None and request.ignore_eos:
            return limit, "length"
        count = self._output_tokens
        if self._output_tokens_std:
            draw = Random(int.from_bytes(digest, "little"))
            count = round(draw.gauss(count, self._output_tokens_std))
        count = max(1, count, request.min_tokens)
        if limit is not None and count > limit:
            return limit, "length"
        return count, "stop"


def _plan_due(entry):
    return entry[0]
