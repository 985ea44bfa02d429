"""Several requests as one: a batch of prompts is answered by any backend, choice by choice."""
from heapq import merge

from api_common import TakesLong
from backends.contract import Backend, TextDelta, TextRun, Usage


LONG_BATCH_TOKENS = 1000            # some 2 us each: a bigger batch is planned on a worker
_CACHED_PROMPT_TOKENS = 2000        # so is one with more to look up in a prefix cache


def _of_first(name):
    """What the first request says, or a backend says of it, holds for the batch."""
    return property(lambda batch: getattr(batch.requests[0], name))


class BatchRequest:
    """Requests whose choices are numbered through: request k's choice c is k * n + c."""

    breathe = None
    endpoint = "completions"
    raw, seed, max_tokens = _of_first("raw"), _of_first("seed"), _of_first("max_tokens")
    rule, draw, overrides = _of_first("rule"), _of_first("draw"), _of_first("overrides")

    def __init__(self, requests):
        self.requests = requests
        self.n = requests[0].n
        self.model = requests[0].model
        self.ignored_fields = requests[0].ignored_fields

    @property
    def seqs(self):
        return self.n * len(self.requests)

    @property
    def wire_faults(self):
        return [fault for request in self.requests for fault in request.wire_faults]

    @property
    def held_tokens(self):
        return sum(request.held_tokens for request in self.requests)

    @property
    def ttft_s(self):
        return min(request.ttft_s for request in self.requests)

    def prompt_tokens(self):
        return sum(request.history.tokens for request in self.requests)


class BatchBackend(Backend):
    """Answers a BatchRequest by asking another backend for each of its requests.

    A planned backend's deltas interleave by time; a blocking one answers one request after another.
    """

    def __init__(self, backend):
        self._backend = backend
        self.blocking = backend.blocking
        self.engine = backend.engine
        self.sets_faults = backend.sets_faults

    def generate(self, batch, cancel):
        tokens = sum(request.max_tokens * request.n + (request.history.tokens if request.echo else 0)
                     for request in batch.requests)
        if batch.requests[0].logprobs is not None:
            tokens *= 4
        if not self.blocking and batch.requests[0].breathe is None and tokens > LONG_BATCH_TOKENS:
            raise TakesLong()
        if len(batch.requests) > 1 and batch.requests[0].breathe is None and self._backend.cache_stats() is not None \
                and sum(request.history.tokens for request in batch.requests) > _CACHED_PROMPT_TOKENS:
            raise TakesLong()           # here, before any of them was counted
        if len(batch.requests) == 1:
            return self._backend.generate(batch.requests[0], cancel)
        streams = [_renumbered(self._backend.generate(request, cancel), number * batch.n)
                   for number, request in enumerate(batch.requests)]
        if self.blocking:
            return _with_one_usage(entry for stream in streams for entry in stream)
        return _with_one_usage(merge(*streams, key=_batch_due))


def _renumbered(deltas, first):
    """Deltas with their choices moved up; runs are taken apart, so that they can interleave."""
    for due_s, delta in deltas:
        if delta.__class__ is TextRun:
            for due_s, piece in zip(delta.dues, delta.pieces):
                yield due_s, TextDelta(piece, None, first + delta.choice)
        elif delta.__class__ is Usage:
            yield due_s, delta
        else:
            yield due_s, delta._replace(choice=first + delta.choice)


def _with_one_usage(entries):
    """The entries with all Usages added up into one at the end."""
    counts, last_s = [0, 0, 0, 0], None
    for due_s, delta in entries:
        if due_s is not None:
            last_s = due_s
        if delta.__class__ is Usage:
            counts = [have + more for have, more in zip(counts, delta)]
        else:
            yield due_s, delta
    yield last_s, Usage(*counts)


def _batch_due(entry):
    return entry[0]
