"""Built-in tools: what a simulated model does with them, as steps that are then laid on a clock.

In: a request's built-in tools and a digest to draw from. Out: a BuiltinTurn: item deltas in the order of
the service's events, and what the text behind them cites. Nothing is fetched or executed, all that is
named is example.com's or made up, and what a client may run is harmless. What `include` decides about
(sources, results, outputs) depends on nothing but the item that it belongs to, so that it can be given
later as well, and nobody has to keep it.
"""
import json
import re
from binascii import b2a_base64, crc32
from hashlib import blake2b
from random import Random

from api_common import ApiError, shown
from backends.contract import BUILTIN_FAMILIES, AnnotationDelta, ItemEnd, ItemStart, ItemUpdate
from backends.tool_choice import choose_builtins

QUERY_CHARS = 80                    # of the last user message, searched for
_CITED_SOURCES = 2

_BUILTIN_TOPICS = ("harbour", "lantern", "orchard", "compass", "meadow", "bridge", "kettle", "tide", "ferry",
                   "signal", "garden", "valley", "library", "market", "pier", "mill")
_MCP_TOOLS = (("search", "Search the notes."), ("read_note", "Read one note."))
_MCP_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"],
               "additionalProperties": False}
_SCREEN_ACTIONS = ({"type": "click", "button": "left", "x": 320, "y": 240}, {"type": "move", "x": 200, "y": 120},
                   {"type": "scroll", "x": 320, "y": 240, "scroll_x": 0, "scroll_y": 100}, {"type": "wait"})

# A grey dot in the formats that cannot be written in a few lines.
_DOT_JPEG = ("/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP////////////////////////////////////////////////////////////////////////"
             "//////////////wgALCAABAAEBAREA/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPxA=")
_DOT_WEBP = "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA=="


# ---- content: each a function of what its item shows ------------------------------------------

def _topic_draw(kind, text):
    return Random(int.from_bytes(blake2b(("%s\0%s" % (kind, text)).encode("utf-8", "surrogatepass"),
                                         digest_size=8).digest(), "big"))


def web_sources(query):
    """What a search for `query` finds: [(url, title)]."""
    return [("https://example.com/%s" % topic, "About the %s" % topic)
            for topic in _topic_draw("web", query).sample(_BUILTIN_TOPICS, 3)]


def file_results(query, count=2):
    """What a file search for `query` finds, as in file_search_call.results."""
    draw = _topic_draw("file", query)
    return [{"file_id": "file-%024x" % draw.getrandbits(96), "filename": "%s.md" % topic, "score": 0.9 - 0.1 * place,
             "attributes": {}, "text": "The %s is described on page %d." % (topic, draw.randrange(2, 90))}
            for place, topic in enumerate(draw.sample(_BUILTIN_TOPICS, 2))][:count]


_CODE_VALUES = re.compile(r"values = \[([0-9, ]+)\]")


def code_outputs(code):
    """What _sum_code() prints, as in code_interpreter_call.outputs; nothing is run."""
    found = _CODE_VALUES.match(code)
    if found is None:
        return []
    return [{"type": "logs", "logs": "%d\n" % sum(int(value) for value in found.group(1).split(", "))}]


def _sum_code(draw):
    values = [draw.randrange(1, 50) for _ in range(4)]
    return ('values = %s\ntotal = sum(values)\nwith open("/mnt/data/total.csv", "w") as file:\n'
            '    file.write("total\\n%%d\\n" %% total)\nprint(total)\n' % values)


def image_bytes(form, shade):
    """A small picture as base64. form: png, jpeg or webp. shade: 0 to 255, in PNG alone."""
    if form == "jpeg":
        return _DOT_JPEG
    if form == "webp":
        return _DOT_WEBP
    side = 8
    rows = (b"\0" + bytes((shade, shade, 255 - shade)) * side) * side
    # zlib's frame around one stored block: a Python without zlib serves pictures, too
    low, high = 1, 0
    for byte in rows:
        low = (low + byte) % 65521
        high = (high + low) % 65521
    size = len(rows)
    packed = b"\x78\x01\x01" + size.to_bytes(2, "little") + (size ^ 0xffff).to_bytes(2, "little") + rows \
        + (high << 16 | low).to_bytes(4, "big")
    head = side.to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    return b2a_base64(b"\x89PNG\r\n\x1a\n" + _png_chunk(b"IHDR", head) + _png_chunk(b"IDAT", packed)
                      + _png_chunk(b"IEND", b""), newline=False).decode("ascii")


