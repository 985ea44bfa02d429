"""What a script's rule says: texts with fields of the request in them, calls, items, laid out as steps.

In: replies as script_rules.py has read them, and a Telling: the request that is answered. Out: steps, each a delta
with its tokens, in the order in which they are said; scripted.py lays them on a clock. Templates substitute and
do nothing else. Any thread.
"""
import json
import re
from collections import namedtuple

from api_common import escape_json
from backends.contract import (AnnotationDelta, ItemEnd, ItemStart, ItemUpdate, ReasoningDelta, RefusalDelta, TextDelta,
                               ToolCallDelta)
from backends.script_match import UNTOLD_HEADERS, follow_path, path_text, read_json_path
from backends.simulated import cut_at_stop

TEMPLATE_MOST_CHARS = 100000        # of one field that is put into a text
LONG_REPLY_CHARS = 20000            # a reply that may be longer is made on a worker

_TEMPLATE_MARK = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_TEMPLATE_FACTS = frozenset(("last_user_text", "system", "model", "endpoint", "turn", "conversation", "root",
                             "previous_response_id"))
TEMPLATE_NAMES = ("last_user_text, system, model, endpoint, turn, conversation, root, previous_response_id, rule, "
                  "call, tool_result, tool_result.PATH, match.GROUP, header.NAME, metadata.KEY")


# ---- templates --------------------------------------------------------------------------------

class Template:
    """A text with {{name}} in it. parts: list of str and of functions of a Telling that return str."""

    __slots__ = ("text", "parts")

    def __init__(self, text, parts):
        self.text = text
        self.parts = parts

    @property
    def fixed(self):
        """Whether it is the same for every request."""
        return len(self.parts) == 1 and self.parts[0].__class__ is str

    def render(self, telling):
        parts = self.parts
        if len(parts) == 1 and parts[0].__class__ is str:
            return parts[0]
        return "".join([part if part.__class__ is str else part(telling) for part in parts])


def read_template(text, regex, plain):
    """A Template. regex: the compiled one that match.GROUP is about, or None. plain: {{ }} means nothing.

    Raises ValueError for a name that is none.
    """
    if plain or "{{" not in text:
        return Template(text, [text])
    parts, at = [], 0
    for found in _TEMPLATE_MARK.finditer(text):
        if found.start() > at:
            parts.append(text[at:found.start()])
        parts.append(_template_field(found.group(1), regex))
        at = found.end()
    if at < len(text) or not parts:
        parts.append(text[at:])
    return Template(text, parts)


def _template_field(name, regex):
    bare, bar, form = name.partition("|")
    field = _named_field(bare.strip(), regex)
    if not bar:
        return lambda telling: field(telling)[:TEMPLATE_MOST_CHARS]
    if form.strip() != "json":
        raise ValueError("there is no form '%s': only json, which escapes for a JSON string" % form.strip())
    return lambda telling: escape_json(field(telling)[:TEMPLATE_MOST_CHARS]).decode("ascii")


def _named_field(name, regex):
    """A function of a Telling for a template's name. Raises ValueError."""
    if name in _TEMPLATE_FACTS:
        return lambda telling: _as_text(telling.view.fact(name))
    if name == "rule":
        return lambda telling: telling.rule
    if name == "call":
        return lambda telling: str(telling.call)
    word, dot, rest = name.partition(".")
    if word == "tool_result":
        if dot and not rest:
            raise ValueError("'{{tool_result.}}' needs a path behind the dot")
        path = read_json_path(rest) if dot else None
        return lambda telling: _result_text(telling.view.fact("tool_result"), path)
    if word == "match" and dot:
        return _group_field(rest, regex)
    if word == "header" and rest:
        header = rest.lower()
        if header in UNTOLD_HEADERS:
            raise ValueError("the header '%s' is a secret and is not put into answers" % header)
        return lambda telling: telling.view.fact("header").get(header, "")
    if word == "metadata" and rest:
        return lambda telling: _as_text(telling.view.fact("metadata").get(rest))
    raise ValueError("unknown name '{{%s}}': there are %s; with \"template\": false braces mean nothing"
                     % (name, TEMPLATE_NAMES))


