"""A GenerationRequest as the request that a chat-completions server understands.

In: a request of any of our APIs. Out: the path, the JSON body, and what had to be left out. A chat or text
completion goes out as it came in; a response is translated. No I/O.
"""
from api_common import ApiError, content_text, shown
from backends.contract import BuiltinName

# Fields of a Responses request that chat servers know under the same name
_SAME_FIELDS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "parallel_tool_calls", "user",
                "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "min_tokens",
                "ignore_eos", "cache_salt", "seed", "stop", "logit_bias", "top_k", "min_p", "repetition_penalty", "top_a", "typical_p",
                "chat_template_kwargs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar",
                "structured_outputs", "cache_prompt", "id_slot", "keep_alive", "num_ctx", "options", "provider", "lora",
                "skip_special_tokens", "stop_token_ids", "include_stop_str_in_output", "priority", "mirostat",
                "mirostat_tau", "mirostat_eta", "dry_multiplier", "xtc_probability", "typ_p", "thinking",
                "enable_thinking")
# ... that this server acts on itself, or puts into the translation
_OWN_FIELDS = frozenset((
    "model", "input", "instructions", "previous_response_id", "conversation", "store", "stream", "background",
    "metadata", "tools", "tool_choice", "text", "reasoning", "include", "top_logprobs", "max_output_tokens",
    "truncation", "type", "stream_id"))
_MEDIA_PARTS = ("image_url", "file", "input_audio")
# The one parameter of a custom tool that is shown as a function
_CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
                      "additionalProperties": False}
_COMPACT_TASK = ("Summarise the conversation so far for whoever continues it: facts, decisions, results of tools, "
                 "what is still to be done. Answer with the summary alone.")


class UpstreamCall:
    """What goes to an upstream. path: under its base URL. body: dict. dropped: what of the context could not be
    forwarded, in words. tools: see upstream_deltas.ToolCallReader."""

    __slots__ = ("path", "body", "dropped", "tools")

    def __init__(self, path, body, dropped=(), tools=None):
        self.path = path
        self.body = body
        self.dropped = list(dropped)
        self.tools = tools or {}


def unforwarded_fields(request, settings):
    """The fields of a request that no upstream hears of and nobody here acts on: a tuple of names."""
    if request.endpoint not in ("responses", "compact"):
        return tuple(name for name in settings.upstream_drop if request.raw.get(name) is not None
                     and name not in ("stream", "stream_options"))
    raw, left = request.raw, []
    for name, value in raw.items():
        if value is not None and (name not in _OWN_FIELDS and name not in _SAME_FIELDS
                                  and not (name == "stream_options" and not value)
                                  or name in settings.upstream_drop):
            left.append(name)
    text = raw.get("text")
    if text.__class__ is dict and text.get("verbosity") is not None and "verbosity" in settings.upstream_drop:
        left.append("text.verbosity")
    if raw.get("reasoning") is not None and "reasoning_effort" in settings.upstream_drop:
        left.append("reasoning.effort")
    for spec in request.tools:
        if spec.kind not in ("function", "custom"):
            left.append("tools." + spec.kind)
    if request.tool_choice.names and any(name.__class__ is BuiltinName for name in request.tool_choice.names):
        left.append("tool_choice")
    return tuple(dict.fromkeys(left))


def build_call(request, model, settings):
    """An UpstreamCall for a request. model: the name that the upstream knows.

    Raises ApiError 400 with --refuse-ignored for content that cannot be forwarded.
    """
    if request.endpoint in ("responses", "compact"):
        call = _translated(request, settings)
    else:
        call = _as_it_came(request)
    call.body["model"] = model
    if settings.upstream_no_stream:
        call.body.pop("stream", None)
        call.body.pop("stream_options", None)
    else:
        call.body["stream"] = True      # also when our client wants one object: so time-outs see each token
        options = call.body.get("stream_options")
        call.body["stream_options"] = dict(options if options.__class__ is dict else {}, include_usage=True)
    for name in settings.upstream_drop:
        call.body.pop(name, None)
    if call.dropped and settings.refuse_ignored:
        raise ApiError(400, "This cannot be forwarded to the upstream: %s." % call.dropped[0],
                       code="unsupported_parameter", param="input")
    return call


