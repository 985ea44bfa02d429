"""Chat and text completions, as any server words them, to deltas.

In: decoded JSON, one chunk of a stream or a whole answer. Out: deltas in the order of their meaning. Servers
differ in nearly everything here; what this module mends is listed in README, "Gateway". No I/O.
"""
from api_common import ApiError, content_text, dump_json
from backends.contract import (AnnotationDelta, Failure, Finish, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta,
                               Usage)
from backends.upstream_text import FieldUnwrapper, TextJoiner, ThinkSplitter

NAMELESS_TOOL = "tool"              # what a call is named whose name never comes

# What servers say at a choice's end, beside the API's own words
_FINISH_REASONS = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter",
    "function_call": "tool_calls", "tool_use": "tool_calls", "tool_call": "tool_calls", "max_tokens": "length",
    "model_length": "length", "max_length": "length", "safety": "content_filter", "recitation": "content_filter"}


def upstream_failure(message, status=502, code=None, headers=()):
    """An ApiError of type upstream_error: 502 what it said could not be used, 504 it took too long."""
    return ApiError(status, message, type="upstream_error", code=code, headers=headers)


def error_text(value):
    """The message in whatever stands for an error: {"error": {"message"}}, {"error": str}, {"detail"}, ..."""
    for _ in range(4):
        if value.__class__ is str:
            return value
        if value.__class__ is list and value:
            value = value[0]
        elif value.__class__ is dict:
            for name in ("error", "message", "detail", "msg", "error_description"):
                if value.get(name):
                    value = value[name]
                    break
            else:
                return ""
        else:
            return ""
    return value if value.__class__ is str else ""


def read_error(status, value, fallback, headers=()):
    """An answer that is an error as an ApiError: a 4xx as it is, with its message; all else a 502 or 504.

    value: its JSON, or None. fallback: the message where it has none.
    """
    message = error_text(value) or fallback
    inner = value.get("error") if value.__class__ is dict else None
    inner = inner if inner.__class__ is dict else value if value.__class__ is dict else {}
    code, param, kind = inner.get("code"), inner.get("param"), inner.get("type")
    code = code if code.__class__ is str else None
    if 400 <= status < 500:
        return ApiError(status, message, type=kind if kind.__class__ is str else "upstream_error", code=code,
                        param=param if param.__class__ is str else None, headers=headers)
    return upstream_failure(message, 504 if status == 504 else 503 if status == 503 else 502, code, headers)


def _inner_status(value):
    """The status in an error that came inside an answer: many put it where the code belongs."""
    inner = value["error"] if value.get("error").__class__ is dict else value
    for name in ("code", "status", "status_code"):
        if inner.get(name).__class__ is int and 400 <= inner[name] < 600:
            return inner[name]
    return 502


# ---- tool calls -------------------------------------------------------------------------------

class _ToolCall:
    """One call on its way. number: our index, from 0; None until its name is known."""

    __slots__ = ("number", "id", "name", "held", "said", "joiner", "unwrapper", "upstream_index", "namespace")

    def __init__(self, upstream_index):
        self.upstream_index = upstream_index
        self.number = self.id = self.name = self.namespace = None
        self.held = []              # arguments that came before the name
        self.said = False           # any argument was given out
        self.joiner = TextJoiner()
        self.unwrapper = None       # of a custom tool


