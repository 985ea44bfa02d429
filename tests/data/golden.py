"""Golden delta lists, the order of what they must become, and strict readers of both streams.

DELTAS is what a backend may say, by name. RESPONSE_EVENTS and CHAT_CHUNKS are what an assembler must
make of it, in shorthand, written by hand from api-reference 10.x and 4.4. The readers take the wire's
bytes apart again and assert whatever must hold of every stream.
"""
import json

from api_common import ApiError, escape_json
from backends.contract import (AnnotationDelta, Failure, Finish, ItemEnd, ItemStart, ItemUpdate, ReasoningDelta,
                               RefusalDelta, TextDelta, TextRun, ToolCallDelta, Usage)

ODD_TEXT = "Gr\u00fc\u00dfe \U0001f600 \u4e2d\u6587\r\n\t\"quoted\" \\ / \x00\x1f\x7f \u2028 data: x\n\nevent: y"
SURROGATE = "half \ud83d a pair"


def make_run(*pieces, choice=0):
    """A TextRun of these pieces, all due at once."""
    return TextRun(list(pieces), [escape_json(piece) for piece in pieces], [0.0] * max(1, len(pieces)), choice)


def split_runs(deltas):
    """The same deltas with every TextRun taken apart into TextDeltas."""
    split = []
    for delta in deltas:
        if delta.__class__ is TextRun:
            split += [TextDelta(piece, None, delta.choice) for piece in delta.pieces]
        else:
            split.append(delta)
    return split


def _logprob(token):
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode("utf-8")), "top_logprobs": []}


_CALL = ToolCallDelta(0, '{"city"', "call_a", "get_weather")
_CALL_REST = ToolCallDelta(0, ':"Bern"}')
_CALL_2 = ToolCallDelta(1, '{"n":', "call_b", "add")
_CALL_2_REST = ToolCallDelta(1, "2}")
_CUSTOM = ToolCallDelta(0, "SELECT ", "call_c", "sql", "custom")
_CUSTOM_REST = ToolCallDelta(0, '"a" FROM b;', kind="custom")
_SEARCH = [ItemStart("web_search_call", {"action": {"type": "search", "query": "tides"}}),
           ItemUpdate("web_search_call", "in_progress"), ItemUpdate("web_search_call", "searching"),
           ItemUpdate("web_search_call", "completed"), ItemEnd("web_search_call")]
_END = [Finish("stop"), Usage(7, 4)]
_WAIT = [Finish("tool_calls"), Usage(7, 4)]
_URL = {"type": "url_citation", "url": "https://example.com/tides", "title": "Tides \u00fc", "start_index": 0,
        "end_index": 13}
_FILE = {"type": "file_citation", "file_id": "file-1", "filename": "tides.md", "index": 13}
_MADE = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1", "filename": "a.csv",
         "start_index": 0, "end_index": 5}
_LOOK = {"size": "1024x1024", "quality": "low", "background": "opaque", "output_format": "png"}


def item_deltas(kind, fields, phases, end=None):
    """An item's deltas: begun, a step for each phase (a word, or ItemUpdate), ended."""
    return ([ItemStart(kind, fields)]
            + [phase if phase.__class__ is ItemUpdate else ItemUpdate(kind, phase) for phase in phases]
            + [ItemEnd(kind, end or {})])


def _written(kind, *pieces):
    return [ItemUpdate(kind, "delta", {"delta": piece}) for piece in pieces] + [ItemUpdate(kind, "done")]


_CODE = item_deltas("code_interpreter_call", {"code": "", "container_id": "cntr_1", "outputs": None},
                    ["in_progress"] + _written("code_interpreter_call_code", "print(", '"\u00fc"', ")\n")
                    + ["interpreting", "completed"], {"outputs": [{"type": "logs", "logs": "\u00fc\n"}]})
_MCP_LIST = item_deltas("mcp_list_tools", {"server_label": "notes", "tools": []}, ["in_progress", "completed"], {
    "tools": [{"name": "find", "description": "Find it.", "input_schema": {"type": "object"}, "annotations": {}}]})
_MCP_CALL = item_deltas("mcp_call", {
    "server_label": "notes", "name": "find", "arguments": "", "output": None, "error": None, "approval_request_id": None},
    ["in_progress"] + _written("mcp_call_arguments", '{"q"', ':"tides"}') + ["completed"], {"output": "High at noon."})
_SHELL_FIELDS = {"call_id": "call_s", "action": {"commands": [], "timeout_ms": None, "max_output_length": None}, "environment": None}
_SHELL = item_deltas("shell_call", _SHELL_FIELDS, [
    step for command in (("echo", " a"), ("echo", " b"))
    for step in [ItemUpdate("shell_call_command", "added")] + _written("shell_call_command", *command)])