def _as_it_came(request):
    """A chat or text completion: every field, known or not; what this server does itself stays here."""
    body = {name: value for name, value in request.raw.items() if name not in ("store", "metadata") or value is None}
    return UpstreamCall("/completions" if request.endpoint == "completions" else "/chat/completions", body)


# ---- responses --------------------------------------------------------------------------------

def _translated(request, settings):
    raw = request.raw
    tools, names, by_tool = _chat_tools(request)
    call = UpstreamCall("/chat/completions", {}, tools=by_tool)
    body = call.body
    body["messages"] = chat_messages(request.history.messages(), settings.upstream_system_role,
                                     settings.upstream_reasoning_field, names, call.dropped)
    if request.endpoint == "compact":
        body["messages"].append({"role": "user", "content": _COMPACT_TASK})
    for name in _SAME_FIELDS:
        if raw.get(name) is not None:
            body[name] = raw[name]
    if request.max_tokens is not None:
        body[settings.upstream_max_tokens_field] = request.max_tokens
    if tools:
        body["tools"] = tools
        _put_tool_choice(body, request, names)
    else:
        body.pop("parallel_tool_calls", None)       # refused where there are no tools
    text = raw.get("text")
    if text.__class__ is dict:
        _put_format(body, text)
    reasoning = raw.get("reasoning")
    if reasoning.__class__ is dict and reasoning.get("effort") is not None:
        body["reasoning_effort"] = reasoning["effort"]
    if request.logprobs is not None:
        body["logprobs"] = True
        if request.logprobs:
            body["top_logprobs"] = request.logprobs
    return call


def _put_format(body, text):
    form = text.get("format")
    if form.__class__ is dict and form.get("type") == "json_object":
        body["response_format"] = {"type": "json_object"}
    elif form.__class__ is dict and form.get("type") == "json_schema":
        inner = form["json_schema"] if form.get("json_schema").__class__ is dict else form
        schema = {name: inner[name] for name in ("name", "description", "schema", "strict")
                  if inner.get(name) is not None}
        body["response_format"] = {"type": "json_schema", "json_schema": schema} if "schema" in schema \
            else {"type": "json_object"}
    if text.get("verbosity") is not None:
        body["verbosity"] = text["verbosity"]


def _chat_tools(request):
    """(tools as chat has them, {(name, namespace): name there}, {name there: (name, namespace, custom)}).

    Only those that a tool_choice allows; custom tools are functions with one string, a group's name stands in
    front of its tools' names.
    """
    tools, names, back = [], {}, {}
    allowed = request.tool_choice.names
    for spec in request.tools:
        if spec.kind not in ("function", "custom"):
            continue
        name = spec.name if spec.namespace is None else "%s__%s" % (spec.namespace, spec.name)
        if name in back:
            continue
        names[(spec.name, spec.namespace)] = name
        back[name] = (spec.name, spec.namespace, spec.kind == "custom")
        if allowed is not None and spec.name not in allowed:
            continue
        function = {"name": name}
        description = spec.description or ""
        if spec.kind == "custom":
            description = _custom_description(description, spec.parameters)
            function["parameters"] = _CUSTOM_PARAMETERS
        else:
            function["parameters"] = spec.parameters if spec.parameters is not None \
                else {"type": "object", "properties": {}}
            if spec.strict:
                function["strict"] = True
        if description:
            function["description"] = description
        tools.append({"type": "function", "function": function})
    return tools, names, back


def _custom_description(description, form):
    """A custom tool's description, with the grammar that its input must follow."""
    if form.__class__ is dict and form.get("type") == "grammar" and form.get("definition").__class__ is str:
        return "%s\n\nThe input must follow this %s grammar:\n%s" % (
            description, form.get("syntax") or "formal", form["definition"])
    return description