class ToolCallReader:
    """Pieces of tool calls to ToolCallDeltas whose indexes count from 0.

    tools: {name as the upstream knows it: (name, namespace or None, whether it is custom)}; other names are as
    they come.
    """

    def __init__(self, choice, tools):
        self._choice = choice
        self._tools = tools
        self._calls = []
        self._begun = 0             # calls that have a number

    def feed(self, pieces):
        """pieces: a chunk's `tool_calls`, in whatever state."""
        out = []
        for place, piece in enumerate(pieces):
            if piece.__class__ is not dict:
                continue
            body = piece.get("function")
            if body.__class__ is not dict:
                body = piece.get("custom")
            if body.__class__ is not dict:
                body = piece
            name = body.get("name")
            arguments = body.get("arguments", body.get("input"))
            if arguments is None:
                arguments = ""
            elif arguments.__class__ is not str:
                arguments = dump_json(arguments).decode("ascii")
            self._feed_piece(piece.get("index"), piece.get("id"), name if name.__class__ is str else "", arguments, out)
        return out

    def _find(self, index, id, name):
        """The call that a piece belongs to; a new one where it begins one."""
        calls = self._calls
        id = id if id.__class__ is str and id else None
        index = index if index.__class__ is int else None
        if index is not None:
            found = next((call for call in reversed(calls) if call.upstream_index == index), None)
            # one index for several calls: their ids tell them apart
            if found is not None and id is not None and found.id is not None and id != found.id and name:
                found = None
        elif id is not None:
            found = next((call for call in calls if call.id == id), None)
            if found is None and calls and calls[-1].id is None and not name:
                found = calls[-1]
        else:
            found = calls[-1] if calls and not (name and calls[-1].name) else None
        if found is None:
            found = _ToolCall(index)
            calls.append(found)
        if found.id is None:
            found.id = id
        return found

    def _feed_piece(self, index, id, name, arguments, out):
        call = self._find(index, id, name)
        if call.name is None:
            if not name:
                call.held.append(arguments)
                return
            self._begin(call, name)
            arguments = "".join(call.held) + arguments
            call.held = []
            self._say(call, arguments, out, True)
        elif arguments:
            self._say(call, arguments, out, False)

    def _begin(self, call, name):
        call.name, call.namespace, custom = self._tools.get(name, (name, None, False))
        call.number = self._begun
        self._begun += 1
        if custom:
            call.unwrapper = FieldUnwrapper()

    def _say(self, call, arguments, out, first):
        arguments = call.joiner.join(arguments)
        if call.unwrapper is not None:
            arguments = call.unwrapper.feed(arguments)
        if first or arguments:
            self._give(call, arguments, out, first)

    def _give(self, call, arguments, out, first=False):
        kind = "function" if call.unwrapper is None else "custom"
        call.said = call.said or bool(arguments)
        if first:
            out.append(ToolCallDelta(call.number, arguments, call.id, call.name, kind, self._choice, call.namespace))
        else:
            out.append(ToolCallDelta(call.number, arguments, kind=kind, choice=self._choice))

    def end(self):
        """The choice is over: calls without a name get one, those without arguments an empty object."""
        out = []
        for call in self._calls:
            if call.name is None:
                self._begin(call, NAMELESS_TOOL)
                self._say(call, "".join(call.held), out, True)
            rest = call.joiner.end()
            if call.unwrapper is not None:
                rest = call.unwrapper.feed(rest) + call.unwrapper.end()
            if rest:
                self._give(call, rest, out)
            if not call.said and call.unwrapper is None:
                self._give(call, "{}", out)
        self._calls = []
        return out

    @property
    def any(self):
        return bool(self._begun or self._calls)


# ---- choices ----------------------------------------------------------------------------------

