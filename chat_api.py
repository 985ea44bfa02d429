"""Chat completions: requests in, a generation request to the backend, chunks or one object out.

It validates, counts the prompt and routes; the assembler here turns deltas into the API's words.
Runs on whichever thread handles the request; it does no I/O.
"""
from itertools import chain, repeat

from api_common import (ANSWER_TOKENS, MEDIA_TOKENS, MESSAGE_TOKENS, SAMPLING_CHECKS, SERVERS_OWN_FIELDS, SIZE_LINES,
                        SSE_DONE, ApiError, Host, check_anything, check_array, check_boolean,
                        check_context, check_enum, check_fields, check_given_string, check_integer, check_metadata, check_min_tokens, check_model_name,
                        check_number, check_object, check_stream_options, check_streaming,
                        check_string, check_unknown, chunked_bytes, content_hash, content_text, dump_json, dump_string, escape_json,
                        invalid_type, invalid_value, item_id, missing_parameter, parse_body, shown,
                        unframed_bytes)
from api_tools import (CHAT_TOOL_TYPES, check_json_word, count_tool_tokens, read_output_format, read_tool_choice, read_tools,
                       tools_text)
from backends.contract import (AnnotationDelta, Finish, GenerationRequest, History, ReasoningDelta, RefusalDelta,
                               TextDelta, TextRun, ToolCallDelta, ToolChoice, ToolSpec, Usage)
from backends.prompt import Prompt, call_content, content_pieces
from gateway_requests import relayed_chat_request
from runs import Assembler, Completion
from stored_chats_api import stored_chat_node

SYSTEM_FINGERPRINT = b"fp_mockturtle"
_CHAT_ROLES = ("developer", "system", "user", "assistant", "tool", "function")

# ---- validation -------------------------------------------------------------------------------


def check_stop(value, path):
    """A string, or up to 4 of them; an empty array counts as not given (G)."""
    if value.__class__ is str:
        return
    if value.__class__ is not list:
        raise invalid_type(path, "a string or an array of strings", value)
    check_array(check_string(), high=4)(value, path)


def check_logit_bias(value, path):
    check_object(value, path)
    check = check_number(-100, 100)
    for token, bias in value.items():
        check(bias, "%s.%s" % (path, shown(token)))