def _png_chunk(kind, data):
    return len(data).to_bytes(4, "big") + kind + data + crc32(kind + data).to_bytes(4, "big")


def fill_includes(item, includes):
    """An item with what `includes` asks for and it lacks; what it has stays.

    item: dict of an output item. includes: values of `include`.
    """
    kind = item.get("type")
    if item.get("status") != "completed":
        return item
    if kind == "web_search_call" and "web_search_call.action.sources" in includes:
        action = item.get("action")
        if action.__class__ is dict and action.get("query").__class__ is str and action.get("sources") is None:
            return dict(item, action=dict(action, sources=[
                {"type": "url", "url": url} for url, _ in web_sources(action["query"])]))
    elif kind == "file_search_call" and "file_search_call.results" in includes:
        queries = item.get("queries")
        if item.get("results") is None and queries.__class__ is list and queries and queries[0].__class__ is str:
            return dict(item, results=file_results(queries[0]))
    elif kind == "code_interpreter_call" and "code_interpreter_call.outputs" in includes:
        if item.get("outputs") is None and item.get("code").__class__ is str:
            return dict(item, outputs=code_outputs(item["code"]))
    return item


def place_citations(text, citations, choice):
    """Citations of a text as AnnotationDeltas, one a sentence from the first on; none without text.

    citations: annotations without their indexes; those of a file as a whole get `index`, where it is
    cited, the others the sentence's start and end.
    """
    deltas, start = [], 0
    for citation in citations:
        if start >= len(text):
            break
        end = text.find(".", start) + 1 or len(text)
        if citation["type"] == "file_citation":
            place = {"index": end}
        else:
            place = {"start_index": start, "end_index": end}
        deltas.append(AnnotationDelta(dict(citation, **place), choice))
        start = end + (text[end:end + 1] == " ")
    return deltas


# ---- a turn -----------------------------------------------------------------------------------

