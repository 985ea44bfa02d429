"""The default backend: a plan is content laid on a clock, made whole before the first token is due.

It never waits, so the player plays its plans without a thread. Draws are seeded by the server's
seed, a hash of the resolved request without ids, and how often this server has seen that hash.
"""
import json
import threading
from collections import OrderedDict
from hashlib import blake2b
from heapq import merge
from math import log
from random import Random

from api_common import ApiError, TakesLong
from backends.builtin_tools import fill_includes, place_citations, plan_builtins
from backends.clocks import Simulation
from backends.contract import (Backend, Finish, ReasoningDelta, RefusalDelta, TextDelta, TextRun,
                               ToolCallDelta, Usage)
from backends.latency import Distribution
from backends.prefix_cache import PrefixCache
from backends.profiles import load_profile
from backends.schema_check import UnsatisfiableSchema
from backends.schema_values import SCHEMA_WORK, generate_value
from backends.text_sources import EchoText, make_prose, make_text
from backends.token_cutter import TokenCutter
from backends.tool_choice import choose_tool

SEEN_HASHES = 65536                 # how many request hashes are counted; the oldest go first

# Tokens of reasoning that an effort costs before the answer, time and usage alike.
REASONING_TOKENS = {"none": 0, "minimal": 16, "low": 32, "medium": 64, "high": 128, "xhigh": 256,
                    "max": 512}
LONG_PLAN_TOKENS = 4000             # a plan of more is made on a worker
INLINE_SCHEMA_WORK = 2000           # units of about 1 us: a value that takes more is made on a worker
REFUSAL_TEXT = "I am sorry, but I cannot help with that."

_FINISHES = {reason: Finish(reason) for reason in ("stop", "length", "tool_calls")}


class DrawSource:
    """Turns a request into a digest that repeats at any concurrency."""

    def __init__(self, seed):
        self._key = b"%d|" % seed
        self._seen = OrderedDict()
        self._lock = threading.Lock()   # guards _seen

    def digest(self, request, plain=False):
        """16 bytes for this request: new at each repetition, unless it names its own seed.

        plain: request.is_plain(), so that nothing else need be looked at.
        """
        base = self._base(request, plain)
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

    def clear(self):
        """Every request is a first one again."""
        with self._lock:
            self._seen.clear()

    def undo(self, request):
        """Forget that digest() was asked: the request begins again elsewhere."""
        base = self._base(request)
        with self._lock:
            count = self._seen.get(base)
            if count:
                self._seen[base] = count - 1

    def _base(self, request, plain=False):
        text = f"{request.model}|{request.max_tokens}|"
        if plain:
            return blake2b(self._key + text.encode("utf-8", "surrogatepass") + request.history.prefix_hash,
                           digest_size=16).digest()
        if request.seed is not None or request.n != 1 or request.ignore_eos or request.min_tokens \
                or request.stop or request.reasoning_effort:
            text += f"{request.min_tokens}|{request.ignore_eos}|{request.n}|{request.stop}|" \
                    f"{request.seed}|{request.reasoning_effort}|"
        if request.tools or request.output_format is not None:
            text += f"{request.tools}|{request.tool_choice}|{request.output_format}|"
        return blake2b(self._key + text.encode("utf-8", "surrogatepass") + request.history.prefix_hash,
                       digest_size=16).digest()