_CHAT_CHECKS = dict(SAMPLING_CHECKS, **{
    "model": check_string(empty=False),
    "messages": check_array(low=1),
    "n": check_integer(1, 128),
    "stream": check_boolean,
    "stream_options": check_stream_options,
    "stop": check_stop,
    "max_tokens": check_integer(1),
    "max_completion_tokens": check_integer(1),
    "logit_bias": check_logit_bias,
    "logprobs": check_boolean,
    "top_logprobs": check_integer(0, 20),
    "seed": check_integer(),
    "user": check_string(),
    "safety_identifier": check_string(64),
    "prompt_cache_key": check_string(),
    "metadata": check_metadata,
    "store": check_boolean,
    "service_tier": check_enum("auto", "default", "flex", "scale", "priority", "fast"),
    "tools": check_array(check_object),
    "tool_choice": check_anything,      # read_tool_choice looks at it, with the tools
    "parallel_tool_calls": check_boolean,
    "response_format": check_object,
    "reasoning_effort": check_enum("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "verbosity": check_enum("low", "medium", "high"),
    "modalities": check_array(check_enum("text", "audio"), low=1),
    "audio": check_object,
    "prediction": check_object,
    "web_search_options": check_object,
    "moderation": check_object,
    "prompt_cache_options": check_object,
    "prompt_cache_retention": check_string(),
    "functions": check_array(check_object),
    "function_call": check_anything,
})

# Acted on, or echoed; what else is given is accepted and listed as ignored.
_CHAT_USED = frozenset(("model", "messages", "n", "stream", "stream_options", "max_tokens",
                        "max_completion_tokens", "seed", "min_tokens", "ignore_eos", "cache_salt", "stop", "logit_bias",
                        "service_tier", "reasoning_effort", "tools", "tool_choice",
                        "parallel_tool_calls", "response_format", "logprobs", "top_logprobs",
                        "functions", "function_call", "store", "metadata", "web_search_options"))

# A request of these alone needs none of the looks at how fields go together.
_CHAT_SIMPLE = frozenset(("model", "messages", "max_tokens", "temperature", "top_p", "user"))

_CHAT_PART_TYPES = {
    "system": ("text",), "developer": ("text",), "tool": ("text",), "function": ("text",),
    "assistant": ("text", "refusal"),
    "user": ("text", "image_url", "input_audio", "file"),
}


def _check_content(message, role, path):
    """A message's content: a string, or parts of the types that its role may have."""
    content = message.get("content")
    if content is None:
        if role == "assistant" and (message.get("tool_calls") or message.get("function_call")
                                    or message.get("refusal") or message.get("audio")):
            return
        if role in ("assistant", "function"):
            if "content" in message:
                return
        raise missing_parameter(path + ".content")
    if content.__class__ is str:
        return
    if content.__class__ is not list:
        raise invalid_type(path + ".content", "a string or an array of parts", content)
    if not content:
        raise ApiError(400, "Invalid '%s.content': the array is empty." % path, code="empty_array",
                       param=path + ".content")
    for index, part in enumerate(content):
        place = "%s.content[%d]" % (path, index)
        if part.__class__ is not dict:
            raise invalid_type(place, "an object", part)
        kind = part.get("type")
        if kind not in _CHAT_PART_TYPES[role]:
            raise invalid_value(place + ".type", "Invalid value for '%s.type': '%s'. Parts of a '%s' "
                                "message are: %s." % (place, shown(kind), role, ", ".join(
                                    "'%s'" % name for name in _CHAT_PART_TYPES[role])))
        field = kind
        if part.get(field) is None:
            raise missing_parameter("%s.%s" % (place, field))
        if kind in ("text", "refusal"):
            check_string()(part[field], "%s.%s" % (place, field))
        else:
            check_object(part[field], "%s.%s" % (place, field))


def _check_tool_calls(message, path):
    """The call ids of an assistant message."""
    calls = message.get("tool_calls")
    if not calls:
        return ()
    check_array(check_object)(calls, path + ".tool_calls")
    ids = []
    for index, call in enumerate(calls):
        place = "%s.tool_calls[%d]" % (path, index)
        check_given_string(call.get("id"), place + ".id")
        kind = call.get("type") or "function"
        check_enum("function", "custom")(kind, place + ".type")
        body = call.get(kind)
        if body.__class__ is not dict:
            raise missing_parameter("%s.%s" % (place, kind))
        check_given_string(body.get("name"), "%s.%s.name" % (place, kind))
        ids.append(call["id"])
    return ids


def _message_tokens(text, content, tokenizer, breathe):
    tokens = MESSAGE_TOKENS + (tokenizer.count(text) if breathe is None
                               else tokenizer.count_slowly(text, breathe))
    if content.__class__ is list:
        tokens += MEDIA_TOKENS * sum(1 for part in content if part.get("type") not in
                                     ("text", "refusal"))
    return tokens


def read_messages(messages, tokenizer, breathe=None):
    """Validate a chat's messages and make them a History.

    Raises ApiError 400 that names the message and the field.
    """
    said = []
    tokens = ANSWER_TOKENS
    last_user_text = ""
    known_calls = set()
    calls_made = 0
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.__class__ is not dict:
            raise invalid_type(path, "an object", message)
        role = message.get("role")
        if role is None:
            raise missing_parameter(path + ".role")
        if role not in _CHAT_ROLES:
            raise invalid_value(path + ".role", "Invalid value for '%s.role': '%s'. Supported values "
                                "are: %s." % (path, shown(role),
                                              ", ".join("'%s'" % name for name in _CHAT_ROLES)))
        content = message.get("content")
        if content.__class__ is str:
            text = content
        else:
            _check_content(message, role, path)
            text = content_text(content)
        if role == "user":
            last_user_text = text
        elif role == "assistant":
            calls = _check_tool_calls(message, path)
            known_calls.update(calls)
            calls_made += len(calls) or (message.get("function_call") is not None)
            for call in message.get("tool_calls") or ():
                body = call.get("function") or call.get("custom") or {}
                text += "%s%s" % (body.get("name"), body.get("arguments", body.get("input", "")))
        elif role == "function":
            check_given_string(message.get("name"), path + ".name")
        elif role == "tool":
            call_id = message.get("tool_call_id")
            check_given_string(call_id, path + ".tool_call_id")
            if call_id not in known_calls:
                raise ApiError(400, "Invalid parameter: messages with role 'tool' must answer a "
                               "preceding message's 'tool_calls'; '%s' is none of theirs."
                               % shown(call_id), param="messages.[%d].role" % index)
        tokens += _message_tokens(text, content, tokenizer, breathe)
        said += (role, text)
        if breathe is not None:
            breathe()
    return History(tokens, content_hash("\0".join(said)), last_user_text, lambda: messages, calls_made,
                   role in ("tool", "function"), None, _chat_prompt)


def _chat_prompt(history):
    """A chat's Prompt: tool definitions, then the messages, as they were counted."""
    head = () if history.definitions is None else ((None, tools_text(history.definitions)),)
    return Prompt([(message["role"], message["content"] if message.get("content").__class__ is str
                    and "tool_calls" not in message and "function_call" not in message else _message_pieces(message))
                   for message in history.messages()], head)


def _message_pieces(message):
    pieces = content_pieces(message.get("content"))
    if message["role"] != "assistant":      # whose calls are nobody's, and unchecked
        return pieces
    calls = [call.get("function") or call.get("custom") or {} for call in message.get("tool_calls") or ()]
    if message.get("function_call").__class__ is dict:
        calls.append(message["function_call"])
    if not calls:
        return pieces
    pieces = [pieces] if pieces.__class__ is str else pieces
    for body in calls:
        pieces += call_content(str(body.get("name")), str(body.get("arguments", body.get("input", ""))))
    return pieces


def parse_chat_request(body, tokenizer, breathe=None, strict=False):
    """A chat completion's body (dict) as a GenerationRequest. Raises ApiError 400.

    strict: the public service's own rules, where the lenient default is kinder.
    """
    unknown = check_fields(body, _CHAT_CHECKS)
    if strict:
        check_unknown(unknown + tuple(name for name in SERVERS_OWN_FIELDS if body.get(name) is not None))
    model = body.get("model")
    if model is None:
        raise missing_parameter("model")
    messages = body.get("messages")
    if messages is None:
        raise missing_parameter("messages")
    if strict:
        read_tools(body.get("tools"), known_types=CHAT_TOOL_TYPES)
        _check_answered(messages)
    if not _CHAT_SIMPLE.issuperset(body):
        return _parse_full_request(body, model, messages, unknown, tokenizer, breathe, strict)
    return GenerationRequest(model, read_messages(messages, tokenizer, breathe),
                             max_tokens=body.get("max_tokens"), raw=body, breathe=breathe,
                             ignored_fields=_ignored_fields(body, unknown))


def _check_answered(messages):
    """Every call of an assistant message is answered before the next other message (api-reference 4.2)."""
    waiting, at = {}, 0
    for index, message in enumerate(messages):
        role = message.get("role") if message.__class__ is dict else None
        if role == "tool":
            waiting.pop(shown(message.get("tool_call_id")), None)
            continue
        if waiting:
            break
        if role == "assistant" and message.get("tool_calls").__class__ is list:
            at = index
            waiting = {shown(call.get("id")): None for call in message["tool_calls"]
                       if call.__class__ is dict}
    if waiting:
        raise ApiError(400, "An assistant message with 'tool_calls' must be followed by tool messages that answer "
                       "each 'tool_call_id'; not answered: %s." % ", ".join(waiting),
                       param="messages.[%d].role" % (at + 1))


def _ignored_fields(body, unknown):
    if _CHAT_USED.issuperset(body):
        return unknown
    return unknown + tuple(key for key, value in body.items() if value is not None
                           and key in _CHAT_CHECKS and key not in _CHAT_USED)


def _parse_full_request(body, model, messages, unknown, tokenizer, breathe, strict):
    """parse_chat_request for a body with any fields, each checked by itself already."""
    check_streaming(body)
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise ApiError(400, "The 'top_logprobs' parameter is only allowed when 'logprobs' is true.",
                       param="top_logprobs")
    limit = body.get("max_completion_tokens")
    if body.get("max_tokens") is not None:
        if limit is not None:
            raise invalid_value("max_tokens", "Setting 'max_tokens' and 'max_completion_tokens' at the "
                                "same time is not supported.")
        limit = body["max_tokens"]
    least = check_min_tokens(body, limit, "max_tokens" if body.get("max_tokens") is not None
                             else "max_completion_tokens", body.get("n") or 1)
    given = {}
    if "tools" in body or "tool_choice" in body or "functions" in body:
        given["tools"], given["tool_choice"] = _read_chat_tools(body)
    if body.get("web_search_options") is not None:
        given["tools"] = given.get("tools", ()) + (ToolSpec(
            "web_search", None, None, body["web_search_options"], False, None, "web_search_options"),)
        if body.get("tool_choice") is None and body.get("function_call") is None:
            given["tool_choice"] = ToolChoice("auto", None)
    if body.get("response_format") is not None:
        given["output_format"] = read_output_format(body["response_format"], "response_format", strict)
    if body.get("logprobs"):
        given["logprobs"] = body.get("top_logprobs") or 0
    if body.get("stop"):
        given["stop"] = read_stop(body["stop"])
    if body.get("logit_bias"):
        given["banned"] = read_banned(body["logit_bias"], tokenizer)
    if least:
        given["min_tokens"] = least
    for name in ("ignore_eos", "n", "reasoning_effort", "cache_salt"):
        if body.get(name):
            given[name] = body[name]
    if body.get("seed") is not None:
        given["seed"] = body["seed"]
    if body.get("parallel_tool_calls") is False:
        given["parallel_tools"] = False
    history = read_messages(messages, tokenizer, breathe)
    definitions = body.get("tools") or body.get("functions")
    if definitions:
        history.definitions = definitions
        history.tokens += count_tool_tokens(definitions, tokenizer, breathe)
    if given.get("output_format") is not None and body["response_format"]["type"] == "json_object":
        check_json_word(given["output_format"], [content_text(message.get("content"))
                                                 for message in messages], "messages")
    return GenerationRequest(
        model, history, max_tokens=limit, ignored_fields=_ignored_fields(body, unknown), raw=body,
        breathe=breathe, **given)


def _read_chat_tools(body):
    """(tools, tool_choice); the deprecated `functions` and `function_call` say the same."""
    if body.get("functions") is not None and body.get("tools") is None:
        specs = read_tools([{"type": "function", "function": function} for function in body["functions"]],
                           "functions")
        choice = body.get("function_call")
        if choice.__class__ is dict:
            choice = {"type": "function", "function": choice}
        return specs, read_tool_choice(choice, specs, "function_call")
    specs = read_tools(body.get("tools"))
    return specs, read_tool_choice(body.get("tool_choice"), specs)


def read_banned(logit_bias, tokenizer):
    """The texts of the tokens that a logit_bias bans, which is what -100 does; one without text cannot be banned."""
    return frozenset(tokenizer.decode([int(token)]) for token, bias in logit_bias.items()
                     if bias <= -100 and token.isascii() and token.isdigit() and len(token) < 20) - {""}


def read_stop(value):
    """`stop` as a tuple of strings."""
    return (value,) if value.__class__ is str else tuple(value)


# ---- the assembler ----------------------------------------------------------------------------

class _ChatChoice:
    """What one choice has said so far."""

    __slots__ = ("opened", "escapes", "refusal", "reasoning", "calls", "logprobs", "reason",
                 "has_text")

    def __init__(self):
        self.opened = False
        self.escapes = []           # the content, as pieces of a JSON string
        self.has_text = False
        self.refusal = []
        self.reasoning = []
        self.calls = {}             # index -> [call_id, name, [pieces], kind]
        self.logprobs = None
        self.reason = None


class ChunkAssembler(Assembler):
    """What the two chunked APIs share: runs of text between a prefix and a suffix that never change.

    _run_parts(choice): (prefix, suffix) of a text frame. _opening(choice): frames that go before a
    choice's first text. _frame: chunked_bytes or unframed_bytes.
    """

    _chunked = False
    _frame = None

    def _run_parts(self, choice):
        raise NotImplementedError

    def _opening(self, choice):
        raise NotImplementedError

    def _hidden(self, choice):
        """Whether a choice is generated but not shown."""
        return False

    def frames(self, run):
        if not run.escapes or self._hidden(run.choice):
            return iter(())
        prefix, suffix = self._run_parts(run.choice)
        opening = self._opening(run.choice)
        self.absorb(run)            # first: who plays a run need not ask for more than its frames
        size = len(prefix) + len(suffix)
        escapes = run.escapes
        if self._chunked and size + max(map(len, escapes)) < len(SIZE_LINES):
            # The hot path: joins of four ready parts, and no Python between two frames. A dict and
            # json.dumps cost 3.8 us a token, a generator 0.16, this 0.1 and fewer cache lines.
            lines = [SIZE_LINES[size + len(escape)] for escape in escapes]
            frames = map(b"".join, zip(lines, repeat(prefix), escapes, repeat(suffix + b"\r\n")))
        else:
            frames = map(self._frame, map(b"".join, zip(repeat(prefix), escapes, repeat(suffix))))
        return chain((opening + next(frames),), frames)

    def joined(self, run):
        if not run.escapes or self._hidden(run.choice):
            return b""
        prefix, suffix = self._run_parts(run.choice)
        opening = self._opening(run.choice)
        self.absorb(run)
        return opening + self._frame(b"".join((
            prefix, (suffix + prefix).join(run.escapes), suffix)))


def renamed(common, key, value):
    """Ready JSON text `"key":value,...` with another value, which has no comma, for one of its first keys."""
    start = common.index(b'"%s":' % key) + len(key) + 3
    return common[:start] + value + common[common.index(b",", start):]


class ChatAssembler(ChunkAssembler):
    """Deltas to chat.completion.chunk frames and the chat.completion object.

    tail: the id's hex digits. include_usage: stream_options. choices: n. chunked: whether frames
    carry HTTP's chunk framing. legacy_calls: calls are told as the deprecated `function_call`.
    """

    _annotations = None             # {choice index: [those in chat's shape]}, once there is one

    def __init__(self, tail, created, model, choices=1, include_usage=False, chunked=False,
                 service_tier="default", legacy_calls=False):
        self._frame = chunked_bytes if chunked else unframed_bytes
        self._chunked = chunked
        self._include_usage = include_usage
        self._legacy_calls = legacy_calls
        self._tail = tail
        self._calls_made = 0
        self._choices = [_ChatChoice() for _ in range(choices)]
        # the keys that all chunks and the object share
        self._common = b'"id":"chatcmpl-%s","created":%d,"model":%s,"service_tier":%s,"system_fingerprint":"%s"' % (
            tail.encode("ascii"), created, dump_string(model), dump_string(service_tier),
            SYSTEM_FINGERPRINT)
        self._prefix = None         # of every chunk, made with the first
        self._suffix = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def rename(self, id=None, message_id=None, created=None):
        if id is not None and not self.keeps_id:
            self._common = renamed(self._common, b"id", dump_string(id))
        if created is not None:
            self._common = renamed(self._common, b"created", b"%d" % created)

    def start(self):
        """Nothing: the role goes with the first delta, whose kind it depends on."""
        return b""

    def feed(self, delta):
        kind = delta.__class__
        if kind is Usage:
            self.usage = delta
            return b""
        choice = self._choices[delta.choice]
        if kind is TextRun:
            return b"".join(self.frames(delta))
        if kind is TextDelta:
            if not delta.text:
                return b""
            escape = escape_json(delta.text)
            choice.escapes.append(escape)
            choice.has_text = True
            if delta.logprobs is not None:
                choice.logprobs = (choice.logprobs or []) + delta.logprobs
            return self._delta(delta.choice, b'"content":"%s"' % escape, delta.logprobs)
        if kind is RefusalDelta:
            if not delta.text:
                return b""
            choice.refusal.append(delta.text)
            return self._delta(delta.choice, b'"refusal":"%s"' % escape_json(delta.text),
                               none_yet=True)
        if kind is ReasoningDelta:
            # the field of the inference servers; the public API shows no reasoning in chat
            if not delta.text:
                return b""
            choice.reasoning.append(delta.text)
            return self._delta(delta.choice, b'"reasoning_content":"%s"' % escape_json(delta.text))
        if kind is ToolCallDelta:
            return self._feed_call(choice, delta)
        if kind is Finish:
            return self._feed_finish(choice, delta)
        if kind is AnnotationDelta:
            return self._feed_annotation(delta)
        if hasattr(delta, "error"):
            self.failed = delta.error
        return b""              # other items have no place in chat

    def _open(self, index, none_yet=False):
        """The role chunk, in front of a choice's first delta."""
        self._choices[index].opened = True
        content = b"null" if none_yet else b'""'
        return self._chunk(index, b'{"role":"assistant","content":%s,"refusal":null}' % content)

    def _run_parts(self, choice):
        return (b'%s{"index":%d,"delta":{"content":"' % (self._chunk_prefix(), choice),
                b'"},"logprobs":null,"finish_reason":null}]%s' % self._suffix)

    def _opening(self, choice):
        return b"" if self._choices[choice].opened else self._open(choice)

    def _chunk_prefix(self):
        if self._prefix is None:
            self._prefix = b'data: {%s,"object":"chat.completion.chunk","choices":[' % self._common
        return self._prefix

    def _chunk(self, index, delta, finish=b"null", logprobs=b"null"):
        if self.quiet:
            return b""
        return self._frame(b'%s{"index":%d,"delta":%s,"logprobs":%s,"finish_reason":%s}]%s' % (
            self._chunk_prefix(), index, delta, logprobs, finish, self._suffix))

    def _delta(self, index, fields, logprobs=None, none_yet=False):
        opening = b"" if self._choices[index].opened else self._open(index, none_yet)
        told = b"null" if logprobs is None else \
            b'{"content":%s,"refusal":null}' % dump_json(logprobs)
        return opening + self._chunk(index, b"{%s}" % fields, logprobs=told)

    def _feed_call(self, choice, delta):
        call = choice.calls.get(delta.index)
        if call is not None and not delta.arguments:
            return b""              # a token without text of its own
        if self._legacy_calls:
            return self._feed_legacy_call(choice, call, delta)
        custom = delta.kind == "custom"
        body = b"input" if custom else b"arguments"
        kind = b"custom" if custom else b"function"
        piece = escape_json(delta.arguments)
        if call is None:
            call_id = delta.call_id or item_id("call_", self._tail, self._calls_made)
            self._calls_made += 1
            choice.calls[delta.index] = [call_id, delta.name, [delta.arguments], delta.kind]
            fields = b'"tool_calls":[{"index":%d,"id":%s,"type":"%s","%s":{"name":%s,"%s":"%s"}}]' % (
                delta.index, dump_string(call_id), kind, kind, dump_string(delta.name), body, piece)
        else:
            call[2].append(delta.arguments)
            fields = b'"tool_calls":[{"index":%d,"%s":{"%s":"%s"}}]' % (delta.index, kind, body, piece)
        return self._delta(delta.choice, fields, none_yet=True)

    def _feed_annotation(self, delta):
        """Chat knows the citations of web pages alone."""
        if delta.annotation.get("type") != "url_citation":
            return b""
        annotation = {"type": "url_citation", "url_citation": {
            key: value for key, value in delta.annotation.items() if key != "type"}}
        if self._annotations is None:
            self._annotations = {}
        self._annotations.setdefault(delta.choice, []).append(annotation)
        return self._delta(delta.choice, b'"annotations":%s' % dump_json([annotation]))

    def _feed_legacy_call(self, choice, call, delta):
        if call is None:
            choice.calls[delta.index] = [None, delta.name, [delta.arguments], delta.kind]
            fields = b'"function_call":{"name":%s,"arguments":"%s"}' % (
                dump_string(delta.name), escape_json(delta.arguments))
        else:
            call[2].append(delta.arguments)
            fields = b'"function_call":{"arguments":"%s"}' % escape_json(delta.arguments)
        return self._delta(delta.choice, fields, none_yet=True)

    def _feed_finish(self, choice, delta):
        choice.reason = delta.reason
        if choice.calls and delta.reason in ("stop", "tool_calls"):
            # api-reference 4.3: always, when calls were made
            choice.reason = "function_call" if self._legacy_calls else "tool_calls"
        opening = b"" if choice.opened else self._open(delta.choice)
        return opening + self._chunk(delta.choice, b"{}", dump_string(choice.reason))

    def absorb(self, run):
        if run.escapes:
            choice = self._choices[run.choice]
            choice.opened = choice.has_text = True
            choice.escapes += run.escapes

    def finish(self):
        frames = b""
        for index, choice in enumerate(self._choices):
            if choice.reason is None:           # a backend that ended without saying so
                frames += self.feed(Finish("stop", index))
        return frames

    def end(self):
        usage = b""
        if self._include_usage:
            usage = self._frame(b'%s],"usage":%s}\n\n' % (self._chunk_prefix(), chat_usage(self.usage)))
        return usage + self._frame(SSE_DONE)

    def fail(self, error):
        return self._frame(b"data: %s\n\n" % error.envelope())

    def result(self):
        return b'{%s,"object":"chat.completion","choices":[%s],"usage":%s}' % (
            self._common,
            b",".join(self._choice_object(index) for index in range(len(self._choices))),
            chat_usage(self.usage))

    def _choice_object(self, index):
        choice = self._choices[index]
        refusal = b"null"
        if choice.refusal:
            refusal = b'"%s"' % escape_json("".join(choice.refusal))
        content = b"null"
        if choice.has_text or not (choice.refusal or choice.calls):
            content = b'"%s"' % b"".join(choice.escapes)
        extra = b""
        if choice.reasoning:
            extra += b',"reasoning_content":"%s"' % escape_json("".join(choice.reasoning))
        if choice.calls and self._legacy_calls:
            _, name, pieces, _ = choice.calls[0]
            extra += b',"function_call":%s' % dump_json({"name": name, "arguments": "".join(pieces)})
        elif choice.calls:
            extra += b',"tool_calls":%s' % dump_json([
                _chat_call(*choice.calls[number]) for number in sorted(choice.calls)])
        logprobs = b"null"
        if choice.logprobs is not None:
            logprobs = b'{"content":%s,"refusal":null}' % dump_json(choice.logprobs)
        if self._annotations is not None:
            extra = b',"annotations":%s%s' % (dump_json(self._annotations.get(index, [])), extra)
        else:
            extra = b',"annotations":[]' + extra
        return (b'{"index":%d,"message":{"role":"assistant","content":%s,"refusal":%s%s},'
                b'"logprobs":%s,"finish_reason":%s}' % (
                    index, content, refusal, extra, logprobs, dump_string(choice.reason)))


def chat_usage(usage):
    """A Usage or None as the usage object of the two chunked APIs."""
    usage = usage or Usage(0, 0)
    return (b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":'
            b'{"cached_tokens":%d,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":%d,'
            b'"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}' % (
                usage.prompt_tokens, usage.completion_tokens,
                usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
                usage.reasoning_tokens))


def _chat_call(call_id, name, pieces, kind):
    body = "".join(pieces)
    if kind == "custom":
        return {"id": call_id, "type": "custom", "custom": {"name": name, "input": body}}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": body}}


# ---- the mixin --------------------------------------------------------------------------------

class ChatApiMixin(Host):
    """POST /v1/chat/completions."""

    def chat_create(self):
        body = parse_body(self.body_bytes, self.breathe)
        request = self._chat_unjudged(body) if self.backend.judges else None
        if request is None:
            request = parse_chat_request(body, self.tokenizer, self.breathe, self.settings.strict)
            check_model_name(request.model, self.settings)
            request.max_tokens = check_context(request.history.tokens, request.max_tokens, self.settings.max_model_len,
                                               "messages")
        streamed = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        tier = body.get("service_tier") or "auto"
        tail = self.ids.tail()
        assembler = ChatAssembler(
            tail, self.ids.created(), request.model, request.n,
            bool(options.get("include_usage")), streamed and self.chunked,
            "default" if tier == "auto" or tier.__class__ is not str else tier,
            legacy_calls=body.get("functions") is not None and body.get("tools") is None)
        keep = None
        if body.get("store"):
            keep = self._chat_keeper("chatcmpl-" + tail, assembler, body)
            assembler.keeps_id = True
        if self.backend.wants_origin:
            request.headers = self.headers
        self.send_completion(Completion(request, self.backend, assembler, self.metrics, self.log_exception,
                                        keep=keep, keep_blocking=keep is not None and self.store.blocking), streamed)

    def _chat_unjudged(self, body):
        """The request as it came, for a backend that judges it; None when it is to be read here."""
        request = relayed_chat_request(body)
        request.breathe = self.breathe
        if not self.backend.takes(request, len(self.body_bytes)):
            return None
        check_model_name(request.model, self.settings)
        request.authorization = self.passed_authorization()
        return request

    def _chat_keeper(self, id, assembler, body):
        """What stores a completion when it is finished."""
        store, wall, messages = self.store, self.clock.time, dump_json(body["messages"])

        def keep(frames):
            store.put(stored_chat_node(id, wall(), assembler.result(), messages, body["model"],
                                       body.get("metadata") or {}))
        return keep
