"""Input items of the Responses API: checked, counted, hashed, and put into the form that is stored.

In: the request's `input`. Out: a ReadInput. A simulated turn needs only counts and a hash, so the
stored form is built when the response is kept and chat messages when a backend asks for them.
"""
import json
from binascii import Error as Base64Error, a2b_base64, b2a_base64

from api_common import (MEDIA_TOKENS, MESSAGE_TOKENS, ApiError, TakesLong, check_array, check_enum, check_given_string,
                        check_object, check_string, content_hash, content_text, dump_json, escape_json, invalid_type,
                        invalid_value, item_id, missing_parameter, shown)
from backends.prompt import Opaque, call_content, content_pieces, media_key
from state.contract import LONG_CHAIN_TURNS, iter_context

MAX_INPUT_CHARS = 10485760          # api-reference 8.1
_ITEM_ROLES = ("user", "assistant", "system", "developer")
_USER_PARTS = ("input_text", "input_image", "input_file", "input_audio")
_ASSISTANT_PARTS = ("output_text", "refusal")

# What a built-in tool or an earlier answer leaves in a history: accepted, counted as text, stored.
_OPAQUE_ITEMS = frozenset((
    "reasoning", "compaction", "web_search_call", "file_search_call", "computer_call",
    "code_interpreter_call", "image_generation_call", "local_shell_call", "shell_call",
    "apply_patch_call", "mcp_call", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response", "tool_search_call", "tool_search_output", "additional_tools"))
_CALL_ITEMS = {"function_call": "arguments", "custom_tool_call": "input"}
# Outputs and the calls they answer; the calls of the last three are items of built-in tools.
_OUTPUT_ITEMS = frozenset(("function_call_output", "custom_tool_call_output", "computer_call_output",
                           "local_shell_call_output", "shell_call_output", "apply_patch_call_output"))
# Calls of built-in tools whose output is the client's to give.
WAITING_CALLS = frozenset(("computer_call", "local_shell_call", "shell_call", "apply_patch_call"))
_INPUT_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_",
                   "function_call_output": "fco_", "custom_tool_call": "ctc_",
                   "custom_tool_call_output": "ctco_", "compaction": "cmp_"}


_NO_CALLS = frozenset()



class ReadInput:
    """A turn's input. items: list of dicts with references resolved, or one str. count: of items.

    tokens int. last_user_text str or None. open_calls frozenset after this turn's input.
    calls int, made in the context up to here. after_output: whether a tool's output is its last
    item. prefix_hash bytes of the context up to here. foreign_ids: ids that came with the items. tools:
    (place, list) of each `additional_tools` item. approvals: tuple of (id of an mcp_approval_request,
    whether it is approved).
    """

    __slots__ = ("items", "count", "tokens", "last_user_text", "open_calls", "prefix_hash",
                 "foreign_ids", "calls", "after_output", "tools", "approvals", "_stored")

    def __init__(self):
        self._stored = None
        self.tools = ()

    def prepare(self, tail):
        """Make stored() now, on a worker, where it may take long."""
        self._stored = self.stored(tail)

    def stored_items(self, tail):
        """stored(), as a list of dicts."""
        return [_stored_item(item, tail, number) for number, item in enumerate(self.plain_items())]

    def stored(self, tail):
        """The items as they are kept and listed: a JSON array, every item with id and status."""
        if self._stored is not None:
            return self._stored
        if self.items.__class__ is str:
            return (b'[{"type":"message","id":"%s","status":"completed","role":"user","content":'
                    b'[{"type":"input_text","text":"%s"}]}]' % (
                        item_id("msg_", tail, 0).encode("ascii"), escape_json(self.items)))
        return dump_json(self.stored_items(tail))

    def plain_items(self):
        """The items as a list of dicts, ids or not."""
        if self.items.__class__ is str:
            return [{"type": "message", "role": "user", "content": self.items}]
        return self.items


def _item_type(item):
    """The type of an item that may leave it out (api-reference 9.2), or "" for what is no type."""
    kind = item.get("type")
    if kind.__class__ is str:
        return kind
    if kind is None:
        if "role" in item:
            return "message"
        if "id" in item:
            return "item_reference"
    return ""


def _stored_item(item, tail, number):
    kind = _item_type(item)
    stored = {"type": kind}
    stored["id"] = item.get("id") or item_id(_INPUT_PREFIXES.get(kind, "it_"), tail, number)
    if kind == "message":
        stored["status"] = item.get("status") or "completed"
        stored["role"] = item["role"]
        stored["content"] = _stored_content(item["role"], item.get("content"))
        if item.get("phase") is not None:
            stored["phase"] = item["phase"]
        return stored
    if kind != "reasoning" and kind != "compaction" and not kind.startswith("mcp_"):
        stored["status"] = item.get("status") or "completed"
    # what a built-in tool's item has to say is null as well (no results, no environment)
    builtin = kind in _OPAQUE_ITEMS and kind != "reasoning" and kind != "compaction"
    for key, value in item.items():
        if key != "id" and (value is not None or builtin and key not in stored and key != "status"):
            stored[key] = value
    return stored


def _stored_content(role, content):
    assistant = role == "assistant"
    if content.__class__ is str:
        if assistant:
            return [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
        return [{"type": "input_text", "text": content}]
    parts = []
    for part in content:
        kind = part.get("type")
        if kind == "output_text":
            part = dict(part, annotations=part.get("annotations") or [],
                        logprobs=part.get("logprobs") or [])
        elif kind == "input_image":
            part = dict(part, detail=part.get("detail") or "auto")
        parts.append(part)
    return parts


# ---- checks -----------------------------------------------------------------------------------

def _check_message(item, path):
    """Raises ApiError for a message that is none; returns its text and its parts without text."""
    role = item.get("role")
    check_given_string(role, path + ".role")
    check_enum(*_ITEM_ROLES)(role, path + ".role")
    content = item.get("content")
    if content.__class__ is str:
        return content, 0
    if content is None:
        raise missing_parameter(path + ".content")
    if content.__class__ is not list:
        raise invalid_type(path + ".content", "a string or an array of parts", content)
    allowed = _ASSISTANT_PARTS if role == "assistant" else _USER_PARTS
    media = 0
    for index, part in enumerate(content):
        place = "%s.content[%d]" % (path, index)
        check_object(part, place)
        kind = part.get("type")
        if kind not in allowed:
            raise invalid_value(place + ".type", "Invalid value for '%s.type': '%s'. Parts of a '%s' "
                                "message are: %s." % (place, shown(kind), role, ", ".join(
                                    "'%s'" % name for name in allowed)))
        if kind in ("input_text", "output_text"):
            check_given_string(part.get("text"), place + ".text")
        elif kind == "refusal":
            check_given_string(part.get("refusal"), place + ".refusal")
        else:
            media += 1
    return content_text(content), media


def _check_output(item, kind, path):
    """Raises ApiError for a tool output that is none; returns its text."""
    output = item.get("output")
    if output is None:
        if kind == "apply_patch_call_output":       # its status says it all
            return str(item.get("status") or "")
        raise missing_parameter(path + ".output")
    if output.__class__ is str:
        return output
    if output.__class__ is list:
        check_array(check_object)(output, path + ".output")
        return _opaque_text(output) if kind == "shell_call_output" else content_text(output)
    if kind in ("function_call_output", "custom_tool_call_output"):
        raise invalid_type(path + ".output", "a string or an array of parts", output)
    return _opaque_text(output)


def _opaque_text(value):
    return json.dumps(value, ensure_ascii=False)


# ---- encrypted_content: opaque to clients, readable for us ------------------------------------

_SEAL = "mt1."


def seal_text(kind, text):
    """A text as an opaque `encrypted_content`, from which any server of this kind can restore it.

    kind: the item's type. It is not secret: a stand-in has no secrets, and no key to lose.
    """
    return _SEAL + b2a_base64(dump_json([kind, text]), newline=False).decode("ascii")


def unseal_text(kind, sealed):
    """The text of seal_text(), or None for what was not made by it for this kind of item."""
    if sealed.__class__ is not str or not sealed.startswith(_SEAL):
        return None
    try:
        value = json.loads(a2b_base64(sealed[len(_SEAL):].encode("ascii")))
    except (Base64Error, ValueError, RecursionError):
        return None
    if value.__class__ is list and len(value) == 2 and value[0] == kind and value[1].__class__ is str:
        return value[1]
    return None


def _sealed_item_text(item, kind, path, strict):
    """What a reasoning or compaction item adds to the context: its words, not its seal."""
    sealed = item.get("encrypted_content")
    if sealed is not None:
        check_string()(sealed, path + ".encrypted_content")
    elif kind == "compaction":
        raise missing_parameter(path + ".encrypted_content")
    text = unseal_text(kind, sealed)
    if text is None and sealed is not None and strict:
        raise ApiError(400, "The encrypted content of '%s' could not be verified: it was not made here."
                       % path, code="invalid_encrypted_content", param=path + ".encrypted_content")
    if text is not None:
        return text
    said = ""
    for field in ("summary", "content"):
        if item.get(field).__class__ is list:
            check_array(check_object)(item[field], "%s.%s" % (path, field))
            said += content_text(item[field])
    return said


def item_words(item, kind, path="input", strict=False):
    """What an item of any kind says: (role or kind, text, parts that are no text).

    Raises ApiError 400 naming the field for an item that is not what its type says.
    """
    if kind == "message":
        text, media = _check_message(item, path)
        return item["role"], text, media
    if kind in _CALL_ITEMS:
        return "call", _read_call(item, kind, path), 0
    if kind == "computer_call_output" and item.get("output").__class__ is dict:
        screen = {key: value for key, value in item["output"].items() if key != "image_url"}
        return "output", _opaque_text(screen), 1
    if kind in _OUTPUT_ITEMS:
        return "output", _check_output(item, kind, path), 0
    if kind == "reasoning" or kind == "compaction":
        return kind, _sealed_item_text(item, kind, path, strict), 0
    if kind == "image_generation_call":     # a picture is no text, however long it is as base64
        return kind, _opaque_text({key: value for key, value in item.items() if key not in ("id", "result")}), 1
    if kind in _OPAQUE_ITEMS:
        return kind, _opaque_text({key: value for key, value in item.items() if key != "id"}), 0
    raise invalid_value(path + ".type", "Invalid value for '%s.type': '%s' is no type of an input item."
                        % (path, shown(item.get("type"))))


def item_tokens(item, tokenizer):
    """The context tokens of an item that was read before."""
    role, text, media = item_words(item, _item_type(item))
    return _words_tokens(role, text, media, tokenizer, None)


def _words_tokens(role, text, media, tokenizer, breathe):
    """Context tokens of item_words(). Earlier turns' reasoning is not read again (api-reference 8.4)."""
    if role == "reasoning":
        return 0
    return MESSAGE_TOKENS + MEDIA_TOKENS * media + _text_tokens(text, tokenizer, breathe)


def prompt_parts(items):
    """Items as parts of a backends.prompt.Prompt, as given or as stored: their tokens are those that were counted."""
    for item in items:
        kind = _item_type(item)
        if kind == "message":
            yield item["role"], content_pieces(item["content"])
        elif kind in _CALL_ITEMS:
            yield "assistant", call_content(item["name"], item[_CALL_ITEMS[kind]])
        elif kind != "reasoning":           # which is not read again
            role, text, media = item_words(item, kind)
            yield "tool" if role == "output" else role, text if not media else [
                text, Opaque(media_key({key: value for key, value in item.items() if key not in ("id", "status")}),
                             MEDIA_TOKENS * media)]


def fit_items(newest_first, budget, tokenizer):
    """`truncation: auto`: the newest items that fit, oldest first, and their tokens.

    newest_first: iterable of items as stored or as given. Returns ([], 0) when the newest alone
    does not fit into `budget` tokens. An output goes with its call.
    """
    counted, total = [], 0
    for item in newest_first:
        tokens = item_tokens(item, tokenizer)
        if total + tokens > budget:
            break
        counted.append((item, tokens))
        total += tokens
    calls = {item["call_id"] for item, _ in counted if _item_type(item) in _CALL_ITEMS}
    kept = [(item, tokens) for item, tokens in reversed(counted)
            if _item_type(item) not in ("function_call_output", "custom_tool_call_output")
            or item.get("call_id") is None or item["call_id"] in calls]
    return [item for item, _ in kept], sum(tokens for _, tokens in kept)


def has_call(parent, call_id, breathe):
    """Whether any call of the context has this id: the slow look, for an answer given twice."""
    if parent is None:
        return False
    if breathe is None and parent.depth > LONG_CHAIN_TURNS:
        raise TakesLong()
    return any(item.get("call_id") == call_id and (item.get("type") in _CALL_ITEMS or item.get("type") in WAITING_CALLS)
               for item in iter_context(parent, True, True, breathe))


def read_input(value, parent, store, tokenizer, breathe=None, strict=False, name="input"):
    """A request's `input` (or the field of another name) (str, list or None) behind a parent Node or None, as ReadInput.

    strict: an output needs its call_id, and every call of the context an output.

    Raises ApiError: 400 naming the item and field, 404 for a reference to what is not stored.
    """
    read = ReadInput()
    if parent is not None:
        before, read.open_calls = parent.prefix_hash, parent.open_calls
    else:
        before, read.open_calls = b"", _NO_CALLS
    read.foreign_ids = read.tools = read.approvals = ()
    read.last_user_text = None
    read.calls = parent.calls if parent is not None else 0
    read.after_output = False
    if value.__class__ is str:
        if len(value) > MAX_INPUT_CHARS:
            raise ApiError(400, "Invalid 'input': %d characters, at most %d are allowed."
                           % (len(value), MAX_INPUT_CHARS), code="string_above_max_length",
                           param="input")
        _check_open_calls(strict, read.open_calls)
        read.items = read.last_user_text = value
        read.count = 1
        read.tokens = MESSAGE_TOKENS + _text_tokens(value, tokenizer, breathe)
        read.prefix_hash = content_hash("user\0" + value, before)
        return read
    items, tokens, said, chars = [], 0, [], 0
    open_calls, answered = set(read.open_calls), set()
    foreign, approvals = [], []
    for index, item in enumerate(value or ()):
        path = "%s[%d]" % (name, index)
        if item.__class__ is not dict:
            raise invalid_type(path, "an object", item)
        kind = _item_type(item)
        if kind == "item_reference":
            if breathe is None:             # it parses what the referenced turn stored, however much that is
                raise TakesLong()
            item, kind = _resolve_reference(item, store, path, name)
            foreign.append(item["id"])
        elif item.get("id") is not None:
            check_given_string(item["id"], path + ".id")
            foreign.append(item["id"])
        role, text, media = item_words(item, kind, path, strict)
        if role == "user":
            read.last_user_text = text
        elif role == "call":
            read.calls += 1
            open_calls.add(item["call_id"])
        elif kind in WAITING_CALLS:
            if item.get("call_id").__class__ is str:
                open_calls.add(item["call_id"])
        elif kind == "mcp_approval_response":
            if item.get("approval_request_id").__class__ is str:
                approvals.append((item["approval_request_id"], item.get("approve") is True))
        elif role == "output":
            call_id = item.get("call_id")
            if call_id is None and kind == "local_shell_call_output":
                call_id = item.get("id")    # which is how the SDKs' type has it
            if call_id is None and strict and kind in ("function_call_output", "custom_tool_call_output"):
                raise missing_parameter(path + ".call_id")
            if call_id is not None:         # Codex sends one without: it answers no call
                check_string(empty=False)(call_id, path + ".call_id")
                if call_id in open_calls:
                    open_calls.discard(call_id)
                    answered.add(call_id)
                elif kind in ("function_call_output", "custom_tool_call_output") \
                        and call_id not in answered and not has_call(parent, call_id, breathe):
                    raise ApiError(400, "No tool call found for the tool output with call_id '%s'."
                                   % shown(call_id), param=name)
        elif kind == "additional_tools" and item.get("tools") is not None:
            check_array(check_object)(item["tools"], path + ".tools")
            read.tools += ((path + ".tools", item["tools"]),)
        read.after_output = role == "output"
        chars += len(text)
        if chars > MAX_INPUT_CHARS:
            raise ApiError(400, "Invalid '%s': more than %d characters in all." % (name, MAX_INPUT_CHARS),
                           code="string_above_max_length", param=name)
        items.append(item)
        tokens += _words_tokens(role, text, media, tokenizer, breathe)
        said += (role, text)
        if breathe is not None:
            breathe()
    _check_open_calls(strict, open_calls)
    read.items, read.count, read.tokens = items, len(items), tokens
    read.open_calls = frozenset(open_calls)
    read.foreign_ids, read.approvals = tuple(foreign), tuple(approvals)
    read.prefix_hash = content_hash("\0".join(said), before)
    return read


def _check_open_calls(strict, open_calls):
    if strict and open_calls:
        raise ApiError(400, "No tool output found for the tool call '%s'." % shown(min(open_calls)), param="input")


def _text_tokens(text, tokenizer, breathe):
    return tokenizer.count(text) if breathe is None else tokenizer.count_slowly(text, breathe)


def _resolve_reference(item, store, path, name):
    id = item.get("id")
    if id.__class__ is not str:
        raise missing_parameter(path + ".id")
    found = store.find_item(id)
    if found is None:
        raise ApiError(404, "Item with id '%s' not found." % shown(id), param=name)
    return found, _item_type(found)


def _read_call(item, kind, path):
    for field in ("call_id", "name", _CALL_ITEMS[kind]):
        check_given_string(item.get(field), "%s.%s" % (path, field))
    return item["name"] + item[_CALL_ITEMS[kind]]


# ---- chat messages, for backends that want the words ------------------------------------------

def items_to_messages(items):
    """Items of any kind as chat messages.

    Calls join the assistant message that made them; their outputs follow as tool messages, in parts where they
    are more than text. A compaction is a user's message with its summary. Reasoning that has words goes along as
    `reasoning_content` of the assistant message that follows it, as inference servers have it. The items of
    built-in tools have no place in chat and are left out.
    """
    messages, thought = [], ""
    for item in items:
        kind = _item_type(item)
        if kind == "reasoning":
            thought += _reasoning_words(item)
        elif kind == "message":
            messages.append({"role": item["role"], "content": _chat_content(item["content"])})
            if item["role"] == "assistant" and thought:
                messages[-1]["reasoning_content"] = thought
            thought = ""
        elif kind == "compaction":
            summary = unseal_text(kind, item.get("encrypted_content"))
            if summary:
                messages.append({"role": "user", "content": "Summary of what was said before: " + summary})
        elif kind in _CALL_ITEMS:
            last = messages[-1] if messages else None
            if last is None or last["role"] != "assistant":
                last = {"role": "assistant", "content": None}
                messages.append(last)
            if thought:
                last["reasoning_content"] = last.get("reasoning_content", "") + thought
                thought = ""
            body = {"name": item["name"], _CALL_ITEMS[kind]: item[_CALL_ITEMS[kind]]}
            call_type = "function" if kind == "function_call" else "custom"
            call = {"id": item["call_id"], "type": call_type, call_type: body}
            if item.get("namespace") is not None:
                call["namespace"] = item["namespace"]
            last.setdefault("tool_calls", []).append(call)
        elif kind in _OUTPUT_ITEMS and item.get("call_id") is not None:
            messages.append({"role": "tool", "tool_call_id": item["call_id"],
                             "content": _output_content(item.get("output"), kind)})
    return messages


def _reasoning_words(item):
    """What a reasoning item says: its own words, its summary, or what was sealed in it."""
    for field in ("content", "summary"):
        if item.get(field).__class__ is list:
            text = content_text(item[field])
            if text:
                return text
    return unseal_text("reasoning", item.get("encrypted_content")) or ""


def _output_content(output, kind):
    if output.__class__ is str:
        return output
    if output.__class__ is not list or kind == "shell_call_output":
        return "" if output is None else _opaque_text(output)
    if any(part.get("type") in ("input_image", "input_file") for part in output):
        return _chat_content([part for part in output if part.get("type").__class__ is str])
    return content_text(output)


_CHAT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


def _chat_content(content):
    """A message's content in chat's words: a string where it is only text."""
    if content.__class__ is str:
        return content
    if all(part.get("type") in ("input_text", "output_text") for part in content):
        return content_text(content)
    parts = []
    for part in content:
        kind = part.get("type")
        if kind in _CHAT_PARTS:
            name = _CHAT_PARTS[kind]
            parts.append({"type": name, name: part.get("text", part.get("refusal"))})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {
                "url": part.get("image_url") or part.get("file_id"),
                "detail": part.get("detail") or "auto"}})
        elif kind == "input_file":
            parts.append({"type": "file", "file": {
                key: part[key] for key in ("file_id", "file_data", "filename") if part.get(key)}})
        else:
            parts.append(part)
    return parts
