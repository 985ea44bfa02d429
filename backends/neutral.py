"""A request in words that fit every API, for recordings: what decides about its answer, and nothing else.

In: a GenerationRequest or ForwardedRequest. Out: a JSON-able dict; its keys for looking it up; how two of them
differ. A chat and a response that ask for the same give the same. No I/O; long histories take long.
"""
from hashlib import blake2b
from os.path import commonprefix

from api_common import dump_json, shown
from backends.redact import redact_value
from backends.volatile import VolatileNames, steady_value

# How an answer is delivered, kept or billed, and who asked
_NOT_NEUTRAL = frozenset((
    "stream", "stream_options", "store", "background", "metadata", "user", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prompt_cache_options", "cache_salt", "service_tier", "previous_response_id", "conversation",
    "truncation", "type", "stream_id", "generate"))
# What is told in other words
_RETOLD = frozenset((
    "model", "messages", "input", "instructions", "prompt", "tools", "functions", "tool_choice", "function_call",
    "response_format", "text", "max_tokens", "max_completion_tokens", "max_output_tokens", "reasoning", "reasoning_effort",
    "logprobs", "top_logprobs", "include", "stop", "n", "parallel_tool_calls"))
_OWN_INCLUDES = ("reasoning.encrypted_content", "message.output_text.logprobs")
_MESSAGE_KEYS = frozenset(("role", "content", "tool_calls", "function_call", "tool_call_id", "refusal", "id", "annotations",
                           "reasoning_content", "reasoning", "status"))
_SHOWN_BEFORE = 24                  # characters in front of the first that differs, in an error message


# ---- the request ------------------------------------------------------------------------------

def neutral_request(request, messages=None):
    """What a request asks for. messages: its chat messages, where they were read before.

    Returns {"model", "messages": [entry], "tools"?, ..., "fields"?: all else that it has, known here or not}, with
    "prompt" in place of messages for text completions, or {"call": "POST /embeddings", "model"?, "body"} for what is only passed on. An entry is {"role", "content"},
    {"call": name, "call_id", "arguments"} or {"output", "call_id"}.
    """
    if request.endpoint == "forward":
        told = {"call": "%s %s" % (request.method, request.path)}
        if request.model is not None:
            told["model"] = request.model
        if request.raw is not None:
            told["body"] = {name: value for name, value in request.raw.items()
                            if name != "model" and name != "user" and value is not None}
        return told
    raw = request.raw or {}
    told = {"model": request.model}
    if request.endpoint == "completions":
        told["prompt"] = neutral_prompt(request)
        if request.n != 1:
            told["choices"] = request.n
    else:
        if request.endpoint == "compact":
            told["task"] = "compact"
        if messages is None:
            messages = chat_messages_of(request)
        told["messages"] = neutral_messages(messages)
        if request.approvals:
            told["approvals"] = [approved for _, approved in request.approvals]
        _tell_tools(raw, told)
        if raw.get("prompt") is not None:       # a template
            told["prompt"] = raw["prompt"]
    _tell_limits(raw, told, request.endpoint)
    fields = {name: raw[name] for name in sorted(raw)
              if raw[name] is not None and name not in _NOT_NEUTRAL and name not in _RETOLD}
    if fields:
        told["fields"] = fields
    return told


def chat_messages_of(request):
    """The messages of a request that has any: as they came, or those of the whole chain. May raise TakesLong."""
    if request.endpoint == "chat" and request.raw is not None and request.raw.get("messages").__class__ is list:
        return request.raw["messages"]
    return request.history.messages()


def neutral_prompt(request):
    """A text completion's prompt; one of a batch, or all of one that was not taken apart."""
    if request.history.tokens is not None:
        return request.history.last_user_text
    prompt = request.raw.get("prompt")
    return prompt[0] if prompt.__class__ is list and len(prompt) == 1 and prompt[0].__class__ is str else prompt