def _group_field(name, regex):
    if regex is None:
        raise ValueError("'{{match.%s}}' needs a regex in the rule's match" % name)
    group = int(name) if name.isdigit() and len(name) < 4 else name
    if group not in regex.groupindex and not (group.__class__ is int and group <= regex.groups):
        raise ValueError("the regex %r has no group '%s'" % (regex.pattern[:60], name))

    def field(telling):
        try:
            return telling.match.group(group) or "" if telling.match is not None else ""
        except IndexError:
            return ""                   # another regex of the rule was the one that matched
    return field


def _as_text(value):
    return "" if value is None else value if value.__class__ is str else str(value)


def _result_text(results, path):
    if not results:
        return ""
    if path is None:
        return results[-1].text
    try:
        return path_text(follow_path(json.loads(results[-1].text), path))
    except (ValueError, RecursionError, KeyError):
        return ""


class JsonTemplate:
    """A value of JSON with templates for its strings."""

    __slots__ = ("value", "fixed", "text")

    def __init__(self, value):
        self.value = value
        self.fixed = _is_fixed(value)
        self.text = _compact(_bare(value))

    def render(self, telling):
        return _compact(self._filled(self.value, telling))

    def filled(self, telling):
        """The value itself."""
        return self._filled(self.value, telling)

    def _filled(self, value, telling):
        kind = value.__class__
        if kind is Template:
            return value.render(telling)
        if kind is dict:
            return {key: self._filled(each, telling) for key, each in value.items()}
        if kind is list:
            return [self._filled(each, telling) for each in value]
        return value


def _bare(value):
    """A JsonTemplate's value as it is written, with its braces."""
    if value.__class__ is dict:
        return {key: _bare(each) for key, each in value.items()}
    if value.__class__ is list:
        return [_bare(each) for each in value]
    return value.text if value.__class__ is Template else value


def _is_fixed(value):
    if value.__class__ is dict:
        return all(map(_is_fixed, value.values()))
    if value.__class__ is list:
        return all(map(_is_fixed, value))
    return value.__class__ is not Template or value.fixed


def _compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- a reply at work --------------------------------------------------------------------------

class Telling:
    """One answer that is being given. view: RequestView; match: re.Match or None; rule: the name; call: how often
    the rule has answered, with this one; tokenizer."""

    __slots__ = ("view", "match", "rule", "call", "tokenizer", "calls", "ended")

    def __init__(self, view, match, rule, call, tokenizer):
        self.view = view
        self.match = match
        self.rule = rule
        self.call = call
        self.tokenizer = tokenizer
        self.calls = 0              # of this choice so far, for their index
        self.ended = False          # a stop sequence came


class Spoken:
    """A text that is said in pieces: those given by hand, or the tokenizer's.

    whole: a Template or JsonTemplate; or by_hand: list of Templates.
    """

    __slots__ = ("whole", "by_hand", "_kept")

    def __init__(self, whole, by_hand=None):
        self.whole = whole
        self.by_hand = by_hand
        self._kept = None           # of a fixed text: (pieces, escapes)

    @property
    def fixed(self):
        return self.whole.fixed if self.by_hand is None else all(part.fixed for part in self.by_hand)

    @property
    def text(self):
        """As it is written, with its braces."""
        return self.whole.text if self.by_hand is None else "".join([part.text for part in self.by_hand])

    def pieces(self, telling):
        """(pieces, their JSON escapes): lists that are not to be changed."""
        kept = self._kept
        if kept is None:
            if self.by_hand is not None:
                pieces = [piece for piece in (part.render(telling) for part in self.by_hand) if piece]
            else:
                pieces = telling.tokenizer.split(self.whole.render(telling))
            kept = pieces, [escape_json(piece) for piece in pieces]
            if self.fixed:
                self._kept = kept
        return kept

    def counted(self, telling):
        """[(piece, its tokens)]."""
        pieces, _ = self.pieces(telling)
        if self.by_hand is None:
            return [(piece, 1) for piece in pieces]
        return [(piece, telling.tokenizer.count(piece)) for piece in pieces]


# ---- parts ------------------------------------------------------------------------------------
# steps(telling, choice): a list of (delta, slots, tokens). A step comes so many token times after the one before
# it, and what the model writes in it counts as so many tokens of output.