class SimulatedBackend(Backend):
    """Speaks text, values that fit a schema, and tool calls, at drawn times.

    clock: a ClockModel. tokenizer: cuts what is not prose into tokens. lengths: of answers that no
    limit cuts, in tokens: a Distribution, or a number. engine: an Engine, or None. text: what is said, of TEXT_MODES or
    file:PATH (ValueError when that cannot be read). auto_tool_rate: how often `auto` calls a tool; None for the rule of
    tool_choice.py.
    builtin_tool_rate: how often it calls each built-in one. refusal_rate: how often it refuses.
    cache: a PrefixCache, or None.
    """

    blocking = False

    def __init__(self, clock, tokenizer, lengths=128, seed=0, auto_tool_rate=None, refusal_rate=0.0,
                 builtin_tool_rate=0.0, engine=None, cache=None, text="prose"):
        self._clock = clock
        self._tokenizer = tokenizer
        self._lengths = lengths if lengths.__class__ is Distribution else Distribution("constant", lengths)
        self._output_tokens = max(1, round(self._lengths.mean))
        self.engine = engine
        self._auto_tool_rate = auto_tool_rate
        self._refusal_rate = refusal_rate
        self._builtin_tool_rate = builtin_tool_rate
        self._cache = cache
        self._draws = DrawSource(seed)
        self._cutter = TokenCutter(tokenizer)
        self._prose = make_prose(tokenizer, self._cutter)
        self._echoes = text == "echo"
        self._text = make_text(text, self._cutter, self._prose)

    @classmethod
    def from_settings(cls, settings, tokenizer):
        profile = load_profile(settings)
        simulation = Simulation(settings, profile)
        cache = PrefixCache(settings.cache_block_tokens, settings.cache_blocks, tokenizer) \
            if settings.cache_blocks else None
        backend = cls(simulation.clock, tokenizer, simulation.lengths, settings.seed, settings.auto_tool_rate,
                      settings.refusal_rate, settings.builtin_tool_rate, simulation.engine, cache, settings.text)
        backend.profile, backend.speed = profile, simulation.words()
        return backend

    def reset(self):
        self._draws.clear()
        if self._cache is not None:
            self._cache = self._cache.emptied()

    def included(self, item, includes):
        return fill_includes(item, includes)

    def prepare(self, request):
        found = self._cache.look_up(request) if self._cache is not None else None
        if found is None:
            return 0
        self._cache.keep(found, (), request.breathe)
        return found.cached

    def cache_stats(self):
        return self._cache.stats() if self._cache is not None else None

    def generate(self, request, cancel):
        """A list of (due_s, delta): each choice's tokens and its Finish, then the Usage.

        Plain text of one choice is one TextRun; all else is a delta a token, interleaved by time.
        Raises ApiError 400 for a schema that must be met and cannot.
        """
        plain = request.is_plain() and request.max_tokens != 0 and not self._refusal_rate
        if request.breathe is None and self._is_long(request):
            raise TakesLong()
        found = self._cache.look_up(request) if self._cache is not None else None
        cached = found.cached if found is not None else 0
        digest = request.draw = self._draws.digest(request, plain)
        if self._clock.has_prefill:
            request.prefill_s = self._clock.prefill_s(request.history.tokens - cached)
        if plain:
            try:
                plan, count = self._text_run(request, digest, 0)
            except TakesLong:
                self._draws.undo(request)
                raise
            request.ttft_s = plan[0][0]
            request.held_tokens = request.history.tokens + count
            plan.append((plan[-1][0], Usage(request.history.tokens, count, 0, cached)))
            if found is not None:
                self._cache.keep(found, ((0, plan),), request.breathe)
            return plan
        try:
            plan, answers = self._whole_plan(request, digest, cached)
        except TakesLong:
            self._draws.undo(request)
            raise
        if found is not None:
            self._cache.keep(found, answers, request.breathe)
        return plan

    # ---- for a backend that says its own words at this one's times ----------------------------

    def take(self, request):
        """A request is to be answered with other words: (its digest, its FoundPrefix or None). Its draw and prefill
        are set. Raises TakesLong."""
        found = self._cache.look_up(request) if self._cache is not None else None
        digest = request.draw = self._draws.digest(request)
        if self._clock.has_prefill:
            request.prefill_s = self._clock.prefill_s(request.history.tokens - (found.cached if found is not None else 0))
        return digest, found

    def keep(self, request, found, answers):
        """The other words are there. answers: as in PrefixCache.keep()."""
        if found is not None:
            self._cache.keep(found, answers, request.breathe)

    def dues(self, request, digest, count):
        """When each of `count` tokens is due: a sequence of at least one."""
        return self._clock.dues(max(1, count), digest, request.prefill_s)

    def probabilities(self, request, digest):
        return TokenProbabilities(digest, self._text.words(), request.logprobs)

    # ---- its own ------------------------------------------------------------------------------

    def _is_long(self, request):
        """Whether the plan would hold up the loop: it takes some 0.5 us a token, 2 with several choices."""
        if not request.ignore_eos or request.max_tokens is None:
            tokens = max(self._output_tokens, request.min_tokens)
            if self._echoes:
                tokens = max(len(request.history.last_user_text), request.min_tokens)
        else:
            tokens = request.max_tokens
        if request.logprobs is not None:        # some 2 us for each alternative of each token
            tokens = (tokens + (request.history.tokens if request.echo else 0)) * (8 + 4 * request.logprobs)
        return tokens * (4 * request.n - 3) > LONG_PLAN_TOKENS

    def _whole_plan(self, request, digest, cached):
        """(plan, for each choice (tokens of reasoning, its own plan))."""
        if request.n == 1:
            plan, tokens, reasoning = self._plan(request, digest, 0)
            answers = [(reasoning, plan)]
        else:
            plans, answers, tokens, reasoning = [], [], 0, 0
            for choice in range(request.n):
                one, count, thought = self._plan(request, sub_digest(digest, choice), choice)
                tokens += count
                reasoning += thought
                answers.append((thought, one))
                plans.append(laid_out(one))
            plan = list(merge(*plans, key=plan_due))
        request.ttft_s = plan[0][0]
        request.held_tokens = request.history.tokens + tokens
        plan.append((plan[-1][0], Usage(request.history.tokens, tokens, reasoning, cached)))
        return plan, answers

    def _plan(self, request, digest, choice):
        """(plan without Usage, all tokens, reasoning tokens) of one choice."""
        spec = turn = None
        if request.tools:
            spec = choose_tool(request, self._auto_chance(digest))
        if request.approvals or request.tools and spec is None \
                and (self._builtin_tool_rate or request.tool_choice.mode == "required"):
            turn = plan_builtins(request, sub_digest(digest, 7), choice, self._builtin_tool_rate, self._tokenizer)
        reasoning = REASONING_TOKENS.get(request.reasoning_effort, 0) if request.reasoning_effort else 0
        if turn is not None and request.max_tokens != 0:
            return self._builtin_plan(request, digest, choice, turn, reasoning)
        if spec is None and not reasoning and not request.stop and request.logprobs is None \
                and request.output_format is None and not self._refusal_rate and not request.banned \
                and request.echo is None and request.max_tokens != 0:
            plan, count = self._text_run(request, digest, choice)
            return plan, count, 0
        body, reason = self._body(request, digest, choice, spec, reasoning)
        limit = request.max_tokens
        if limit is not None and reasoning + len(body) > limit:
            reasoning = min(reasoning, limit)
            body = body[:limit - reasoning]
            reason = "length"
        total = reasoning + len(body)
        dues = self._clock.dues(max(1, total), digest, request.prefill_s)
        plan = self._reasoning_plan(request, digest, choice, reasoning, dues)
        if request.echo:
            plan += [(dues[0], delta) for delta in self.echo_deltas(request, digest, choice)]
        plan += zip(dues[reasoning:total], body)
        plan.append((dues[max(0, total - 1)], Finish(reason, choice)))
        return plan, total, reasoning

    def _builtin_plan(self, request, digest, choice, turn, reasoning):
        """_plan() of an answer in which built-in tools come before the text."""
        limit = request.max_tokens
        if limit is not None:
            reasoning = min(reasoning, limit)
        steps, at, written, reason = [], reasoning - 1, 0, "tool_calls" if turn.waits else "stop"
        for delta, slots, tokens in turn.steps:
            if tokens and limit is not None and reasoning + written + tokens > limit:
                reason = "length"
                break
            at += slots
            written += tokens
            steps.append((at, delta))
        body = []
        if reason == "stop":
            body, reason = self._body(request, digest, choice, None, reasoning + written)
            if limit is not None and reasoning + written + len(body) > limit:
                body, reason = body[:limit - reasoning - written], "length"
        dues = self._clock.dues(at + 1 + len(body), digest, request.prefill_s)
        plan = self._reasoning_plan(request, digest, choice, reasoning, dues)
        plan += [(dues[slot], delta) for slot, delta in steps]
        plan += zip(dues[at + 1:at + 1 + len(body)], body)
        last = dues[at + len(body)]
        if turn.citations and request.output_format is None and body and body[0].__class__ is TextDelta:
            text = "".join([delta.text for delta in body])
            plan += [(last, delta) for delta in place_citations(text, turn.citations, choice)]
        plan.append((last, Finish(reason, choice)))
        return plan, reasoning + written + len(body), reasoning

    def _auto_chance(self, digest):
        if self._auto_tool_rate is None:
            return None
        return self._auto_tool_rate, digest[0] / 256.0 + digest[1] / 65536.0

    def _body(self, request, digest, choice, spec, reasoning):
        """The answer itself: (one delta a token, empty for one without text of its own; finish reason)."""
        if spec is not None:
            return self._call_deltas(request, digest, choice, spec), "tool_calls"
        if self._refusal_rate and (digest[2] * 256 + digest[3]) / 65536.0 < self._refusal_rate:
            return [RefusalDelta(piece, choice) for piece in self._tokenizer.split(REFUSAL_TEXT)], "stop"
        if request.output_format is not None:
            text = _compact_json(self._value(request.output_format, digest, request))
            pieces, reason = self._tokenizer.split(text), "stop"
        else:
            room = None if request.max_tokens is None else max(0, request.max_tokens - reasoning)
            text = self._echo(request, room) if self._echoes else self._text
            count, reason = self._length(request, digest, room, text.natural)
            pieces, _ = text.pieces(digest, count, reason == "stop")
            if request.banned:
                pieces = self._without(pieces, request.banned, text, digest)
        if request.stop:
            pieces, stopped = cut_at_stop(pieces, request.stop)
            if stopped:
                reason = "stop"
        return self.text_deltas(request, digest, choice, pieces), reason

    def _echo(self, request, limit):
        """The source of --text echo; where the user said nothing, it is prose."""
        said = request.history.last_user_text
        return EchoText(said, self._cutter, limit, request.breathe) if said else self._prose

    def _without(self, pieces, banned, text, digest):
        """As many tokens without the banned ones: other words of the text stand in their place."""
        if banned.isdisjoint(pieces):
            return pieces
        made = self._cutter.without(pieces, banned, text.words())
        if made is None:                # such as Chinese, where hardly a word fits beside another: plain prose
            pieces, _ = self._prose.pieces(digest, len(pieces), True)
            made = self._cutter.without(pieces, banned, self._prose.words())
        return made or [piece if piece not in banned else " -" for piece in pieces]

    def text_deltas(self, request, digest, choice, pieces):
        if request.logprobs is None:
            return [TextDelta(piece, None, choice) for piece in pieces]
        source = self.probabilities(request, digest)
        deltas, told = [], []
        for piece in pieces:
            told.append(source.entry(piece))
            deltas.append(TextDelta(piece, told if piece else None, choice))
            if piece:
                told = []           # else the token is told with the one that completes its character
        return deltas

    def echo_deltas(self, request, digest, choice):
        """The prompt again; scored, when log probabilities are wanted, but for its first token."""
        if request.logprobs is None:
            return [TextDelta(request.echo, None, choice)]
        deltas = self.text_deltas(request, sub_digest(digest, 3), choice, self._tokenizer.split(request.echo))
        deltas = [delta for delta in deltas if delta.text]
        deltas[0].logprobs[0].update(logprob=None, top_logprobs=[])
        return deltas

    def _value(self, output_format, digest, request):
        """A value for json_object or json_schema."""
        if output_format.kind == "json_object":
            if self._echoes and request.history.last_user_text:
                return {"answer": request.history.last_user_text}
            pieces, _ = self._text.pieces(digest, 12, True)
            return {"answer": "".join(pieces)}
        return _satisfying(output_format.schema, digest, request, output_format.place)

    def _call_deltas(self, request, digest, choice, spec):
        """One tool call: its name is a token, then each token of its arguments."""
        if spec.kind == "custom":
            text = self._custom_input(spec, digest, request)
        else:
            value = _satisfying(_object_schema(spec.parameters), digest, request, spec.place, sparse=True,
                                about="%s %s" % (spec.name, spec.description or ""))
            text = _compact_json(value)
        deltas = [ToolCallDelta(0, "", None, spec.name, spec.kind, choice, spec.namespace)]
        deltas += [ToolCallDelta(0, piece, None, None, spec.kind, choice)
                   for piece in self._tokenizer.split(text)]
        return deltas

    def _custom_input(self, spec, digest, request):
        """A custom tool's plain input: a few harmless words, or a match of its regex grammar."""
        form = spec.parameters or {}
        if form.get("type") == "grammar":
            grammar = form.get("grammar") if form.get("grammar").__class__ is dict else form
            if grammar.get("syntax") == "regex" and grammar.get("definition").__class__ is str:
                return _satisfying({"type": "string", "pattern": "^(?:%s)$" % grammar["definition"]},
                                   digest, request, spec.place)
        pieces, _ = self._prose.pieces(digest, 6, False)
        return "".join(pieces)

    def _reasoning_plan(self, request, digest, choice, reasoning, dues):
        """The reasoning item: opened at the first token, its summary spread over its time."""
        if request.reasoning_items == "none" or not reasoning:
            return []
        plan = [(dues[0], ReasoningDelta("", "summary", choice))]
        if request.reasoning_items == "summary":
            count = max(1, min(reasoning, 8 + reasoning // 8))
            pieces, _ = self._text.pieces(sub_digest(digest, 5), count, True)
            plan += [(dues[number * reasoning // count], ReasoningDelta(piece, "summary", choice))
                     for number, piece in enumerate(pieces) if piece]
        return plan

    def _text_run(self, request, digest, choice):
        """(plan of text alone without Usage, its tokens)."""
        text = self._echo(request, request.max_tokens) if self._echoes else self._text
        count, reason = self._length(request, digest, request.max_tokens, text.natural)
        pieces, escapes = text.pieces(digest, count, reason == "stop")
        dues = self._clock.dues(count, digest, request.prefill_s)
        finish = (dues[count - 1], _FINISHES[reason] if not choice else Finish(reason, choice))
        if text.has_silent:
            return spoken_runs(TextRun(pieces, escapes, dues, choice)) + [finish], count
        return [(dues[0], TextRun(pieces, escapes, dues, choice)), finish], count

    def _length(self, request, digest, limit, natural):
        """How many tokens of text, and why it ends: "stop" by itself, "length" at the limit.

        natural: how many the text has by itself, or None for as many as are drawn.
        """
        if limit is not None and request.ignore_eos:
            return limit, "length"
        count = self._output_tokens if natural is None else natural
        if natural is None and not self._lengths.constant:
            count = round(self._lengths.sampler(Random(int.from_bytes(digest, "little")))())
        count, reason = max(1, count, request.min_tokens), "stop"
        if limit is not None and count > limit:
            count, reason = limit, "length"
        if count > LONG_PLAN_TOKENS and request.breathe is None:
            raise TakesLong()           # a draw far from the mean
        return count, reason


def cut_at_stop(pieces, stops):
    """Pieces up to the first stop sequence, which may lie across their borders.

    Returns (pieces, whether one was found). The last piece may be a part of a token.
    """
    text = "".join(pieces)
    found = [at for at in (text.find(stop) for stop in stops if stop) if at >= 0]
    if not found:
        return pieces, False
    end, kept, at = min(found), [], 0
    for piece in pieces:
        if at >= end:
            break
        kept.append(piece[:end - at])
        at += len(piece)
    return kept, True


class TokenProbabilities:
    """Log probabilities that add up: the token said is the likeliest, the others share the rest."""

    def __init__(self, digest, words, alternatives):
        self._draw = Random(int.from_bytes(digest, "big"))
        self._words = words
        self._alternatives = alternatives

    def entry(self, token):
        """{"token","logprob","bytes","top_logprobs"} for a token; probabilities sum to under 1."""
        chosen = 0.5 + 0.49 * self._draw.random()
        top = []
        if self._alternatives:
            top.append(_probability(token, chosen))
            rest = 1.0 - chosen
            at = self._draw.randrange(len(self._words))
            while len(top) < self._alternatives:
                word = self._words[at % len(self._words)]
                at += 1
                if word != token:
                    rest *= 0.5
                    top.append(_probability(word, rest))
        return dict(_probability(token, chosen), top_logprobs=top)


def _probability(token, share):
    return {"token": token, "logprob": round(log(share), 6),
            "bytes": list(token.encode("utf-8", "surrogatepass"))}


def _satisfying(schema, digest, request, place, sparse=False, about=""):
    work = SCHEMA_WORK if request.breathe is not None else INLINE_SCHEMA_WORK
    try:
        return generate_value(schema, Random(int.from_bytes(digest, "big")), request.history.last_user_text, work,
                              sparse, about)
    except UnsatisfiableSchema as exc:
        if exc.spent and request.breathe is None:
            raise TakesLong()
        where = "%s.%s" % (place, exc.path) if exc.path else place
        raise ApiError(400, "Invalid schema for '%s': no value satisfies it: %s." % (where, exc.reason),
                       param=where)


def _object_schema(parameters):
    """Arguments are always an object, whatever the schema forgets to say."""
    if not parameters:
        return {"type": "object", "properties": {}}
    if "type" not in parameters and "$ref" not in parameters:
        return dict(parameters, type="object")
    return parameters


def _compact_json(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def sub_digest(digest, number):
    return blake2b(digest + b"%d" % number, digest_size=16).digest()


def spoken_runs(run):
    """The same of a TextRun: [(due_s, run)], or [] when it says nothing. run: pieces may be empty."""
    if "" not in run.pieces:
        return [(run.dues[0], run)]
    said = [entry for entry in zip(run.pieces, run.escapes, run.dues) if entry[0]]
    if not said:
        return []
    pieces, escapes, dues = map(list, zip(*said))
    return [(dues[0], TextRun(pieces, escapes, dues, run.choice))]


def laid_out(plan):
    """A plan whose TextRun is taken apart, so that choices can interleave token by token."""
    entries = []
    for due_s, delta in plan:
        if delta.__class__ is TextRun:
            entries += [(due, TextDelta(piece, None, delta.choice))
                        for due, piece in zip(delta.dues, delta.pieces)]
        else:
            entries.append((due_s, delta))
    return entries


def plan_due(entry):
    return entry[0]