def _tell_limits(raw, told, endpoint):
    for name in ("max_output_tokens", "max_completion_tokens", "max_tokens"):
        if raw.get(name) is not None:
            told["max_tokens"] = raw[name]
    text = raw.get("text") if raw.get("text").__class__ is dict else {}
    form = _neutral_format(raw.get("response_format") or text.get("format"))
    if form is not None:
        told["format"] = form
    if text.get("verbosity") is not None:
        told["verbosity"] = text["verbosity"]
    reasoning = raw.get("reasoning") if raw.get("reasoning").__class__ is dict else {}
    effort = reasoning.get("effort") or raw.get("reasoning_effort")
    if effort is not None:
        told["reasoning_effort"] = effort
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    if summary is not None:
        told["reasoning_summary"] = summary
    include = raw.get("include") if raw.get("include").__class__ is list else []
    if endpoint == "completions":
        if raw.get("logprobs") is not None:
            told["logprobs"] = raw["logprobs"]
    elif raw.get("logprobs") or "message.output_text.logprobs" in include:
        told["logprobs"] = raw.get("top_logprobs") or 0
    include = sorted(name for name in include if name.__class__ is str and name not in _OWN_INCLUDES)
    if include:
        told["include"] = include
    if raw.get("stop"):
        told["stop"] = [raw["stop"]] if raw["stop"].__class__ is str else raw["stop"]
    if endpoint != "completions" and raw.get("n") not in (None, 1):
        told["choices"] = raw["n"]
    if raw.get("parallel_tool_calls") is False:
        told["parallel_tool_calls"] = False


def _neutral_format(form):
    if form.__class__ is not dict or form.get("type") in (None, "text"):
        return None
    inner = form.get("json_schema")
    if inner.__class__ is dict:
        form = dict(inner, type="json_schema")
    return _given(form)


def _given(value):
    """A dict without what is null or false: as good as not said."""
    return {name: each for name, each in value.items() if each is not None and each is not False}


# ---- tools ------------------------------------------------------------------------------------

def _tell_tools(raw, told):
    tools, choice = raw.get("tools"), raw.get("tool_choice")
    if tools is None and raw.get("functions").__class__ is list:
        tools = [{"type": "function", "function": each} for each in raw["functions"]]
        choice = raw.get("function_call")
    if tools:
        told["tools"] = [_flat_tool(tool) for tool in tools] if tools.__class__ is list else tools
    choice = _flat_tool(choice)
    if choice.__class__ is dict and "type" not in choice:
        choice = dict(choice, type="function")
    if choice is not None and choice != "auto":
        told["tool_choice"] = choice


def _flat_tool(tool):
    """{"type": "function", "function": {...}} as Responses has it, without the inner object."""
    if tool.__class__ is not dict:
        return tool
    kind = tool.get("type") or "function"
    inner = tool.get(kind) if kind.__class__ is str else None
    if inner.__class__ is not dict:
        return _given(tool)
    return _given(dict(inner, type=kind))


# ---- messages ---------------------------------------------------------------------------------

def neutral_messages(messages):
    """Chat messages as a flat list of entries: what was said, calls, outputs. What is no message stays as it is."""
    entries = []
    for message in messages:
        if message.__class__ is not dict:
            entries.append(message)
            continue
        role, content = message.get("role"), neutral_content(message.get("content"))
        if role == "tool":
            entries.append({"output": content, "call_id": message.get("tool_call_id")})
            continue
        entry = {"role": "system" if role == "developer" else role, "content": content}
        if message.get("refusal"):
            entry["refusal"] = message["refusal"]
        entry.update((name, value) for name, value in message.items()
                     if name not in _MESSAGE_KEYS and value is not None)
        calls = message.get("tool_calls") if message.get("tool_calls").__class__ is list else []
        if message.get("function_call").__class__ is dict:
            calls = calls + [{"function": message["function_call"]}]
        if len(entry) > 2 or content or not calls:
            entries.append(entry)
        entries += [_call_entry(call) for call in calls]
    return entries


def _call_entry(call):
    if call.__class__ is not dict:
        return call
    for field in ("function", "custom"):
        body = call.get(field)
        if body.__class__ is dict:
            entry = {"call": body.get("name"), "call_id": call.get("id")}
            entry.update((name, body[name]) for name in ("arguments", "input") if body.get(name) is not None)
            if call.get("namespace") is not None:
                entry["namespace"] = call["namespace"]
            return entry
    return call


