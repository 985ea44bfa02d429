"""What a Responses request may say, and how its object repeats it.

In: a decoded body. Out: ApiErrors for its fields, and the echoed keys as JSON bytes. The rules of the
calls that only describe a turn (input_tokens, compact) are here as well.
"""
from api_common import (ApiError, SAMPLING_CHECKS, check_anything, check_array, check_boolean, check_enum, check_given_string, check_integer,
                        check_metadata, check_object, check_stream_options, check_string, dump_json, dump_string,
                        invalid_type, shown)

RESPONSE_INCLUDES = (
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs", "reasoning.encrypted_content", "message.output_text.logprobs")


# ---- validation -------------------------------------------------------------------------------

def _check_input(value, path):
    if value.__class__ is not str and value.__class__ is not list:
        raise invalid_type(path, "a string or an array of items", value)


def _check_conversation(value, path):
    if value.__class__ is dict:
        check_given_string(value.get("id"), path + ".id")
    elif value.__class__ is not str:
        raise invalid_type(path, "a conversation id or an object with one", value)


_check_effort = check_enum("none", "minimal", "low", "medium", "high", "xhigh", "max")
_check_summary = check_enum("auto", "concise", "detailed")
_check_reasoning_context = check_enum("auto", "current_turn", "all_turns")


def _check_reasoning(value, path):
    check_object(value, path)
    if value.get("effort") is not None:
        _check_effort(value["effort"], path + ".effort")
    if value.get("context") is not None:
        _check_reasoning_context(value["context"], path + ".context")
    for key in ("summary", "generate_summary"):
        if value.get(key) is not None:
            _check_summary(value[key], "%s.%s" % (path, key))


_check_format_type = check_enum("text", "json_object", "json_schema")
_check_verbosity = check_enum("low", "medium", "high")


def _check_text(value, path):
    check_object(value, path)
    form = value.get("format")
    if form is not None:
        check_object(form, path + ".format")
        _check_format_type(form.get("type"), path + ".format.type")
    if value.get("verbosity") is not None:
        _check_verbosity(value["verbosity"], path + ".verbosity")


def _check_template(value, path):
    """A template's reference. Templates are not known here: it is echoed, and says nothing."""
    check_object(value, path)
    check_given_string(value.get("id"), path + ".id")
    if value.get("version") is not None:
        check_string()(value["version"], path + ".version")
    if value.get("variables") is not None:
        check_object(value["variables"], path + ".variables")


_check_threshold = check_integer(1000)


def _check_management(value, path):
    check_object(value, path)
    check_given_string(value.get("type"), path + ".type")
    check_enum("compaction")(value["type"], path + ".type")
    if value.get("compact_threshold") is not None:
        _check_threshold(value["compact_threshold"], path + ".compact_threshold")


RESPONSE_CHECKS = dict(SAMPLING_CHECKS, **{
    "model": check_string(empty=False),
    "input": _check_input,
    "instructions": check_string(),
    "previous_response_id": check_string(),
    "conversation": _check_conversation,
    "store": check_boolean,
    "background": check_boolean,
    "stream": check_boolean,
    "stream_options": check_stream_options,
    "max_output_tokens": check_integer(16),
    "max_tool_calls": check_integer(1),
    "top_logprobs": check_integer(0, 20),
    "parallel_tool_calls": check_boolean,
    "tools": check_array(check_object),
    "tool_choice": check_anything,
    "text": _check_text,
    "reasoning": _check_reasoning,
    "include": check_array(check_enum(*RESPONSE_INCLUDES)),
    "truncation": check_enum("auto", "disabled"),
    "metadata": check_metadata,
    "service_tier": check_enum("auto", "default", "flex", "scale", "priority", "fast", "ultrafast"),
    "safety_identifier": check_string(64),
    "prompt_cache_key": check_string(),
    "prompt_cache_retention": check_string(),
    "prompt_cache_options": check_object,
    "user": check_string(),
    "prompt": _check_template,
    "context_management": check_array(_check_management, low=1),
    "moderation": check_object,
})

# Acted on, or echoed; what else is given is accepted and listed as ignored.
RESPONSE_USED = frozenset(("model", "input", "instructions", "previous_response_id", "store", "stream",
                            "stream_options", "max_output_tokens", "min_tokens", "ignore_eos", "cache_salt",
                            "metadata", "service_tier", "reasoning", "tools", "tool_choice",
                            "parallel_tool_calls", "max_tool_calls", "text", "include", "top_logprobs", "background",
                            "conversation", "truncation", "prompt", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
                            "safety_identifier", "user"))

# What only describes a turn takes the turn's own fields, and nothing about how it is answered.
INPUT_TOKENS_CHECKS = dict({name: RESPONSE_CHECKS[name] for name in (
    "model", "input", "previous_response_id", "conversation", "instructions", "tools", "tool_choice", "text",
    "reasoning", "truncation", "parallel_tool_calls")}, personality=check_string())
COMPACT_CHECKS = dict({name: RESPONSE_CHECKS[name] for name in (
    "model", "input", "previous_response_id", "instructions", "prompt_cache_retention", "prompt_cache_options",
    "service_tier")}, prompt_cache_key=check_string(64))


def check_includes(query):
    """`include` of a call that reads: the values that a create knows too."""
    check_array(check_enum(*RESPONSE_INCLUDES))(query.get("include") or [], "include")


def conversation_not_found(id):
    return ApiError(404, "Conversation with id '%s' not found." % shown(id))


def previous_not_found(id):
    """It was never there, was not stored, is deleted, expired or evicted: the service tells none from another."""
    return ApiError(400, "Previous response with id '%s' not found." % shown(id),
                    code="previous_response_not_found", param="previous_response_id")


def conversation_locked(id):
    return ApiError(400, "Another process is currently operating on this conversation ('%s'). Please retry in a "
                    "few seconds." % shown(id), code="conversation_locked", param="conversation")


# ---- the echo ---------------------------------------------------------------------------------
# The object's keys that repeat the request: ready texts for what is not given, one dump for each
# key that is. A dict and json.dumps of the whole object cost 13 us, this 3.

_ECHO_DEFAULTS = (
    ("instructions", b"null"), ("model", b"null"), ("parallel_tool_calls", b"true"),
    ("tool_choice", b'"auto"'), ("tools", b"[]"),
    ("text", b'{"format":{"type":"text"},"verbosity":"medium"}'),
    ("temperature", b"1.0"), ("top_p", b"1.0"), ("top_logprobs", b"0"),
    ("presence_penalty", b"0.0"), ("frequency_penalty", b"0.0"),
    ("reasoning", b'{"effort":null,"summary":null}'), ("truncation", b'"disabled"'),
    ("max_output_tokens", b"null"), ("max_tool_calls", b"null"), ("previous_response_id", b"null"),
    ("safety_identifier", b"null"), ("prompt_cache_key", b"null"), ("user", b"null"),
    ("store", b"true"), ("background", b"false"), ("service_tier", b'"default"'),
    ("metadata", b"{}"))
_ECHO_WHEN_GIVEN = frozenset(("prompt", "prompt_cache_retention", "prompt_cache_options"))
_ECHO_PLACE = {name: place for place, (name, _) in enumerate(_ECHO_DEFAULTS)}
_ECHO_READY = [b'"%s":%s' % (name.encode("ascii"), value) for name, value in _ECHO_DEFAULTS]
_ECHO_KEYS = [b'"%s":' % name.encode("ascii") for name, _ in _ECHO_DEFAULTS]


def _echo_tool(tool):
    """A tool as the object shows it: function tools with all their keys, flat."""
    kind = tool.get("type")
    nested = tool.get("function")
    if kind in ("function", None) and nested.__class__ is dict:
        tool = dict(nested, type="function")        # the chat form, which some clients send
        kind = "function"
    if kind != "function":
        return tool
    shape = {"type": "function", "name": tool.get("name"), "description": tool.get("description"),
             "parameters": tool.get("parameters"), "strict": tool.get("strict", True)}
    if shape["strict"] is None:
        shape["strict"] = True
    return dict(tool, **shape)


def _echo_value(name, value):
    if name == "tools":
        return [_echo_tool(tool) for tool in value]
    if name == "text":
        return {"format": value.get("format") or {"type": "text"},
                "verbosity": value.get("verbosity") or "medium"}
    if name == "reasoning":
        return dict(value, effort=value.get("effort"), summary=value.get("summary"))
    if name == "prompt":
        return dict(value, version=value.get("version"), variables=value.get("variables"))
    if name == "service_tier":
        return "default" if value == "auto" else value
    return value


def build_echo(body, conversation=None):
    """The echoed keys of a response object for this request, as JSON bytes without braces.

    conversation: the id of the one that the turn belongs to.
    """
    parts = list(_ECHO_READY)
    if conversation is not None:
        parts.append(b'"conversation":{"id":%s}' % dump_string(conversation))
    for name, value in body.items():
        place = _ECHO_PLACE.get(name)
        if value is None:
            continue
        if place is None:
            if name in _ECHO_WHEN_GIVEN:
                parts.append(b'"%s":%s' % (name.encode("ascii"), dump_json(_echo_value(name, value))))
        else:
            if value.__class__ is str and name != "service_tier":
                parts[place] = _ECHO_KEYS[place] + dump_string(value)
            elif value.__class__ is int:
                parts[place] = b"%s%d" % (_ECHO_KEYS[place], value)
            else:
                parts[place] = _ECHO_KEYS[place] + dump_json(_echo_value(name, value))
    return b",".join(parts)