class BuiltinTurn:
    """What built-in tools do in front of an answer's text.

    steps: list of (delta, slots, tokens): a step comes so many token times after the one before it, and
    what the model writes in it counts as so many tokens of output. citations: for place_citations().
    waits: the answer ends here, as its last call's output, or an approval, is the client's to give.
    """

    def __init__(self, request, digest, choice, tokenizer):
        self.steps = []
        self.citations = []
        self.waits = False
        self._request = request
        self._choice = choice
        self._tokenizer = tokenizer
        self._draw = Random(int.from_bytes(digest, "big"))
        self._left = request.max_tool_calls
        words = " ".join(request.history.last_user_text.split())
        self._query = words[:QUERY_CHARS] or self._draw.choice(_BUILTIN_TOPICS)
        self._items = None

    def chance(self):
        return self._draw.random()

    def call(self, spec, chosen):
        """Call a tool, unless the request's max_tool_calls is used up. chosen: a BuiltinName or None."""
        if self.waits or self._left is not None and self._left < 1:
            return
        family = BUILTIN_FAMILIES[spec.kind]
        if family == "mcp":
            self._call_mcp(spec.parameters, chosen)
        else:
            _BUILTIN_CALLS[family](self, spec.parameters or {})

    def answer_approvals(self):
        """Make the MCP calls that this turn approves. Raises ApiError 400 for an id that is no request's."""
        items = self._context()
        asked = {item["id"]: item for item in items if item.get("type") == "mcp_approval_request" and "id" in item}
        made = {item.get("approval_request_id") for item in items if item.get("type") == "mcp_call"}
        for id, approved in self._request.approvals:
            if id not in asked:
                raise ApiError(400, "No approval request found with id '%s'." % shown(id), param="input")
            if approved and id not in made:
                request = asked[id]
                self._mcp_call(request.get("server_label") or "", request.get("name") or "",
                               request.get("arguments") or "{}", id)

    def _context(self):
        if self._items is None:
            items = self._request.history.items
            self._items = items() if items is not None else []
        return self._items

    # ---- steps --------------------------------------------------------------------------------

    def _begin(self, kind, fields, tokens=0, counts=True):
        if counts and self._left is not None:
            self._left -= 1
        self.steps.append((ItemStart(kind, fields, self._choice), 1, tokens))

    def _step(self, kind, phase, fields=None, slots=1):
        self.steps.append((ItemUpdate(kind, phase, fields or {}, self._choice), slots, 0))

    def _write(self, kind, text):
        """A text in deltas, one a token, and its end."""
        self.steps += [(ItemUpdate(kind, "delta", {"delta": piece}, self._choice), 1, 1)
                       for piece in self._tokenizer.split(text)]
        self._step(kind, "done", slots=0)

    def _end(self, kind, fields=None, slots=0):
        self.steps.append((ItemEnd(kind, fields or {}, self._choice), slots, 0))

    def _wants(self, include):
        return include in self._request.include

    # ---- families: api-reference 10.10, the schema's event unions -----------------------------

    def _web_search(self, tool):
        kind, query = "web_search_call", self._query
        action = {"type": "search", "query": query, "queries": [query]}
        self._begin(kind, {"action": action})
        self._step(kind, "in_progress", slots=0)
        self._step(kind, "searching")
        self._step(kind, "completed")
        found = web_sources(query)
        if self._wants("web_search_call.action.sources"):
            action = dict(action, sources=[{"type": "url", "url": url} for url, _ in found])
        self._end(kind, {"action": action})
        self.citations += [{"type": "url_citation", "url": url, "title": title}
                           for url, title in found[:_CITED_SOURCES]]
        if tool.get("search_context_size") == "high" and self._left != 0:
            self._begin(kind, {"action": {"type": "open_page", "url": found[0][0]}})
            self._step(kind, "in_progress", slots=0)
            self._step(kind, "searching")
            self._step(kind, "completed")
            self._end(kind)

    def _file_search(self, tool):
        kind, query = "file_search_call", self._query
        most = tool.get("max_num_results")
        found = file_results(query, most if most.__class__ is int and most > 0 else 2)
        self._begin(kind, {"queries": [query], "results": None})
        self._step(kind, "in_progress", slots=0)
        self._step(kind, "searching")
        self._step(kind, "completed")
        self._end(kind, {"results": found if self._wants("file_search_call.results") else None})
        self.citations += [{"type": "file_citation", "file_id": each["file_id"], "filename": each["filename"]}
                           for each in found]

    def _code_interpreter(self, tool):
        kind, code = "code_interpreter_call", _sum_code(self._draw)
        container = tool.get("container")
        if container.__class__ is not str:
            container = "cntr_%032x" % self._draw.getrandbits(128)
        self._begin(kind, {"code": "", "container_id": container, "outputs": None}, tokens=1)
        self._step(kind, "in_progress", slots=0)
        self._write("code_interpreter_call_code", code)
        self._step(kind, "interpreting")
        self._step(kind, "completed")
        self._end(kind, {"outputs": code_outputs(code) if self._wants("code_interpreter_call.outputs") else None})
        self.citations.append({"type": "container_file_citation", "container_id": container,
                               "file_id": "cfile_%032x" % self._draw.getrandbits(128), "filename": "total.csv"})

    def _image_generation(self, tool):
        kind = "image_generation_call"
        form = tool.get("output_format")
        look = {"size": "1024x1024", "quality": "medium", "background": "opaque",
                "output_format": form if form in ("jpeg", "webp") else "png"}
        for key in ("size", "quality", "background"):
            if tool.get(key).__class__ is str and tool[key] != "auto":
                look[key] = tool[key]
        partial = tool.get("partial_images")
        partial = min(3, partial) if partial.__class__ is int else 0
        shade = self._draw.randrange(256)
        self._begin(kind, {"result": None})
        self._step(kind, "in_progress", slots=0)
        self._step(kind, "generating")
        for number in range(partial):
            self._step(kind, "partial_image", dict(
                look, partial_image_index=number,
                partial_image_b64=image_bytes(look["output_format"], shade * (number + 1) // (partial + 1))))
        self._step(kind, "completed")
        self._end(kind, dict(look, result=image_bytes(look["output_format"], shade), action="generate",
                             revised_prompt=self._query))

    def _call_mcp(self, tool, chosen):
        label = tool.get("server_label") or "server"
        names = tool.get("allowed_tools")
        if names.__class__ is dict:
            names = names.get("tool_names")
        told = [(name, "One of the server's tools.") for name in names] if names else _MCP_TOOLS
        if not any(item.get("type") == "mcp_list_tools" and item.get("server_label") == label
                   for item in self._context()):
            kind = "mcp_list_tools"
            self._begin(kind, {"server_label": label, "tools": []}, counts=False)
            self._step(kind, "in_progress", slots=0)
            self._step(kind, "completed")
            self._end(kind, {"tools": [{"name": name, "description": text, "input_schema": _MCP_SCHEMA,
                                        "annotations": {"read_only": True}} for name, text in told]})
        name = chosen.tool if chosen is not None and chosen.tool is not None else self._draw.choice(told)[0]
        arguments = json.dumps({"query": self._query}, ensure_ascii=False, separators=(",", ":"))
        if _needs_approval(tool.get("require_approval"), name):
            self._begin("mcp_approval_request", {"server_label": label, "name": name, "arguments": arguments}, tokens=1)
            self._end("mcp_approval_request", slots=1)
            self.waits = True
        else:
            self._mcp_call(label, name, arguments)

    def _mcp_call(self, label, name, arguments, approval=None):
        kind = "mcp_call"
        self._begin(kind, {"server_label": label, "name": name, "arguments": "", "output": None, "error": None,
                           "approval_request_id": approval}, tokens=1)
        self._step(kind, "in_progress", slots=0)
        self._write("mcp_call_arguments", arguments)
        self._step(kind, "completed")
        self._end(kind, {"output": "A note about the %s." % self._draw.choice(_BUILTIN_TOPICS)})

    def _shell(self, tool):
        kind, word = "shell_call", self._draw.choice(_BUILTIN_TOPICS)
        environment = tool.get("environment")
        place = environment.get("type") if environment.__class__ is dict else None
        hosted = place in ("container_auto", "container_reference")
        told = {"type": "local"} if place == "local" else None
        if hosted:
            container = environment.get("container_id")
            if container.__class__ is not str:
                container = "cntr_%032x" % self._draw.getrandbits(128)
            told = {"type": "container_reference", "container_id": container}
        self._begin(kind, {"action": {"commands": [], "timeout_ms": None, "max_output_length": None},
                           "environment": told}, tokens=1)
        self._step("shell_call_command", "added", slots=0)
        self._write("shell_call_command", "echo " + word)
        self._end(kind)
        self.waits = not hosted
        if hosted:                          # its container is the service's: the output comes by itself
            kind, said = "shell_call_output", word + "\n"
            output = [{"stdout": said, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
            self._begin(kind, {"output": [], "max_output_length": None}, counts=False)
            self._step("shell_call_output_content", "delta", {"command_index": 0, "delta": {"stdout": said}})
            self._step("shell_call_output_content", "done", {"command_index": 0, "output": output}, slots=0)
            self._end(kind, {"output": output})

    def _wait_for(self, kind, fields):
        self._begin(kind, fields, tokens=1)
        self._end(kind, slots=1)
        self.waits = True

    def _local_shell(self, tool):
        self._wait_for("local_shell_call", {"action": {
            "type": "exec", "command": ["echo", self._draw.choice(_BUILTIN_TOPICS)], "env": {}}})

    def _apply_patch(self, tool):
        word = self._draw.choice(_BUILTIN_TOPICS)
        self._wait_for("apply_patch_call", {"operation": {       # it deletes and changes nothing
            "type": "create_file", "path": "mockturtle-%s.txt" % word, "diff": "+About the %s.\n" % word}})

    def _computer(self, tool):
        action = self._draw.choice(_SCREEN_ACTIONS) if self._request.history.after_output else {"type": "screenshot"}
        told = {"actions": [action]} if tool.get("type") == "computer" else {"action": action}
        self._wait_for("computer_call", dict(told, pending_safety_checks=[]))


_BUILTIN_CALLS = {"web_search": BuiltinTurn._web_search, "file_search": BuiltinTurn._file_search,
                  "code_interpreter": BuiltinTurn._code_interpreter,
                  "image_generation": BuiltinTurn._image_generation, "shell": BuiltinTurn._shell,
                  "local_shell": BuiltinTurn._local_shell, "apply_patch": BuiltinTurn._apply_patch,
                  "computer": BuiltinTurn._computer}


def _needs_approval(rule, name):
    """Whether a call waits for an approval. rule: require_approval, "always" by default."""
    if rule.__class__ is dict:
        for word in ("never", "always"):
            names = (rule.get(word) or {}).get("tool_names")
            if names is not None and name in names:
                return word == "always"
        if (rule.get("never") or {}).get("read_only"):
            return False                    # as mcp_list_tools says, all are
        return rule.get("always") is None or bool(rule["always"].get("read_only"))
    return rule != "never"


def plan_builtins(request, digest, choice, rate, tokenizer):
    """What built-in tools do for a request, as a BuiltinTurn; None when nothing of them is called.

    digest: bytes to draw from. rate: how likely `auto` calls each tool.
    Raises ApiError 400 for an approval of something that was never asked.
    """
    turn = BuiltinTurn(request, digest, choice, tokenizer)
    if request.approvals:
        turn.answer_approvals()
    else:
        for spec, chosen in choose_builtins(request, rate, turn.chance):
            turn.call(spec, chosen)
    return turn if turn.steps else None
