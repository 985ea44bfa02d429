"""Replies by rule: the first rule of a script that matches a request says its answer; the rest goes on.

In: GenerationRequests. Out: the deltas of a rule's reply, laid on the clock of the simulated backend, so that queue,
prefill and load are those of any other answer; or what the backend behind it says. Without rules it is not there:
its generate() is the other's own.
"""
from heapq import merge

from api_common import ApiError, TakesLong
from backends.contract import Backend, Finish, ReasoningDelta, TextDelta, TextRun, Usage
from backends.script_match import RequestView, tell_fact
from backends.script_reply import LONG_REPLY_CHARS, CallPart, Telling, TextPart, cut_steps
from backends.simulated import laid_out, plan_due, spoken_runs, sub_digest


class ScriptedBackend(Backend):
    """book: RuleBook. behind: the Backend that answers what no rule does. voice: the SimulatedBackend on whose clock
    rules speak; `behind` itself, as a rule. time_scale: of the times that rules name."""

    def __init__(self, book, behind, voice, tokenizer, time_scale=1.0):
        self.rule_book = book
        self.blocking = behind.blocking
        self.engine = behind.engine
        self.profile = behind.profile
        self.speed = behind.speed
        self._behind = behind
        self._voice = voice
        self._tokenizer = tokenizer
        self._time_scale = time_scale
        book.on_change = self._rules_changed
        self._rules_changed(book)

    def _rules_changed(self, book):
        """The way of a request without a script is not longer by a single call."""
        if book.rules or book.only:
            self.wants_origin = self.sets_faults = True
            self.generate = self._generate_scripted
        else:
            self.generate = self._behind.generate
            self.wants_origin = self._behind.wants_origin
            self.sets_faults = self._behind.sets_faults

    def included(self, item, includes):
        return self._behind.included(item, includes)

    def prepare(self, request):
        return self._behind.prepare(request)

    def cache_stats(self):
        return self._behind.cache_stats()

    def secrets(self):
        return self._behind.secrets()

    def told(self):
        return self._behind.told()

    def reset(self):
        """The files' rules alone, none of which has answered; and what is behind them begins anew."""
        self.rule_book.reset()
        for backend in (self._behind,) if self._voice is self._behind else (self._behind, self._voice):
            backend.reset()

    def close(self):
        self._behind.close()

    def add_rules(self, rules, first=False):
        """RuleBook.add()."""
        return self.rule_book.add(rules, first)

    def clear(self, name=None):
        """RuleBook.clear()."""
        return self.rule_book.clear(name)

    # ---- a request ----------------------------------------------------------------------------

    def _generate_scripted(self, request, cancel):
        """Raises ApiError 404 where only the script may answer and no rule does."""
        view = RequestView(request)
        rules = self.rule_book.rules
        for rule in rules:
            match = self._holds(rule, view)
            if match is None:
                continue
            if max(reply.size for reply in rule.replies) * request.n > LONG_REPLY_CHARS and not self._may_wait(request):
                raise TakesLong()
            claimed = self.rule_book.claim(rule)
            if claimed is not None:
                return self._answer(rule, claimed, view, match, cancel)
        if self.rule_book.only and view.fact("endpoint") != "compact":
            raise _no_rule_matched(rules, view)
        return self._behind.generate(request, cancel)

    def _may_wait(self, request):
        return self.blocking or request.breathe is not None

    @staticmethod
    def _holds(rule, view):
        """Whether all of a rule's conditions do: None, or what its first regular expression found, or True.

        A window of compaction is nobody's answer: only rules that name it are for it.
        """
        result, names_endpoint = True, False
        for key, condition in rule.conditions:
            found = condition.test(view.fact(key))
            if not found:
                return None
            if result is True:
                result = found
            names_endpoint = names_endpoint or key == "endpoint"
        return None if view.request.endpoint == "compact" and not names_endpoint else result

    def _answer(self, rule, claimed, view, match, cancel):
        reply, call = claimed
        request = view.request
        request.rule = rule.name
        if reply.faults:
            request.wire_faults = list(request.wire_faults) + reply.faults
        try:
            if reply.parts is None:
                return self._behind.generate(request, cancel)
            telling = Telling(view, match if match is not True else None, rule.name, call, self._tokenizer)
            if reply.overrides is not None:
                request.overrides = {key: value if value.__class__ is int else value.render(telling)
                                     for key, value in reply.overrides.items()}
            return self._planned(reply, telling)
        except TakesLong:
            self.rule_book.withdraw(rule, call)
            raise

    # ---- a plan -------------------------------------------------------------------------------

    def _planned(self, reply, telling):
        """[(due_s, delta)] of a whole answer."""
        request = telling.view.request
        digest, prefix = self._voice.take(request)
        if request.n == 1:
            plan, tokens, reasoning = self._quick(reply, telling, digest) or self._choice(reply, telling, digest, 0)
            answers = [(reasoning, plan)]
        else:
            answers, plans, tokens, reasoning = [], [], 0, 0
            for choice in range(request.n):
                one, count, thought = self._choice(reply, telling, sub_digest(digest, choice), choice)
                tokens += count
                reasoning += thought
                answers.append((thought, one))
                plans.append(laid_out(one))
            plan = list(merge(*plans, key=plan_due))
        self._voice.keep(request, prefix, answers if reply.in_tokens else ())
        request.ttft_s = plan[0][0]
        usage = Usage(request.history.tokens, tokens, reasoning, prefix.cached if prefix is not None else 0)
        if reply.usage:
            usage = usage._replace(**reply.usage)
        plan.append((plan[-1][0], usage))
        return plan

    def _quick(self, reply, telling, digest):
        """_choice() of a text and nothing else, for a request that asks for nothing special; None for all others."""
        request = telling.view.request
        part = reply.parts[0]
        if len(reply.parts) > 1 or part.__class__ is not TextPart or part.annotations is not None \
                or request.stop or request.logprobs is not None or request.echo is not None \
                or part.spoken.by_hand is not None:
            return None
        pieces, escapes = part.spoken.pieces(telling)
        if b"" in escapes:
            return None             # a run sends each of its pieces, and some tokens have no text of their own
        reason = reply.finish or "stop"
        limit = request.max_tokens
        if limit is not None and len(pieces) > limit:
            pieces, escapes, reason = pieces[:limit], escapes[:limit], "length"
        count = len(pieces)
        dues = self._dues(reply, request, digest, count)
        end_s = dues[max(0, count - 1)]
        if not count:
            return [(end_s, Finish(reason))], 0, 0
        return spoken_runs(TextRun(pieces, escapes, dues)) + [(end_s, Finish(reason))], count, 0

    def _choice(self, reply, telling, digest, choice):
        """(plan without Usage, tokens, reasoning tokens) of one choice."""
        request = telling.view.request
        steps, tokens, cut = cut_steps(reply.steps(telling, choice), request.max_tokens, self._tokenizer)
        if cut:
            reason = "length"
        elif telling.ended:
            reason = "stop"
        else:
            calls = any(part.__class__ is CallPart for part in reply.parts)
            reason = reply.finish or ("tool_calls" if calls else "stop")
        slots = sum(step[1] for step in steps)
        dues = self._dues(reply, request, digest, slots)
        plan, at, reasoning = [], -1, 0
        if request.echo:
            plan += [(dues[0], delta) for delta in self._voice.echo_deltas(request, digest, choice)]
        scores = self._voice.probabilities(request, digest) if request.logprobs is not None else None
        told = []                   # of tokens without text of their own: told with the one that completes their character
        for delta, more, count in steps:
            at += more
            if delta.__class__ is ReasoningDelta:
                reasoning += count
            elif scores is not None and delta.__class__ is TextDelta:
                words = [delta.text] if count < 2 else self._tokenizer.split(delta.text)
                told += [scores.entry(word) for word in words]
                if delta.text:
                    delta, told = delta._replace(logprobs=told), []
            plan.append((dues[max(0, at)], delta))
        plan.append((dues[max(0, slots - 1)], Finish(reason, choice)))
        return plan, tokens, reasoning

    def _dues(self, reply, request, digest, count):
        """When each token is due: by the clock, or by what the reply says of it."""
        ttft_s, itl_s = reply.ttft_s, reply.itl_s
        if ttft_s is None and itl_s is None:
            return self._voice.dues(request, digest, count)
        count = max(1, count)
        dues = self._voice.dues(request, digest, count) if ttft_s is None or itl_s is None else None
        first_s = ttft_s * self._time_scale if ttft_s is not None else dues[0]
        if itl_s is not None:
            return [first_s + itl_s * self._time_scale * number for number in range(count)]
        return [first_s + due - dues[0] for due in dues[:count]]


# ---- no rule ----------------------------------------------------------------------------------

def _no_rule_matched(rules, view):
    """The ApiError that names the rule which came nearest, and why it is not the one."""
    best, best_misses = None, []
    for rule in rules:
        misses = [(key, condition) for key, condition in rule.conditions if not condition.test(view.fact(key))]
        share = len(misses) / max(1, len(rule.conditions))
        if best is None or (share, len(misses)) < best[0]:
            best, best_misses = ((share, len(misses)), rule), misses
    if best is None:
        message = "The script has no rules."
    else:
        message = "No rule of the script matches this request. The nearest is '%s' (%s): %s." % (
            best[1].name, best[1].place(), _why_missed(best[1], best_misses, view))
    return ApiError(404, message, type="script_error", code="no_rule_matched")


def _why_missed(rule, misses, view):
    if misses:
        return "; ".join("%s: expected %s, got %s" % (key, condition.words, tell_fact(view, key, condition))
                         for key, condition in misses)
    if rule.matched is not None:
        return "it holds, but 'matched' expects %s, got %d" % (rule.matched.words, rule.seen - 1)
    return "it holds, but has answered %d of the times that it may" % rule.answered