class TextPart:
    """Text, of a message. spoken: Spoken; annotations: a JsonTemplate of a list, or None."""

    group = "text"

    def __init__(self, spoken, annotations=None):
        self.spoken = spoken
        self.annotations = annotations

    def steps(self, telling, choice):
        counted = self.spoken.counted(telling)
        stops = telling.view.request.stop
        if stops:
            pieces, telling.ended = cut_at_stop([piece for piece, _ in counted], stops)
            if telling.ended:
                counted = [(piece, telling.tokenizer.count(piece)) for piece in pieces]
        steps = [(TextDelta(piece, None, choice), 1, tokens) for piece, tokens in counted]
        if self.annotations is not None and not telling.ended:
            steps += [(AnnotationDelta(note, choice), 0, 0) for note in self.annotations.filled(telling)]
        return steps


class RefusalPart:
    """A refusal; text where the API has no place for one."""

    group = "refusal"

    def __init__(self, spoken):
        self.spoken = spoken

    def steps(self, telling, choice):
        counted = self.spoken.counted(telling)
        if telling.view.request.endpoint == "completions":
            return [(TextDelta(piece, None, choice), 1, tokens) for piece, tokens in counted]
        return [(RefusalDelta(piece, choice), 1, tokens) for piece, tokens in counted]


class ReasoningPart:
    """What was thought before. kind: "summary" or "raw"."""

    group = "reasoning"

    def __init__(self, spoken, kind):
        self.spoken = spoken
        self.kind = kind

    def steps(self, telling, choice):
        return [(ReasoningDelta(piece, self.kind, choice), 1, tokens) for piece, tokens in self.spoken.counted(telling)]


class CallPart:
    """A call of a function or custom tool. id: a Template or None; namespace: str or None."""

    group = None

    def __init__(self, name, spoken, kind, id=None, namespace=None):
        self.name = name
        self.spoken = spoken
        self.kind = kind
        self.id = id
        self.namespace = namespace

    def steps(self, telling, choice):
        index, kind = telling.calls, self.kind
        telling.calls = index + 1
        call_id = self.id.render(telling) or None if self.id is not None else None
        steps = [(ToolCallDelta(index, "", call_id, self.name, kind, choice, self.namespace), 1, 1)]
        steps += [(ToolCallDelta(index, piece, None, None, kind, choice), 1, tokens)
                  for piece, tokens in self.spoken.counted(telling)]
        steps.append((ItemEnd("custom_tool_call" if kind == "custom" else "function_call", {}, choice), 0, 0))
        return steps


class ItemKind(namedtuple("ItemKind", "needed late before streamed after defaults", defaults=({},))):
    """How an item of a built-in tool comes. needed: its keys that a script has to give; late: those that are
    in it only at its end, None for all; before, after: the phases around a text in deltas; streamed: that text's
    (name of the events, key), or None."""
    __slots__ = ()


# Phases and fields as the service has them: api-reference 10.10, and builtin_tools.py.
ITEM_KINDS = {
    "web_search_call": ItemKind(("action",), (), ("in_progress", "searching"), None, ("completed",)),
    "file_search_call": ItemKind(("queries",), ("results",), ("in_progress", "searching"), None, ("completed",),
                                 {"results": None}),
    "code_interpreter_call": ItemKind(("code",), ("outputs",), ("in_progress",), ("code_interpreter_call_code", "code"),
                                      ("interpreting", "completed"), {"container_id": "cntr_script", "outputs": None}),
    "image_generation_call": ItemKind(("result",), None, ("in_progress", "generating"), None, ("completed",),
                                      {"result": None}),
    "mcp_list_tools": ItemKind(("server_label", "tools"), ("tools",), ("in_progress",), None, ("completed",),
                               {"tools": []}),
    "mcp_call": ItemKind(("server_label", "name", "arguments"), ("output", "error"), ("in_progress",),
                         ("mcp_call_arguments", "arguments"), ("completed",),
                         {"output": None, "error": None, "approval_request_id": None}),
    "mcp_approval_request": ItemKind(("server_label", "name", "arguments"), (), (), None, ()),
    "local_shell_call": ItemKind(("action",), (), (), None, ()),
    "apply_patch_call": ItemKind(("operation",), (), (), None, ()),
    "computer_call": ItemKind((), (), (), None, (), {"pending_safety_checks": []}),
}