def neutral_content(content):
    """A message's content: a str where it is only text, else a list of str and {"image_url": ...} and the like."""
    if content is None:
        return ""
    if content.__class__ is not list:
        return content
    parts = []
    for part in content:
        if part.__class__ is dict and part.get("type") in ("text", "input_text", "output_text") \
                and part.get("text").__class__ is str:
            part = part["text"]
        if part.__class__ is str and parts and parts[-1].__class__ is str:
            parts[-1] += part
        elif part.__class__ is dict:
            parts.append(_neutral_part(part))
        else:
            parts.append(part)
    if not parts:
        return ""
    return parts[0] if len(parts) == 1 and parts[0].__class__ is str else parts


def _neutral_part(part):
    inner = part.get(part.get("type")) if part.get("type").__class__ is str else None
    if inner.__class__ is dict:
        inner = {name: value for name, value in inner.items() if value is not None and value != "auto"}
    return {part["type"]: inner} if inner is not None else _given(part)


# ---- looking up -------------------------------------------------------------------------------

def kept_request(told, literals=(), breathe=None):
    """A neutral request as it is written and compared: without secrets, media as their hash."""
    return redact_value(told, literals, True, breathe)


def steady_request(kept, breathe=None):
    """kept_request() without what is volatile, for normalised matching."""
    return steady_value(kept, VolatileNames(), breathe)


def request_key(told):
    """16 bytes, equal for equal requests."""
    return blake2b(dump_json(_sorted(told)), digest_size=16).digest()


def _sorted(value):
    if value.__class__ is dict:
        return {name: _sorted(each) for name, each in sorted(value.items())}
    if value.__class__ is list:
        return [_sorted(each) for each in value]
    return int(value) if value.__class__ is float and value.is_integer() else value


def request_leaves(told):
    """{path: value} of all that is no object or array, in the order in which it is said."""
    leaves = {}
    _walk_leaves(told, "", leaves)
    return leaves


def _walk_leaves(value, path, leaves):
    if value.__class__ is dict and value:
        for name in sorted(value, key=_told_order):
            _walk_leaves(value[name], "%s.%s" % (path, name) if path else name, leaves)
    elif value.__class__ is list and value:
        for number, each in enumerate(value):
            _walk_leaves(each, "%s[%d]" % (path, number), leaves)
    else:
        leaves[path] = value


_TOLD_FIRST = ("model", "task", "messages", "prompt", "role", "call", "body", "tools")


def _told_order(name):
    return _TOLD_FIRST.index(name) if name in _TOLD_FIRST else len(_TOLD_FIRST), name


def likeness(leaves, others):
    """How much two request_leaves() have in common, 0 to 1."""
    score = 0.0
    for path, value in leaves.items():
        if path in others:
            other = others[path]
            if value == other:
                score += 1.0
            elif value.__class__ is str and other.__class__ is str:
                score += 0.9 * len(commonprefix((value, other))) / max(len(value), len(other))
    return score / max(len(leaves), len(others), 1)


def first_difference(leaves, others):
    """(path, what the first has there, what the others have) in words, or None for equal ones."""
    for path, value in leaves.items():
        if path not in others:
            return path, _shown_leaf(value), "nothing"
        if others[path] != value:
            return (path,) + _shown_pair(value, others[path])
    for path, value in others.items():
        if path not in leaves:
            return path, "nothing", _shown_leaf(value)
    return None


def _shown_leaf(value):
    return "'%s'" % shown(value) if value.__class__ is str else shown(value)


def _shown_pair(value, other):
    """Two texts from shortly before the place where they part."""
    if value.__class__ is not str or other.__class__ is not str:
        return _shown_leaf(value), _shown_leaf(other)
    start = max(0, len(commonprefix((value, other))) - _SHOWN_BEFORE)
    lead = "..." if start else ""
    return _shown_leaf(lead + value[start:]), _shown_leaf(lead + other[start:])