_SHELL_OUTPUT = [{"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
_SHELL_ANSWER = item_deltas("shell_call_output", {"call_id": "call_s", "output": [], "max_output_length": None}, [
    ItemUpdate("shell_call_output_content", "delta", {"command_index": 0, "delta": {"stdout": "a\n"}}),
    ItemUpdate("shell_call_output_content", "done", {"command_index": 0, "output": _SHELL_OUTPUT})],
    {"output": _SHELL_OUTPUT})

DELTAS = {
    "run": [make_run("Hello", " big", " world", ".")] + _END,
    "deltas": [TextDelta("Hello"), TextDelta(" world")] + _END,
    "two runs": [make_run("One", "."), make_run(" Two", ".")] + _END,
    "empty": [Finish("stop"), Usage(7, 0)],
    "empty pieces": [TextDelta(""), TextDelta("a"), TextDelta("")] + _END,
    "odd text": [make_run(*ODD_TEXT), TextDelta(ODD_TEXT)] + _END,
    "surrogate": [make_run(SURROGATE), TextDelta(SURROGATE)] + _END,
    "logprobs": [TextDelta("a", [_logprob("a")]), TextDelta(" b", [_logprob(" b")])] + _END,
    "no finish": [TextDelta("a"), Usage(7, 1)],
    "call": [_CALL, _CALL_REST, Finish("tool_calls"), Usage(7, 9)],
    "call without arguments": [ToolCallDelta(0, "", "call_a", "now"), Finish("tool_calls"), Usage(7, 1)],
    "call that says stop": [_CALL, _CALL_REST] + _END,
    "text, call, text": [TextDelta("Let me"), TextDelta(" look."), _CALL, _CALL_REST, TextDelta("Done"),
                         TextDelta("."), Finish("tool_calls"), Usage(7, 9)],
    "run, call, run": [make_run("Let", " me"), _CALL, make_run("Do", "ne"), _CALL_REST, Finish("tool_calls"),
                       Usage(7, 9)],
    "calls in turn": [_CALL, _CALL_REST, _CALL_2, _CALL_2_REST, Finish("tool_calls"), Usage(7, 9)],
    "calls interleaved": [_CALL, _CALL_2, _CALL_REST, _CALL_2_REST, Finish("tool_calls"), Usage(7, 9)],
    "call interleaved with text": [_CALL, TextDelta("a"), _CALL_REST, TextDelta("b"), Finish("tool_calls"),
                                   Usage(7, 9)],
    "custom call": [_CUSTOM, _CUSTOM_REST, Finish("tool_calls"), Usage(7, 9)],
    "summary": [ReasoningDelta("First"), ReasoningDelta(" then."), TextDelta("So.")] + _END,
    "summary withheld": [ReasoningDelta(""), TextDelta("So.")] + _END,
    "raw reasoning": [ReasoningDelta("Hm", "raw"), ReasoningDelta(" \"x\"", "raw"), TextDelta("So.")] + _END,
    "summary, then raw": [ReasoningDelta("a"), ReasoningDelta("b", "raw"), TextDelta("So.")] + _END,
    "reasoning, call": [ReasoningDelta("a"), _CALL, _CALL_REST, Finish("tool_calls"), Usage(7, 9)],
    "refusal": [RefusalDelta("I can"), RefusalDelta("not.")] + _END,
    "text, refusal": [TextDelta("Well"), RefusalDelta("no")] + _END,
    "web search": _SEARCH + [TextDelta("High at noon.")] + _END,
    "text, search, text": [TextDelta("Wait.")] + _SEARCH + [TextDelta("Noon.")] + _END,
    "two messages": [TextDelta("One"), ItemStart("message"), TextDelta("Two"), ItemEnd("message")] + _END,
    "length": [make_run("Hello", " wor"), Finish("length"), Usage(7, 2)],
    "length in reasoning": [ReasoningDelta("Hm"), Finish("length"), Usage(7, 1, 1)],
    "length in call": [TextDelta("a"), _CALL, Finish("length"), Usage(7, 2)],
    "length in refusal": [RefusalDelta("I can"), Finish("length"), Usage(7, 2)],
    "content filter": [TextDelta("Once"), Finish("content_filter"), Usage(7, 1)],
    "web search, cited": _SEARCH + [make_run("High", " at", " noon."), AnnotationDelta(_URL), AnnotationDelta(_URL)] + _END,
    "file search": item_deltas("file_search_call", {"queries": ["tides"], "results": None},
                               ["in_progress", "searching", "completed"], {"results": [
                                   {"file_id": "file-1", "filename": "tides.md", "score": 0.5, "text": "x",
                                    "attributes": {}}]})
    + [TextDelta("High at"), TextDelta(" noon."), AnnotationDelta(_FILE)] + _END,
    "code interpreter": _CODE + [TextDelta("Done."), AnnotationDelta(_MADE)] + _END,
    "image generation": item_deltas("image_generation_call", {"result": None}, ["in_progress", "generating", ItemUpdate(
        "image_generation_call", "partial_image", dict(_LOOK, partial_image_index=0, partial_image_b64="AA=="))]
        + ["completed"], dict(_LOOK, result="AAA=", revised_prompt="x")) + [TextDelta("Look.")] + _END,
    "mcp": _MCP_LIST + _MCP_CALL + [TextDelta("Noon.")] + _END,
    "mcp approval": _MCP_LIST + item_deltas("mcp_approval_request", {
        "server_label": "notes", "name": "find", "arguments": "{}"}, []) + _END,
    "shell": _SHELL + _WAIT,
    "hosted shell": _SHELL + _SHELL_ANSWER + [TextDelta("Done.")] + _END,
    "local shell": item_deltas("local_shell_call", {"call_id": "call_l", "action": {"type": "exec", "command": ["echo", "a"], "env": {}}}, [])
    + _WAIT,
    "apply patch": item_deltas("apply_patch_call", {"call_id": "call_p", "operation": {"type": "create_file", "path": "a", "diff": "+b\n"}}, [])
    + _WAIT,
    "computer": item_deltas("computer_call", {"call_id": "call_x", "action": {"type": "screenshot"}, "pending_safety_checks": []}, [])
    + _WAIT,
    "text, code, text": [TextDelta("Wait.")] + _CODE + [TextDelta("So.")] + _END,
    "length in code": _CODE[:4] + [Finish("length"), Usage(7, 3)],
    "length in arguments": _MCP_CALL[:3] + [Finish("length"), Usage(7, 2)],
    "length in command": _SHELL[:7] + [Finish("length"), Usage(7, 6)],
    "length in search": _SEARCH[:3] + [Finish("length"), Usage(7, 1)],
}

# The lists of built-in tools' items.
BUILTIN_LISTS = ("web search", "text, search, text", "web search, cited", "file search", "code interpreter",
                 "image generation", "mcp", "mcp approval", "shell", "hosted shell", "local shell", "apply patch", "computer",
                 "text, code, text", "length in code", "length in arguments", "length in command", "length in search")

# A tool of each family, and the tool_choice that picks it.
BUILTIN_TOOLS = {
    "web_search": {"type": "web_search"},
    "file_search": {"type": "file_search", "vector_store_ids": ["vs_1"]},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "image_generation": {"type": "image_generation", "partial_images": 2},
    "mcp": {"type": "mcp", "server_label": "notes", "server_url": "https://example.com/mcp", "require_approval": "never"},
    "shell": {"type": "shell"}, "local_shell": {"type": "local_shell"}, "apply_patch": {"type": "apply_patch"},
    "computer": {"type": "computer"},
}
BUILTIN_CHOICES = dict({name: {"type": name} for name in BUILTIN_TOOLS}, mcp={"type": "mcp", "server_label": "notes"})

# Lists of n > 1, for chat alone: (choices, deltas).
CHOICE_DELTAS = {
    "two choices": (2, [TextDelta("a", None, 0), TextDelta("b", None, 1), TextDelta("c", None, 0),
                        Finish("stop", 0), TextDelta("d", None, 1), Finish("length", 1), Usage(7, 4)]),
    "two runs": (2, [make_run("a", "b"), make_run("c", "d", choice=1), Finish("stop"), Finish("stop", 1),
                     Usage(7, 4)]),
    "calls in two choices": (2, [_CALL, _CALL._replace(choice=1, call_id="call_z"), _CALL_REST._replace(choice=1),
                                 _CALL_REST, Finish("tool_calls", 1), Finish("tool_calls"), Usage(7, 4)]),
    "one choice is empty": (3, [TextDelta("a", None, 2), Finish("stop", 2), Usage(7, 1)]),
}

FAILURES = {
    "server error": ApiError(500, "It broke.", type="server_error"),
    "rate limit": ApiError(429, "Too many.", type="requests", code="rate_limit_exceeded"),
    "context": ApiError(400, "Too long.", code="context_length_exceeded", param="input"),
    "no code": ApiError(400, "Bad \"words\"\n\ud83d."),
}

# ---- Responses: shorthand of events -----------------------------------------------------------
# "item+ 0": output_item.added at output_index 0; "text 0.1": a text delta at output 0, part 1. A
# done event of a text has a full stop; parts have + and -.

_SHORT = {
    "response.output_item.added": "item+", "response.output_item.done": "item-",
    "response.content_part.added": "part+", "response.content_part.done": "part-",
    "response.output_text.delta": "text", "response.output_text.done": "text.",
    "response.refusal.delta": "refusal", "response.refusal.done": "refusal.",
    "response.function_call_arguments.delta": "args", "response.function_call_arguments.done": "args.",
    "response.custom_tool_call_input.delta": "input", "response.custom_tool_call_input.done": "input.",
    "response.reasoning_summary_part.added": "sum+", "response.reasoning_summary_part.done": "sum-",
    "response.reasoning_summary_text.delta": "sum", "response.reasoning_summary_text.done": "sum.",
    "response.reasoning_text.delta": "raw", "response.reasoning_text.done": "raw.",
    "response.output_text.annotation.added": "note",
    "response.code_interpreter_call_code.delta": "code", "response.code_interpreter_call_code.done": "code.",
    "response.mcp_call_arguments.delta": "args", "response.mcp_call_arguments.done": "args.",
    "response.shell_call_command.added": "command+", "response.shell_call_command.delta": "command",
    "response.shell_call_command.done": "command.", "response.shell_call_output_content.delta": "stdout",
    "response.shell_call_output_content.done": "stdout.",
}


def short_event(event):
    """An event in shorthand."""
    name = _SHORT.get(event["type"], event["type"].replace("response.", "", 1))
    if "output_index" in event:
        name += " %d" % event["output_index"]
        for key in ("content_index", "summary_index", "command_index"):
            if key in event:
                name += ".%d" % event[key]
    return name


def _message(at, deltas, notes=0):
    """The events of a message item with one text part."""
    return (["item+ %d" % at, "part+ %d.0" % at] + ["text %d.0" % at] * deltas + ["note %d.0" % at] * notes
            + ["text. %d.0" % at, "part- %d.0" % at, "item- %d" % at])


_SEARCH_EVENTS = ["item+ 0", "web_search_call.in_progress 0", "web_search_call.searching 0",
                  "web_search_call.completed 0", "item- 0"]

_CODE_EVENTS = ["item+ 0", "code_interpreter_call.in_progress 0", "code 0", "code 0", "code 0", "code. 0",
                "code_interpreter_call.interpreting 0", "code_interpreter_call.completed 0", "item- 0"]
_LIST_EVENTS = ["item+ 0", "mcp_list_tools.in_progress 0", "mcp_list_tools.completed 0", "item- 0"]
_SHELL_EVENTS = ["item+ 0", "command+ 0.0", "command 0.0", "command 0.0", "command. 0.0", "command+ 0.1", "command 0.1",
                 "command 0.1", "command. 0.1", "item- 0"]

# what comes between in_progress and the terminal event, and the terminal event
RESPONSE_EVENTS = {
    "run": _message(0, 4) + ["completed"],
    "deltas": _message(0, 2) + ["completed"],
    "two runs": _message(0, 4) + ["completed"],
    "empty": ["completed"],
    "empty pieces": _message(0, 1) + ["completed"],
    "odd text": _message(0, len(ODD_TEXT) + 1) + ["completed"],
    "surrogate": _message(0, 2) + ["completed"],
    "logprobs": _message(0, 2) + ["completed"],
    "no finish": _message(0, 1) + ["completed"],
    "call": ["item+ 0", "args 0", "args 0", "args. 0", "item- 0", "completed"],
    "call without arguments": ["item+ 0", "args. 0", "item- 0", "completed"],
    "call that says stop": ["item+ 0", "args 0", "args 0", "args. 0", "item- 0", "completed"],
    "text, call, text": _message(0, 2) + ["item+ 1", "args 1", "args 1"] + _message(2, 2)
    + ["args. 1", "item- 1", "completed"],
    "run, call, run": _message(0, 2) + ["item+ 1", "args 1", "item+ 2", "part+ 2.0", "text 2.0", "text 2.0",
                                        "args 1", "text. 2.0", "part- 2.0", "item- 2", "args. 1", "item- 1",
                                        "completed"],
    "calls in turn": ["item+ 0", "args 0", "args 0", "item+ 1", "args 1", "args 1", "args. 0", "item- 0",
                      "args. 1", "item- 1", "completed"],
    "calls interleaved": ["item+ 0", "args 0", "item+ 1", "args 1", "args 0", "args 1", "args. 0", "item- 0",
                          "args. 1", "item- 1", "completed"],
    "call interleaved with text": ["item+ 0", "args 0", "item+ 1", "part+ 1.0", "text 1.0", "args 0", "text 1.0",
                                   "text. 1.0", "part- 1.0", "item- 1", "args. 0", "item- 0", "completed"],
    "custom call": ["item+ 0", "input 0", "input 0", "input. 0", "item- 0", "completed"],
    "summary": ["item+ 0", "sum+ 0.0", "sum 0.0", "sum 0.0", "sum. 0.0", "sum- 0.0", "item- 0"]
    + _message(1, 1) + ["completed"],
    "summary withheld": ["item+ 0", "item- 0"] + _message(1, 1) + ["completed"],
    "raw reasoning": ["item+ 0", "part+ 0.0", "raw 0.0", "raw 0.0", "raw. 0.0", "part- 0.0", "item- 0"]
    + _message(1, 1) + ["completed"],
    "summary, then raw": ["item+ 0", "sum+ 0.0", "sum 0.0", "sum. 0.0", "sum- 0.0", "item- 0", "item+ 1",
                          "part+ 1.0", "raw 1.0", "raw. 1.0", "part- 1.0", "item- 1"]
    + _message(2, 1) + ["completed"],
    "reasoning, call": ["item+ 0", "sum+ 0.0", "sum 0.0", "sum. 0.0", "sum- 0.0", "item- 0", "item+ 1", "args 1",
                        "args 1", "args. 1", "item- 1", "completed"],
    "refusal": ["item+ 0", "part+ 0.0", "refusal 0.0", "refusal 0.0", "refusal. 0.0", "part- 0.0", "item- 0",
                "completed"],
    "text, refusal": ["item+ 0", "part+ 0.0", "text 0.0", "text. 0.0", "part- 0.0", "part+ 0.1", "refusal 0.1",
                      "refusal. 0.1", "part- 0.1", "item- 0", "completed"],
    "web search": _SEARCH_EVENTS + _message(1, 1) + ["completed"],
    "text, search, text": _message(0, 1) + [name.replace(" 0", " 1") for name in _SEARCH_EVENTS]
    + _message(2, 1) + ["completed"],
    "two messages": _message(0, 1) + _message(1, 1) + ["completed"],
    "length": _message(0, 2) + ["incomplete"],
    "length in reasoning": ["item+ 0", "sum+ 0.0", "sum 0.0", "sum. 0.0", "sum- 0.0", "item- 0", "incomplete"],
    "length in call": _message(0, 1) + ["item+ 1", "args 1", "args. 1", "item- 1", "incomplete"],
    "length in refusal": ["item+ 0", "part+ 0.0", "refusal 0.0", "refusal. 0.0", "part- 0.0", "item- 0",
                          "incomplete"],
    "content filter": _message(0, 1) + ["incomplete"],
    "web search, cited": _SEARCH_EVENTS + _message(1, 3, 2) + ["completed"],
    "file search": ["item+ 0", "file_search_call.in_progress 0", "file_search_call.searching 0",
                    "file_search_call.completed 0", "item- 0"] + _message(1, 2, 1) + ["completed"],
    "code interpreter": _CODE_EVENTS + _message(1, 1, 1) + ["completed"],
    "image generation": ["item+ 0", "image_generation_call.in_progress 0", "image_generation_call.generating 0",
                         "image_generation_call.partial_image 0", "image_generation_call.completed 0", "item- 0"]
    + _message(1, 1) + ["completed"],
    "mcp": _LIST_EVENTS + ["item+ 1", "mcp_call.in_progress 1", "args 1", "args 1", "args. 1", "mcp_call.completed 1",
                           "item- 1"] + _message(2, 1) + ["completed"],
    "mcp approval": _LIST_EVENTS + ["item+ 1", "item- 1", "completed"],
    "shell": _SHELL_EVENTS + ["completed"],
    "hosted shell": _SHELL_EVENTS + ["item+ 1", "stdout 1.0", "stdout. 1.0", "item- 1"] + _message(2, 1) + ["completed"],
    "local shell": ["item+ 0", "item- 0", "completed"],
    "apply patch": ["item+ 0", "item- 0", "completed"],
    "computer": ["item+ 0", "item- 0", "completed"],
    "text, code, text": _message(0, 1) + [name.replace(" 0", " 1") for name in _CODE_EVENTS] + _message(2, 1)
    + ["completed"],
    "length in code": _CODE_EVENTS[:4] + ["code. 0", "item- 0", "incomplete"],
    "length in arguments": ["item+ 0", "mcp_call.in_progress 0", "args 0", "args. 0", "item- 0", "incomplete"],
    "length in command": _SHELL_EVENTS[:7] + ["command. 0.1", "item- 0", "incomplete"],
    "length in search": _SEARCH_EVENTS[:3] + ["item- 0", "incomplete"],
}

# ---- chat: shorthand of chunks ----------------------------------------------------------------
# "role": the opening with content ""; "role null": the opening with content null; "call+0": the piece
# with id and name; several choices have "INDEX:" in front.

CHAT_CHUNKS = {
    "run": ["role", "content", "content", "content", "content", "stop"],
    "deltas": ["role", "content", "content", "stop"],
    "two runs": ["role", "content", "content", "content", "content", "stop"],
    "empty": ["role", "stop"],
    "empty pieces": ["role", "content", "stop"],
    "odd text": ["role"] + ["content"] * (len(ODD_TEXT) + 1) + ["stop"],
    "surrogate": ["role", "content", "content", "stop"],
    "logprobs": ["role", "content", "content", "stop"],
    "no finish": ["role", "content", "stop"],
    "call": ["role null", "call+0", "call0", "tool_calls"],
    "call without arguments": ["role null", "call+0", "tool_calls"],
    "call that says stop": ["role null", "call+0", "call0", "tool_calls"],
    "text, call, text": ["role", "content", "content", "call+0", "call0", "content", "content", "tool_calls"],
    "run, call, run": ["role", "content", "content", "call+0", "content", "content", "call0", "tool_calls"],
    "calls in turn": ["role null", "call+0", "call0", "call+1", "call1", "tool_calls"],
    "calls interleaved": ["role null", "call+0", "call+1", "call0", "call1", "tool_calls"],
    "call interleaved with text": ["role null", "call+0", "content", "call0", "content", "tool_calls"],
    "custom call": ["role null", "call+0", "call0", "tool_calls"],
    "summary": ["role", "reasoning", "reasoning", "content", "stop"],
    "summary withheld": ["role", "content", "stop"],
    "reasoning, call": ["role", "reasoning", "call+0", "call0", "tool_calls"],
    "raw reasoning": ["role", "reasoning", "reasoning", "content", "stop"],
    "summary, then raw": ["role", "reasoning", "reasoning", "content", "stop"],
    "refusal": ["role null", "refusal", "refusal", "stop"],
    "text, refusal": ["role", "content", "refusal", "stop"],
    "web search": ["role", "content", "stop"],
    "text, search, text": ["role", "content", "content", "stop"],
    "two messages": ["role", "content", "content", "stop"],
    "length": ["role", "content", "content", "length"],
    "length in reasoning": ["role", "reasoning", "length"],
    "length in call": ["role", "content", "call+0", "length"],
    "length in refusal": ["role null", "refusal", "length"],
    "content filter": ["role", "content", "content_filter"],
    "web search, cited": ["role", "content", "content", "content", "annotations", "annotations", "stop"],
    "file search": ["role", "content", "content", "stop"],
    "code interpreter": ["role", "content", "stop"],
    "image generation": ["role", "content", "stop"],
    "mcp": ["role", "content", "stop"],
    "mcp approval": ["role", "stop"],
    "shell": ["role", "tool_calls"],
    "hosted shell": ["role", "content", "stop"],
    "local shell": ["role", "tool_calls"],
    "apply patch": ["role", "tool_calls"],
    "computer": ["role", "tool_calls"],
    "text, code, text": ["role", "content", "content", "stop"],
    "length in code": ["role", "length"],
    "length in arguments": ["role", "length"],
    "length in command": ["role", "length"],
    "length in search": ["role", "length"],
    "choices: two choices": ["0:role", "0:content", "1:role", "1:content", "0:content", "0:stop", "1:content",
                             "1:length"],
    "choices: two runs": ["0:role", "0:content", "0:content", "1:role", "1:content", "1:content", "0:stop",
                          "1:stop"],
    "choices: calls in two choices": ["0:role null", "0:call+0", "1:role null", "1:call+0", "1:call0", "0:call0",
                                      "1:tool_calls", "0:tool_calls"],
    "choices: one choice is empty": ["2:role", "2:content", "2:stop", "0:role", "0:stop", "1:role", "1:stop"],
}


def short_chunk(chunk, several=False):
    """A chunk with one choice in shorthand."""
    choice, = chunk["choices"]
    delta = choice["delta"]
    if choice["finish_reason"] is not None:
        name = choice["finish_reason"]
    elif "role" in delta:
        name = "role null" if delta["content"] is None else "role"
    elif "tool_calls" in delta:
        call, = delta["tool_calls"]
        name = "call%s%d" % ("+" if "id" in call else "", call["index"])
    else:
        name, = delta
        name = name.replace("_content", "")
    return "%d:%s" % (choice["index"], name) if several else name


# ---- readers of the wire ----------------------------------------------------------------------

def dechunk(data):
    """The bytes inside HTTP's chunk framing, without its last chunk. Raises ValueError."""
    out = []
    while data:
        line, found, data = data.partition(b"\r\n")
        size = int(line, 16)
        if not found or not size or data[size:size + 2] != b"\r\n":
            raise ValueError("bad chunk of %r" % line)
        out.append(data[:size])
        data = data[size + 2:]
    return b"".join(out)


def read_sse(data):
    """[(event name or None, value)] of a stream; "[DONE]" stands for itself. Comments are dropped.

    Strict: an optional event line, one data line, a blank line, and nothing else. Raises ValueError.
    """
    found = []
    if not data.endswith(b"\n\n"):
        raise ValueError("the stream ends within an event: %r" % data[-60:])
    for block in data[:-2].split(b"\n\n"):
        lines = block.decode("ascii").split("\n")
        if all(line.startswith(":") for line in lines):
            continue
        name = None
        if lines[0].startswith("event: "):
            name = lines.pop(0)[7:]
        line, = lines
        if not line.startswith("data: "):
            raise ValueError("no data line: %r" % line[:60])
        text = line[6:]
        found.append((name, text if text == "[DONE]" else json.loads(text)))
    return found


def read_response_stream(test, data):
    """The events of a whole Responses stream, after all that must hold of every one was asserted."""
    found = read_sse(data)
    test.assertEqual(found.pop(), (None, "[DONE]"))
    for number, (name, event) in enumerate(found):
        test.assertEqual(name, event["type"])
        test.assertEqual(event["sequence_number"], number, "a gap in the sequence numbers")
    events = [event for _, event in found]
    _ResponseReplay(test).play(events)
    return events


NO_STATUS = ("mcp_list_tools", "mcp_approval_request")
# What an item is called that was cut and cannot be incomplete, by the schema's closed lists.
CUT_STATUS = {"web_search_call": "failed", "image_generation_call": "failed", "apply_patch_call": "in_progress"}


class _ResponseReplay:
    """Rebuilds the output from the events, as a client does, and compares it with the final object."""

    def __init__(self, test):
        self.test = test
        self.items = []             # by output index: the item as announced
        self.done = {}              # output index -> the item of output_item.done
        self.texts = {}             # (output index, part kind, index) -> joined deltas
        self.parts = {}             # (output index, content index) -> the part of content_part.done
        self.notes = {}             # (output index, content index) -> annotations

    def play(self, events):
        test = self.test
        test.assertEqual([event["type"] for event in events[:2]], ["response.created", "response.in_progress"])
        for event in events[:2]:
            test.assertEqual((event["response"]["status"], event["response"]["output"],
                              event["response"]["usage"]), ("in_progress", [], None))
        for event in events[2:-1]:
            self.one(event)
        terminal = events[-1]
        test.assertIn(terminal["type"], ("response.completed", "response.incomplete", "response.failed"))
        response = terminal["response"]
        test.assertEqual(response["status"], terminal["type"].split(".")[1])
        test.assertEqual(response["id"], events[0]["response"]["id"])
        failed = response["status"] == "failed"
        test.assertEqual(events[-2]["type"] == "error", failed, "error comes before response.failed, and only there")
        test.assertEqual(len(response["output"]), len(self.items))
        for index, item in enumerate(response["output"]):
            test.assertEqual(item["id"], self.items[index]["id"])
            if index in self.done:
                test.assertEqual(item, self.done[index])
            else:
                test.assertTrue(failed, "an item without output_item.done")
                if item["type"] not in NO_STATUS:
                    test.assertEqual(item["status"], CUT_STATUS.get(item["type"], "incomplete"))
                self.unfinished(index, item)
        test.assertEqual(response["usage"] is None, failed)
        test.assertEqual(response["completed_at"] is None, response["status"] != "completed")
        test.assertEqual(response["error"] is None, not failed)
        test.assertEqual(response["incomplete_details"] is None, response["status"] != "incomplete")

    def one(self, event):
        test, kind = self.test, event["type"]
        index = event.get("output_index")
        if kind == "error":
            return
        if kind == "response.output_item.added":
            test.assertEqual(index, len(self.items), "output indexes grow by one")
            test.assertNotIn(event["item"]["id"], [item["id"] for item in self.items])
            test.assertEqual(event["item"].get("status"),
                             None if event["item"]["type"] in NO_STATUS else "in_progress")
            self.items.append(event["item"])
            return
        test.assertLess(index, len(self.items), kind)
        test.assertNotIn(index, self.done, "%s after the item's end" % kind)
        item = self.items[index]
        if kind == "response.output_item.done":
            self.item_done(index, event["item"])
            return
        test.assertEqual(event["item_id"], item["id"])
        name = kind.split(".", 1)[1]
        place = event.get("content_index", event.get("summary_index", event.get("command_index", 0)))
        if name.startswith("shell_call_output_content."):
            self.output_content(event, index, place)
        elif name == "output_text.annotation.added":
            notes = self.notes.setdefault((index, place), [])
            test.assertEqual(event["annotation_index"], len(notes))
            notes.append(event["annotation"])
            self.cites(event["annotation"], self.texts[index, "output_text", place])
        elif name == "shell_call_command.added":
            test.assertEqual(event["command"], "")
            test.assertNotIn((index, "command", place), self.texts)
            self.texts[index, "command", place] = ""
        elif name.endswith("_part.added"):
            part = event["part"]
            test.assertEqual(part.get("text", part.get("refusal")), "")
            test.assertNotIn((index, part["type"], place), self.texts)
            self.texts[index, part["type"], place] = ""
        elif name.endswith("_part.done"):
            part = event["part"]
            test.assertEqual(part.get("text", part.get("refusal")), self.texts[index, part["type"], place])
            test.assertEqual(part.get("annotations", []), self.notes.get((index, place), []))
            self.parts[index, place] = part
        elif name.endswith(".delta"):
            key = self.key(index, name[:-6], place)
            if key not in self.texts:
                test.assertIn(key[1], ("arguments", "input", "code"), "a delta without its part")
                self.texts[key] = ""
            test.assertNotEqual(event["delta"], "")
            self.texts[key] += event["delta"]
        elif name.endswith(".done"):
            key = self.key(index, name[:-5], place)
            field = key[1] if key[1] in ("refusal", "arguments", "input", "code", "command") else "text"
            test.assertEqual(event[field], self.texts.get(key, ""))
            if name == "function_call_arguments.done":
                test.assertEqual(event["name"], item["name"])

    def cites(self, annotation, text):
        """A citation's indexes lie inside the text so far."""
        start, end = annotation.get("start_index", 0), annotation.get("end_index", annotation.get("index"))
        self.test.assertLessEqual(0, start)
        self.test.assertLess(start, end)
        self.test.assertLessEqual(end, len(text))

    def output_content(self, event, index, place):
        key = index, "stdout", place
        if event["type"].endswith(".delta"):
            self.texts[key] = self.texts.get(key, "") + event["delta"].get("stdout", "")
        else:
            self.test.assertEqual("".join(each["stdout"] for each in event["output"]), self.texts[key])

    @staticmethod
    def key(index, name, place):
        kind = {"output_text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text",
                "reasoning_summary_text": "summary_text", "function_call_arguments": "arguments",
                "custom_tool_call_input": "input", "code_interpreter_call_code": "code",
                "mcp_call_arguments": "arguments", "shell_call_command": "command"}[name]
        return index, kind, place

    def item_done(self, index, item):
        test, began = self.test, self.items[index]
        for key in ("id", "type", "call_id", "name", "role"):
            test.assertEqual(item.get(key), began.get(key))
        if item["type"] not in NO_STATUS:
            test.assertIn(item["status"], ("completed", CUT_STATUS.get(item["type"], "incomplete")))
        if item["type"] == "message":
            test.assertEqual(item["content"], [self.parts[index, place] for place in range(len(item["content"]))])
            test.assertEqual(sum(1 for key in self.texts if key[0] == index), len(item["content"]))
        elif item["type"] == "code_interpreter_call":
            test.assertEqual(item["code"], self.texts.get((index, "code", 0), ""))
        elif item["type"] == "shell_call":
            test.assertEqual(item["action"]["commands"], [self.texts[key] for key in sorted(self.texts)
                                                          if key[0] == index])
        elif item["type"] in ("function_call", "mcp_call"):
            test.assertEqual(item["arguments"], self.texts.get((index, "arguments", 0), ""))
        elif item["type"] == "custom_tool_call":
            test.assertEqual(item["input"], self.texts.get((index, "input", 0), ""))
        elif item["type"] == "reasoning":
            parts = item["summary"] or item.get("content", [])
            test.assertEqual(parts, [self.parts[index, place] for place in range(len(parts))])
            test.assertEqual(sum(1 for key in self.texts if key[0] == index), len(parts))
        self.done[index] = item

    def unfinished(self, index, item):
        """An item that a failure left open holds all that was sent of it."""
        said = "".join(self.texts[key] for key in sorted(self.texts, key=lambda key: key[2]) if key[0] == index)
        held = "".join(part.get("text", part.get("refusal", ""))
                       for part in item.get("content", []) + item.get("summary", []))
        held += "".join(item.get("action", {}).get("commands", []))
        if item["type"] == "shell_call_output":
            return
        if item["type"] == "mcp_approval_request":      # it is told whole, with its start
            said += item["arguments"]
        self.test.assertEqual(held + item.get("arguments", "") + item.get("input", "") + item.get("code", ""), said)


def read_chat_stream(test, data, include_usage=False):
    """(chunks, the object that they make) of a whole chat stream, after the general rules were asserted."""
    found = read_sse(data)
    test.assertEqual(found.pop(), (None, "[DONE]"))
    chunks = [chunk for name, chunk in found if test.assertIsNone(name) is None]
    usage = None
    if include_usage:
        usage = chunks[-1]["usage"]
        test.assertEqual(chunks[-1]["choices"], [])
        for chunk in chunks[:-1]:
            test.assertIsNone(chunk["usage"])
    else:
        test.assertFalse([chunk for chunk in chunks if "usage" in chunk])
    common = {key: chunks[0][key] for key in ("id", "created", "model", "service_tier", "system_fingerprint")}
    choices = {}
    for chunk in chunks:
        test.assertEqual({key: chunk[key] for key in common}, common)
        test.assertEqual(chunk["object"], "chat.completion.chunk")
        for part in chunk["choices"]:
            _chat_collect(test, choices, part)
    for choice in choices.values():
        test.assertIsNotNone(choice["finish_reason"], "a choice without an end")
        calls = choice["message"].pop("calls")
        if calls:
            test.assertEqual(sorted(calls), list(range(len(calls))))
            choice["message"]["tool_calls"] = [calls[number] for number in sorted(calls)]
            choice["message"]["content"] = choice["message"]["content"] or None
    whole = dict(common, object="chat.completion", choices=[choices[index] for index in sorted(choices)])
    if include_usage:
        whole["usage"] = usage
    return chunks[:-1] if include_usage else chunks, whole


def _chat_collect(test, choices, part):
    delta, index = part["delta"], part["index"]
    if index not in choices:
        test.assertEqual(delta["role"], "assistant", "the role comes first")
        test.assertIn(delta["content"], ("", None))
        test.assertIsNone(delta["refusal"])
        choices[index] = {"index": index, "logprobs": None, "finish_reason": None, "message": {
            "role": "assistant", "content": delta["content"], "refusal": None, "annotations": [], "calls": {}}}
        return
    choice = choices[index]
    message = choice["message"]
    test.assertIsNone(choice["finish_reason"], "a chunk after the choice's end")
    test.assertNotIn("role", delta)
    if part["finish_reason"] is not None:
        test.assertEqual(delta, {})
        choice["finish_reason"] = part["finish_reason"]
    message["annotations"] += delta.get("annotations", [])
    for key in ("content", "refusal", "reasoning_content"):
        if key in delta:
            test.assertNotEqual(delta[key], "")
            message[key] = (message.get(key) or "") + delta[key]
    if part["logprobs"] is not None:
        told = choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
        test.assertEqual("".join(entry["token"] for entry in part["logprobs"]["content"]), delta["content"])
        told["content"] += part["logprobs"]["content"]
    for call in delta.get("tool_calls", ()):
        known = message["calls"].get(call["index"])
        kind = "custom" if "custom" in call else "function"
        field = "input" if kind == "custom" else "arguments"
        if known is None:
            message["calls"][call["index"]] = {"id": call["id"], "type": call["type"], kind: {
                "name": call[kind]["name"], field: call[kind][field]}}
        else:
            test.assertEqual(set(call), {"index", kind}, "id and type come once")
            test.assertEqual(set(call[kind]), {field}, "the name comes once")
            known[kind][field] += call[kind][field]


def stream_of(assembler, deltas, way="frames"):
    """The bytes of a whole stream of these deltas.

    way: how a TextRun is taken in: "frames", "joined", "feed", or "pieces" as single TextDeltas.
    """
    if way == "pieces":
        deltas = split_runs(deltas)
    out = [assembler.start()]
    for delta in deltas:
        if delta.__class__ is TextRun and way == "frames":
            out += assembler.frames(delta)
        elif delta.__class__ is TextRun and way == "joined":
            out.append(assembler.joined(delta))
        else:
            out.append(assembler.feed(delta))
        if assembler.failed is not None:
            return b"".join(out) + assembler.fail(assembler.failed)
    out.append(assembler.finish())
    return b"".join(out) + assembler.end()


def object_of(assembler, deltas):
    """The plain answer's object of these deltas: runs are absorbed, no frame is kept."""
    for delta in deltas:
        if delta.__class__ is TextRun:
            assembler.absorb(delta)
        else:
            assembler.feed(delta)
    assembler.finish()
    return json.loads(assembler.result())


def with_failure(deltas, position, error):
    """The deltas up to a position, and then a Failure."""
    return deltas[:position] + [Failure(error)]


# ---- damage -----------------------------------------------------------------------------------

ODD_VALUES = (None, True, False, 0, -1, 5, 1.5, 10 ** 30, "", "x", "call_a", SURROGATE, [], {}, [None], [[]], [{}],
              ["x"], {"x": []}, {"type": []}, {"type": "text", "text": []}, {"id": []}, {"role": {}})


def _places(value, found):
    """Every (container, key) inside a JSON value."""
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, part in pairs:
        found.append((value, key))
        if isinstance(part, (dict, list)):
            _places(part, found)
    return found


def damaged(draw, request):
    """A deep copy of a request in which one to three values are replaced by odd ones, or are missing."""
    request = json.loads(json.dumps(request))
    for _ in range(draw.randrange(1, 4)):
        container, key = draw.choice(_places(request, []))
        if draw.random() < 0.15 and isinstance(container, dict):
            del container[key]
        else:
            container[key] = json.loads(json.dumps(draw.choice(ODD_VALUES)))
        if not request:
            break
    return request


def place_of(exc):
    """An exception and the line that raised it, to tell one fault from another."""
    trace = exc.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return "%s: %.60s in %s, line %d" % (exc.__class__.__name__, exc, code.co_name, trace.tb_lineno)