class ItemPart:
    """An item of a built-in tool. fields: a JsonTemplate of a dict, without its type."""

    group = None

    def __init__(self, kind, fields):
        self.kind = kind
        self.fields = fields

    def steps(self, telling, choice):
        if telling.view.request.endpoint != "responses":
            return []
        kind, about = self.kind, ITEM_KINDS[self.kind]
        fields = dict(about.defaults, **self.fields.filled(telling))
        late = about.late if about.late is not None else tuple(fields)
        start = {key: value for key, value in fields.items() if key not in late}
        start.update((key, value) for key, value in about.defaults.items() if key in late)
        after = about.after
        if kind == "mcp_call" and fields["error"] is not None:
            after = ("failed",)
        if about.streamed is not None:
            start[about.streamed[1]] = ""
        steps = [(ItemStart(kind, start, choice), 1, 1 if about.streamed is not None else 0)]
        steps += [(ItemUpdate(kind, phase, {}, choice), number, 0) for number, phase in enumerate(about.before)]
        if about.streamed is not None:
            event, key = about.streamed
            steps += [(ItemUpdate(event, "delta", {"delta": piece}, choice), 1, 1)
                      for piece in telling.tokenizer.split(fields[key])]
            steps.append((ItemUpdate(event, "done", {}, choice), 0, 0))
        steps += [(ItemUpdate(kind, phase, {}, choice), 1, 0) for phase in after]
        steps.append((ItemEnd(kind, {key: fields[key] for key in late if key in fields}, choice), 0, 0))
        return steps


# ---- replies ----------------------------------------------------------------------------------

class Reply:
    """One answer of a rule.

    parts: list of the above, or None for what the simulated backend says. finish: a finish reason or None.
    usage: {name of a Usage's field: int}. overrides: {"id", "message_id": Template, "created": int} as far as
    given, or None. ttft_s, itl_s: its own times, or None for the clock's. faults: list of values for
    faults.read_faults().
    """

    __slots__ = ("parts", "finish", "usage", "overrides", "ttft_s", "itl_s", "faults", "size", "in_tokens")

    def __init__(self, parts=None, finish=None, usage=None, overrides=None, ttft_s=None, itl_s=None, faults=()):
        self.parts = parts
        self.finish = finish
        self.usage = usage
        self.overrides = overrides
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        self.faults = faults
        # whether each piece of its texts is one token
        self.in_tokens = all(part.__class__ is ItemPart or part.spoken.by_hand is None for part in parts or ())
        # about how many characters it has, or may have
        self.size = sum(len(part.spoken.text) + (0 if part.spoken.fixed else LONG_REPLY_CHARS // 4)
                        for part in parts or () if part.__class__ is not ItemPart)

    def steps(self, telling, choice):
        """All its steps, up to a stop sequence."""
        steps, before = [], None
        telling.calls, telling.ended = 0, False
        for part in self.parts:
            if telling.view.request.endpoint == "completions" and part.__class__ not in (TextPart, RefusalPart):
                continue                # no place for it there
            if part.group is not None and part.group == before:
                steps.append((ItemStart("message", {}, choice), 0, 0))      # a second message, or reasoning item
            before = part.group
            steps += part.steps(telling, choice)
            if telling.ended:
                break
        return steps


def cut_steps(steps, limit, tokenizer):
    """The steps that fit into `limit` tokens (None: all), as (steps, tokens, whether it was cut)."""
    if limit is None:
        return steps, sum(step[2] for step in steps), False
    kept, written = [], 0
    for delta, slots, tokens in steps:
        if written + tokens > limit:
            if limit > written:         # a piece of several tokens
                kept.append((_first_tokens(delta, limit - written, tokenizer), slots, limit - written))
            return kept, limit, True
        written += tokens
        kept.append((delta, slots, tokens))
    return kept, written, False


def _first_tokens(delta, count, tokenizer):
    if delta.__class__ is ToolCallDelta:
        return delta._replace(arguments="".join(tokenizer.split(delta.arguments)[:count]))
    return delta._replace(text="".join(tokenizer.split(delta.text)[:count]))
