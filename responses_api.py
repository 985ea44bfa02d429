"""The Responses API: stateful turns in, a generation request to the backend, the node to the store.

It validates, resolves `previous_response_id` to a chain, echoes the request and keeps the finished
response before its terminal event goes out. Runs on whichever thread handles the request.
"""
import re
from hashlib import blake2b

from api_common import (ANSWER_TOKENS, MESSAGE_TOKENS, SAMPLING_CHECKS, SERVERS_OWN_FIELDS, ApiError, Host, TakesLong, build_page,
                        check_anything, check_array, check_boolean, check_enum, check_fields,
                        check_integer, check_metadata, check_min_tokens, check_model_name,
                        check_object,
                        check_stream_options, check_streaming, check_string, check_unknown,
                        dump_json, dump_string,
                        invalid_type, invalid_value, missing_parameter, parse_body,
                        parse_page_query, shown)
from api_tools import RESPONSE_TOOL_TYPES, count_tool_tokens, check_json_word, read_output_format, read_tool_choice, read_tools
from backends.contract import GenerationRequest, History
from responses_assembler import ResponseAssembler
from responses_items import items_to_messages, read_input
from runs import Completion
from state.contract import LONG_CHAIN_TURNS, Node, StoreFull

_RESPONSE_INCLUDES = (
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs", "reasoning.encrypted_content", "message.output_text.logprobs")
_RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


# ---- validation -------------------------------------------------------------------------------

def _check_input(value, path):
    if value.__class__ is not str and value.__class__ is not list:
        raise invalid_type(path, "a string or an array of items", value)


def _check_conversation(value, path):
    if value.__class__ is dict:
        check_string(empty=False)(value.get("id"), path + ".id")
    elif value.__class__ is not str:
        raise invalid_type(path, "a conversation id or an object with one", value)


_check_effort = check_enum("none", "minimal", "low", "medium", "high", "xhigh", "max")
_check_summary = check_enum("auto", "concise", "detailed")


def _check_reasoning(value, path):
    check_object(value, path)
    if value.get("effort") is not None:
        _check_effort(value["effort"], path + ".effort")
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


_RESPONSE_CHECKS = dict(SAMPLING_CHECKS, **{
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
    "include": check_array(check_enum(*_RESPONSE_INCLUDES)),
    "truncation": check_enum("auto", "disabled"),
    "metadata": check_metadata,
    "service_tier": check_enum("auto", "default", "flex", "scale", "priority", "fast", "ultrafast"),
    "safety_identifier": check_string(64),
    "prompt_cache_key": check_string(),
    "prompt_cache_retention": check_string(),
    "prompt_cache_options": check_object,
    "user": check_string(),
    "prompt": check_object,
    "context_management": check_array(check_object, low=1),
    "moderation": check_object,
})

# Acted on, or echoed; what else is given is accepted and listed as ignored.
_RESPONSE_USED = frozenset(("model", "input", "instructions", "previous_response_id", "store", "stream",
                            "stream_options", "max_output_tokens", "min_tokens", "ignore_eos",
                            "metadata", "service_tier", "reasoning", "tools", "tool_choice",
                            "parallel_tool_calls", "text", "include", "top_logprobs"))


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
    if name == "service_tier":
        return "default" if value == "auto" else value
    return value


def build_echo(body):
    """The echoed keys of a response object for this request, as JSON bytes without braces."""
    parts = list(_ECHO_READY)
    for name, value in body.items():
        place = _ECHO_PLACE.get(name)
        if place is not None and value is not None:
            if value.__class__ is str and name != "service_tier":
                parts[place] = _ECHO_KEYS[place] + dump_string(value)
            elif value.__class__ is int:
                parts[place] = b"%s%d" % (_ECHO_KEYS[place], value)
            else:
                parts[place] = _ECHO_KEYS[place] + dump_json(_echo_value(name, value))
    return b",".join(parts)


# ---- a turn -----------------------------------------------------------------------------------

class _Turn:
    """One response on its way: what the store needs when it is complete."""

    __slots__ = ("id", "tail", "parent", "read", "tokens", "store", "assembler", "wall")

    def keep(self):
        """Store the finished response. Called before the terminal event is written."""
        assembler, read = self.assembler, self.read
        usage = assembler.usage
        said = usage.completion_tokens - usage.reasoning_tokens if usage is not None else 0
        digest = blake2b(b"\0".join([read.prefix_hash] + assembler.texts), digest_size=16)
        node = Node(self.id, self.parent, self.wall(), assembler.result(), assembler.output_at,
                    read.stored(self.tail), self.tokens + said + MESSAGE_TOKENS, digest.digest(),
                    read.open_calls.union(assembler.call_ids) if assembler.call_ids
                    else read.open_calls, read.foreign_ids, read.calls + len(assembler.call_ids))
        try:
            self.store.put(node)
        except StoreFull as exc:
            raise ApiError(500, str(exc), type="server_error")


class ResponsesApiMixin(Host):
    """POST /v1/responses, and GET and DELETE of what it stored."""

    def responses_create(self):
        breathe = self.breathe
        body = parse_body(self.body_bytes, breathe)
        unknown = check_fields(body, _RESPONSE_CHECKS)
        strict = self.settings.strict
        if strict:
            check_unknown(unknown + tuple(name for name in SERVERS_OWN_FIELDS if body.get(name) is not None),
                          responses=True)
        model = body.get("model")
        if model is None:
            if body.get("prompt") is None:
                raise missing_parameter("model")
            model = self.settings.model[0]         # the prompt template names one on the service
            body["model"] = model
        check_model_name(model, self.settings, responses=True)
        check_streaming(body)
        streamed = bool(body.get("stream"))
        stored = body.get("store") is not False
        if body.get("background"):
            raise ApiError(400, "Background responses are not available yet.", param="background")
        if body.get("conversation") is not None:
            raise ApiError(400, "Conversations are not available yet.", param="conversation")
        parent = self._responses_parent(body.get("previous_response_id"))
        given_input = body.get("input")
        if not given_input and parent is None and body.get("prompt") is None:
            if given_input is None:
                raise missing_parameter("input")
            if given_input.__class__ is list:
                raise ApiError(400, "Invalid 'input': the array is empty.", code="empty_array",
                               param="input")
        limit = body.get("max_output_tokens")
        least = check_min_tokens(body, limit, "max_output_tokens")
        turn = _Turn()
        turn.read = read = read_input(given_input, parent, self.store, self.tokenizer, breathe, strict)
        turn.tokens = read.tokens + (parent.total_tokens if parent is not None else 0)
        prompt_tokens = turn.tokens + ANSWER_TOKENS
        prefix_hash = read.prefix_hash
        instructions = body.get("instructions")
        if instructions:
            prompt_tokens += MESSAGE_TOKENS + (
                self.tokenizer.count(instructions) if breathe is None
                else self.tokenizer.count_slowly(instructions, breathe))
            prefix_hash = blake2b(instructions.encode("utf-8", "surrogatepass") + prefix_hash,
                                  digest_size=16).digest()

        def messages():
            items = [] if parent is None else [
                item for node in reversed(list(parent.chain()))
                for item in node.input_items() + node.output_items()]
            found = items_to_messages(items + read.plain_items())
            return [{"role": "system", "content": instructions}] + found if instructions else found

        given = {}
        if "tools" in body or "tool_choice" in body:
            given["tools"] = specs = read_tools(body.get("tools"),
                                                known_types=RESPONSE_TOOL_TYPES if strict else None)
            given["tool_choice"] = read_tool_choice(body.get("tool_choice"), specs)
            if specs:
                prompt_tokens += count_tool_tokens(body["tools"], self.tokenizer, breathe)
        text_format = (body.get("text") or {}).get("format")
        if text_format is not None:
            given["output_format"] = output_format = read_output_format(text_format, "text.format", strict)
            if text_format["type"] == "json_object":
                check_json_word(output_format, [read.last_user_text or "", instructions or "", str(given_input)],
                                "input")
        if "message.output_text.logprobs" in (body.get("include") or ()):
            given["logprobs"] = body.get("top_logprobs") or 0
        reasoning = body.get("reasoning")
        if reasoning:
            given["reasoning_effort"] = reasoning.get("effort") or "medium"
            given["reasoning_items"] = "summary" if reasoning.get("summary") \
                or reasoning.get("generate_summary") else "bare"
        ignored = unknown
        if not _RESPONSE_USED.issuperset(body):
            ignored += tuple(key for key, value in body.items() if value is not None
                             and key in _RESPONSE_CHECKS and key not in _RESPONSE_USED)
        if least:
            given["min_tokens"] = least
        if body.get("ignore_eos"):
            given["ignore_eos"] = True
        if body.get("parallel_tool_calls") is False:
            given["parallel_tools"] = False
        request = GenerationRequest(
            model, History(prompt_tokens, prefix_hash, read.last_user_text or "", messages, read.calls,
                           read.after_output),
            max_tokens=limit, ignored_fields=ignored, raw=body, endpoint="responses", breathe=breathe, **given)
        turn.parent, turn.store = parent, self.store
        turn.tail = tail = self.ids.tail()
        turn.id = "resp_" + tail
        turn.wall = self.clock.time
        turn.assembler = assembler = ResponseAssembler(
            tail, self.ids.created(), build_echo(body), self.ids.created, first_item=read.count,
            chunked=streamed and self.chunked)
        self.send_completion(
            Completion(request, self.backend, assembler, self.metrics, self.log_exception,
                       keep=turn.keep if stored else None,
                       keep_blocking=stored and self.store.blocking), streamed)

    def _responses_parent(self, id):
        """The node of a previous_response_id, or None when none was given."""
        if id is None:
            return None
        if not _RESPONSE_ID.match(id):
            raise invalid_value("previous_response_id", "Invalid 'previous_response_id': '%s' is no id of "
                                "a response: letters, numbers, underscores and dashes." % shown(id))
        node = self.store.get(id)
        if node is None:
            raise ApiError(400, "Previous response with id '%s' not found." % shown(id),
                           code="previous_response_not_found", param="previous_response_id")
        return node

    def _responses_node(self, id):
        node = self.store.get(id)
        if node is None:
            raise ApiError(404, "Response with id '%s' not found." % shown(id))
        return node

    def responses_retrieve(self, id):
        if (self.query.get("stream") or [""])[-1].lower() == "true":
            self._responses_node(id)
            raise ApiError(400, "The response cannot be streamed: only responses created with "
                           "'background' and 'stream' can.", param="stream")
        self.send_json(200, self._responses_node(id).body)

    def responses_delete(self, id):
        if not self.store.delete(id):
            raise ApiError(404, "Response with id '%s' not found." % shown(id))
        self.send_json(200, {"id": id, "object": "response", "deleted": True})

    def responses_input_items(self, id):
        limit, order, after = parse_page_query(self.query, "desc")
        check_array(check_enum(*_RESPONSE_INCLUDES))(self.query.get("include") or [], "include")
        node = self._responses_node(id)
        if self.breathe is None and node.depth > LONG_CHAIN_TURNS and (after is not None or order == "asc"):
            raise TakesLong()
        self.send_json(200, build_page(_iter_context(node, order, self.breathe), limit, after))


def _iter_context(node, order, breathe):
    """The items that a response was given, of its whole chain: newest first for "desc".

    Source: api-reference 11.3: the new input, then the previous output and input, and so on.
    """
    chain = node.chain() if order == "desc" else reversed(list(node.chain()))
    step = -1 if order == "desc" else 1
    seen = set()                        # a referenced or repeated item is listed once: its id is a cursor
    for each in chain:
        if breathe is not None:
            breathe()
        items = each.input_items()
        if each is not node:            # a response's own output is not among its input
            items += each.output_items()
        for item in items[::step]:
            if item["id"] not in seen:
                seen.add(item["id"])
                yield item