def _put_tool_choice(body, request, names):
    choice = request.tool_choice
    given = request.raw.get("tool_choice")
    if choice.mode == "required" and choice.names is not None and len(body["tools"]) == 1 \
            and not (given.__class__ is dict and given.get("type") == "allowed_tools"):
        body["tool_choice"] = {"type": "function", "function": {"name": body["tools"][0]["function"]["name"]}}
    elif given is not None:
        body["tool_choice"] = choice.mode


# ---- messages ---------------------------------------------------------------------------------

def chat_messages(messages, system_role, reasoning_field, names, dropped):
    """Messages as responses_items.items_to_messages makes them, as strict servers and templates want them.

    One instruction message at the head; an assistant's words and calls in one message, its calls' outputs right
    behind it; custom calls as functions; pictures that a tool gave in a user message of their own.
    system_role: of instructions, system or developer. reasoning_field: what earlier reasoning goes back as, or "".
    names: {(name, namespace): name for the upstream}. dropped: takes what is left out.
    """
    out = []
    media = []                          # of tool outputs: said when the run of outputs is over
    known = set()                       # ids of the calls so far
    for message in messages:
        role = message["role"]
        if role != "tool" and media:
            out.append({"role": "user", "content": media})
            media = []
        if role == "tool":
            if message["tool_call_id"] not in known:
                dropped.append("output of '%s'" % shown(message["tool_call_id"]))   # chat has no words for its call
                continue
            content = message["content"]
            if content.__class__ is list:
                media += [part for part in content if part.get("type") in _MEDIA_PARTS]
                content = content_text(content) or ("(see the next message)" if media else "")
            out.append({"role": "tool", "tool_call_id": message["tool_call_id"], "content": content})
        elif role in ("system", "developer"):
            if out and out[-1]["role"] == system_role and len(out) == 1:
                out[0]["content"] = "%s\n\n%s" % (content_text(out[0]["content"]), content_text(message["content"]))
            else:
                out.append({"role": system_role, "content": content_text(message["content"])})
        elif role == "assistant":
            _add_assistant(out, message, reasoning_field, names, known)
        else:
            out.append({"role": role, "content": _sendable(message["content"], dropped)})
    if media:
        out.append({"role": "user", "content": media})
    return out


def _add_assistant(out, message, reasoning_field, names, known):
    calls = [_chat_call_of(call, names) for call in message.get("tool_calls") or ()]
    known.update(call["id"] for call in calls)
    content = message.get("content")
    if content.__class__ is list:       # words and refusals: a string is what every server takes
        content = content_text(content)
    last = out[-1] if out and out[-1]["role"] == "assistant" else None
    if last is None:
        last = {"role": "assistant", "content": content}
        out.append(last)
    elif content:
        last["content"] = (last["content"] or "") + content
    thought = message.get("reasoning_content")
    if thought and reasoning_field:
        last[reasoning_field] = last.get(reasoning_field, "") + thought
    if calls:
        last["tool_calls"] = last.get("tool_calls", []) + calls
    elif last["content"] is None and "tool_calls" not in last:
        last["content"] = ""


def _chat_call_of(call, names):
    """A tool call as a function call."""
    body = call.get("custom")
    if body is not None:
        from json import dumps
        body = {"name": body["name"], "arguments": dumps({"input": body["input"]}, ensure_ascii=False)}
    else:
        body = call["function"]
    name = names.get((body["name"], call.get("namespace")), body["name"])
    return {"id": call["id"], "type": "function", "function": {"name": name, "arguments": body["arguments"]}}


def _sendable(content, dropped):
    """A user's content without what only its own service could look up."""
    if content.__class__ is str:
        return content
    parts = []
    for part in content:
        kind = part.get("type")
        if kind == "image_url" and not _is_url(part["image_url"].get("url")):
            dropped.append("input_image.file_id")
        elif kind == "file" and not part["file"].get("file_data"):
            dropped.append("input_file.file_id" if part["file"].get("file_id") else "input_file.file_url")
        elif kind in ("text",) + _MEDIA_PARTS:
            parts.append(part)
        else:
            dropped.append(shown(kind))
    return parts


def _is_url(value):
    return value.__class__ is str and (":" in value[:12])