class _ChoiceReader:
    """What one choice of the upstream has said."""

    __slots__ = ("index", "calls", "text", "thought", "think", "finished", "reasoning_kind", "logprobs")

    def __init__(self, index, tools, reasoning_kind, think):
        self.index = index
        self.logprobs = None
        self.calls = ToolCallReader(index, tools)
        self.text = TextJoiner()
        self.thought = TextJoiner()
        self.think = None if think == "off" else ThinkSplitter(think == "opened")
        self.reasoning_kind = reasoning_kind
        self.finished = False

    def feed(self, message, logprobs, out):
        """A chunk's delta, or a whole answer's message."""
        thought = message.get("reasoning_content")
        if not thought:
            thought = message.get("reasoning")
        if thought.__class__ is str and thought:
            self._say_thought(thought, out)
        content = message.get("content")
        if content.__class__ is list:
            content = self._feed_parts(content, out)
        if content or logprobs:
            self._say_content(content if content.__class__ is str else "", logprobs, out)
        refusal = message.get("refusal")
        if refusal.__class__ is str and refusal:
            out.append(RefusalDelta(refusal, self.index))
        annotations = message.get("annotations")
        if annotations.__class__ is list:
            for annotation in annotations:
                self._feed_annotation(annotation, out)
        calls = message.get("tool_calls")
        if calls.__class__ is list and calls:
            out += self.calls.feed(calls)
        legacy = message.get("function_call")
        if legacy.__class__ is dict:
            out += self.calls.feed([{"index": 0, "function": legacy}])

    def _feed_parts(self, parts, out):
        """Content in parts, as some vendors send it; thoughts among them are told at once."""
        said = []
        for part in parts:
            if part.__class__ is dict and part.get("type") in ("thinking", "reasoning"):
                thought = part.get("thinking") or part.get("text") or ""
                if thought.__class__ is list:
                    thought = content_text([each for each in thought if each.__class__ is dict])
                self._say_thought(thought, out)
            elif part.__class__ in (dict, str):
                said.append(content_text([part]))
        return "".join(said)

    def _feed_annotation(self, annotation, out):
        if annotation.__class__ is dict and annotation.get("url_citation").__class__ is dict:
            out.append(AnnotationDelta(dict(annotation["url_citation"], type="url_citation"), self.index))

    def _say_thought(self, text, out):
        text = self.thought.join(text)
        if text:
            out.append(ReasoningDelta(text, self.reasoning_kind, self.index))

    def _say_content(self, text, logprobs, out):
        if self.think is None:
            self._say_text(text, logprobs, out)
            return
        for is_thought, part in self.think.split(text):
            if is_thought:
                self._say_thought(part, out)
            else:
                self._say_text(part, logprobs, out)
                logprobs = None

    def _say_text(self, text, logprobs, out):
        text = self.text.join(text)
        if self.logprobs is not None:
            logprobs, self.logprobs = self.logprobs + (logprobs or []), None
        if text:
            out.append(TextDelta(text, logprobs, self.index))
        else:
            self.logprobs = logprobs        # of a token that has no text by itself: they go with the next

    def end(self, reason, out):
        if self.finished:
            return
        self.finished = True
        if self.think is not None:
            for is_thought, part in self.think.end():
                (self._say_thought if is_thought else self._say_last)(part, out)
        self._end_joiners(out)
        if self.calls.any:
            out += self.calls.end()
            if reason == "stop":
                reason = "tool_calls"
        out.append(Finish(reason, self.index))

    def _say_last(self, text, out):
        self._say_text(text, None, out)

    def _end_joiners(self, out):
        half = self.thought.end()
        if half:
            out.append(ReasoningDelta(half, self.reasoning_kind, self.index))
        half = self.text.end()
        if half:
            out.append(TextDelta(half, None, self.index))


class ChunkReader:
    """The chunks of one answer to deltas. Base of the two APIs' readers.

    choices: how many the request asks for. finished: all of them are. usage: the last that came, or None.
    failed: a Failure was given out. words: the texts said, kept when `keeps_words`, for counting.
    """

    def __init__(self, choices=1):
        self._wanted = choices
        self._only = None               # of one choice, the number that the upstream gives it
        self._choices = {}
        self.usage = None
        self.failed = False
        self.finished = False

    def feed(self, value):
        """One chunk, or a whole answer. Returns a list of deltas; a Failure is the last one there is."""
        out = []
        if value.__class__ is not dict:
            return self._fail("The upstream sent what is no object.", out)
        if value.get("error") or value.get("object") == "error":        # the latter is vLLM's older form
            self.failed = True
            out.append(Failure(read_error(_inner_status(value), value, "The upstream failed in mid-answer.")))
            return out
        self._read_usage(value)
        choices = value.get("choices")
        if choices.__class__ is list:
            for place, choice in enumerate(choices):
                found = self._choice(choice, place) if choice.__class__ is dict and not self.failed else None
                if found is not None:
                    self._feed_choice(found, choice, out)
        return out

    def _fail(self, message, out):
        self.failed = True
        out.append(Failure(upstream_failure(message)))
        return out

    def _read_usage(self, value):
        usage = value.get("usage")
        if usage.__class__ is not dict:
            usage = value.get("x_groq")
            usage = usage.get("usage") if usage.__class__ is dict else None
        if usage.__class__ is dict and (usage.get("prompt_tokens") or usage.get("completion_tokens")):
            self.usage = read_usage(usage)

    def _choice(self, choice, place):
        """Whose chunk it is; None for a choice that nobody asked for."""
        index = choice.get("index")
        index = index if index.__class__ is int else place
        if self._wanted == 1:           # the first that speaks, whatever its number
            if self._only is None:
                self._only = index
            index -= self._only
        if not 0 <= index < self._wanted:
            return None
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = self._new_choice(index)
        return found

    def _end_choice(self, found, reason, out):
        if reason == "error":
            self._fail("The upstream ended its answer with an error.", out)
            return
        found.end(_FINISH_REASONS.get(reason.lower(), "stop"), out)
        self.finished = len(self._choices) >= self._wanted and all(each.finished for each in self._choices.values())

    def end(self, marked):
        """The answer is over. marked: it said so itself, with [DONE] or by being one JSON object.

        The deltas that are still to come: what was held back, the ends that were left out. A Failure when the
        answer was cut.
        """
        out = []
        if not self.failed and not self.finished:
            if not marked:
                return self._fail("The upstream's answer broke off before its end.", out)
            for index in range(self._wanted):
                found = self._choices.get(index)
                if found is None:
                    found = self._choices[index] = self._new_choice(index)
                self._end_choice(found, "stop", out)
        return out

    def _new_choice(self, index):
        raise NotImplementedError

    def _feed_choice(self, found, choice, out):
        raise NotImplementedError


class ChatChunkReader(ChunkReader):
    """chat.completion.chunk and chat.completion objects.

    tools: as in ToolCallReader. reasoning_kind: of ReasoningDeltas. think: off, tags or opened.
    """

    def __init__(self, choices=1, tools=None, reasoning_kind="raw", think="off"):
        ChunkReader.__init__(self, choices)
        self._tools = tools or {}
        self._reasoning_kind = reasoning_kind
        self._think = think

    def _new_choice(self, index):
        return _ChoiceReader(index, self._tools, self._reasoning_kind, self._think)

    def _feed_choice(self, found, choice, out):
        message = choice.get("delta")
        if message.__class__ is not dict or not message:
            message = choice.get("message")
        if message.__class__ is dict:
            logprobs = choice.get("logprobs")
            if logprobs is not None:
                logprobs = logprobs.get("content") if logprobs.__class__ is dict else None
                logprobs = logprobs if logprobs.__class__ is list and logprobs else None
            found.feed(message, logprobs, out)
        reason = choice.get("finish_reason")
        if reason.__class__ is str and reason:
            self._end_choice(found, reason, out)


class _TextChoice:
    """A choice of a text completion."""

    __slots__ = ("index", "text", "finished")

    def __init__(self, index):
        self.index = index
        self.text = TextJoiner()
        self.finished = False

    def end(self, reason, out):
        if not self.finished:
            self.finished = True
            half = self.text.end()
            if half:
                out.append(TextDelta(half, None, self.index))
            out.append(Finish(reason, self.index))


class TextChunkReader(ChunkReader):
    """text_completion objects, streamed or whole."""

    def _new_choice(self, index):
        return _TextChoice(index)

    def _feed_choice(self, found, choice, out):
        text = choice.get("text")
        logprobs = choice.get("logprobs")
        logprobs = _logprob_entries(logprobs) if logprobs.__class__ is dict else None
        text = found.text.join(text) if text.__class__ is str else ""
        if text:
            out.append(TextDelta(text, logprobs, found.index))
        reason = choice.get("finish_reason")
        if reason.__class__ is str and reason:
            self._end_choice(found, reason, out)


def _logprob_entries(value):
    """Legacy completions' parallel lists as TokenLogprob dicts, or None for what is none."""
    tokens, values = value.get("tokens"), value.get("token_logprobs")
    if tokens.__class__ is not list or values.__class__ is not list or len(tokens) != len(values):
        return None
    tops = value.get("top_logprobs")
    if tops.__class__ is not list or len(tops) != len(tokens):
        tops = [None] * len(tokens)
    return [{"token": token, "logprob": logprob, "top_logprobs": [
        {"token": name, "logprob": number} for name, number in (top or {}).items()]}
        for token, logprob, top in zip(tokens, values, tops)]


def _usage_count(value, name):
    count = value.get(name) if value.__class__ is dict else None
    return int(count) if count.__class__ in (int, float) and 0 <= count < 1e15 else 0


def read_usage(usage):
    """A usage object of the chunked APIs as Usage; what is missing is 0."""
    cached = _usage_count(usage.get("prompt_tokens_details"), "cached_tokens") \
        or _usage_count(usage, "prompt_cache_hit_tokens")
    return Usage(_usage_count(usage, "prompt_tokens"), _usage_count(usage, "completion_tokens"),
                 _usage_count(usage.get("completion_tokens_details"), "reasoning_tokens"), cached)
