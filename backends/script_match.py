"""What a script's rule asks of a request: conditions, and the facts of a request that they look at.

In: conditions as script_rules.py has read them, and a GenerationRequest. Out: whether they hold, what a regular
expression found, and in words why they do not. Facts are worked out when the first condition asks for them, so
that a rule about the model costs nothing else. Any thread.
"""
import json
import re
from fnmatch import translate

from api_common import content_text, shown
from backends.script_regex import REGEX_TEXT_CHARS, ScriptRegex

SCRIPT_ENDPOINTS = ("chat", "completions", "responses", "websocket", "compact")
UNTOLD_HEADERS = frozenset(("authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"))

_SHOWN_FACT_CHARS = 60


# ---- JSON paths -------------------------------------------------------------------------------

_PATH_STEP = re.compile(r"\.?([^.\[\]]+)|\[(?:([0-9]+)|\"([^\"]*)\"|'([^']*)')\]")


def read_json_path(text):
    """"$.a.b[0]" or "a.b[0]" as a tuple of keys and indexes. Raises ValueError."""
    rest = text[1:] if text.startswith("$") else text
    steps, at = [], 0
    while at < len(rest):
        found = _PATH_STEP.match(rest, at)
        if found is None or not at and rest.startswith(".") and not text.startswith("$"):
            raise ValueError("'%s' is no path such as \"a.b[0]\"" % shown(text))
        key, index = found.group(1), found.group(2)
        steps.append(int(index) if index is not None else key or found.group(3) or found.group(4) or "")
        at = found.end()
    return tuple(steps)


_MISSING = object()


def follow_path(value, steps):
    """The value at a path, or raises KeyError. A number among the keys is an index where there is a list."""
    for step in steps:
        if value.__class__ is dict:
            value = value.get(step if step.__class__ is str else str(step), _MISSING)
        elif value.__class__ is list:
            if step.__class__ is str:
                step = int(step) if step.isdigit() and len(step) < 10 else -1
            value = value[step] if 0 <= step < len(value) else _MISSING
        else:
            value = _MISSING
        if value is _MISSING:
            raise KeyError(step)
    return value


def path_text(value):
    """A value that was found at a path, as text: a string as it is, else its JSON."""
    return value if value.__class__ is str else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- conditions -------------------------------------------------------------------------------
# test(value) is true, or a re.Match, when the condition holds. words: what it expects, for messages.

class TextCondition:
    """Of a text. equal str; contains list of str that must all be in it; regex str; glob str; case: whether the
    case of letters counts. What is not given is None. Without the text (None) it does not hold."""

    __slots__ = ("_equal", "_contains", "_regex", "_glob", "_case", "words")

    def __init__(self, equal=None, contains=None, regex=None, glob=None, case=True):
        self._case = case
        flags = 0 if case else re.IGNORECASE
        self._equal = equal if case or equal is None else equal.casefold()
        self._contains = contains and [part if case else part.casefold() for part in contains]
        self._regex = None if regex is None else ScriptRegex(regex, flags)
        self._glob = None if glob is None else re.compile(translate(glob), flags)
        told = []
        if equal is not None:
            told.append("equal to %s" % _quoted(equal))
        told += ["containing %s" % _quoted(part) for part in contains or ()]
        if regex is not None:
            told.append("matching the regex %s" % _quoted(regex))
        if glob is not None:
            told.append("like %s" % _quoted(glob))
        self.words = "a text " + " and ".join(told) + ("" if case else " (in any case of letters)")

    @property
    def regex(self):
        """The ScriptRegex, or None."""
        return self._regex

    def test(self, value):
        if value is None:
            return False
        if self._equal is not None or self._contains is not None:
            text = value if self._case else value.casefold()
            if self._equal is not None and text != self._equal:
                return False
            if self._contains is not None and not all(part in text for part in self._contains):
                return False
        if self._glob is not None and self._glob.match(value[:REGEX_TEXT_CHARS]) is None:
            return False
        if self._regex is not None:
            return self._regex.search(value) or False
        return True


class AbsentCondition:
    """Written null: there is no such thing."""

    regex = None
    words = "nothing"

    def test(self, value):
        return value is None


class EqualCondition:
    """Of a value of JSON: the same value."""

    regex = None

    def __init__(self, value):
        self._value = value
        self.words = path_text(value)

    def test(self, value):
        return value == self._value and (value.__class__ is bool) == (self._value.__class__ is bool)


class NumberCondition:
    """Of an integer: between least and most, each a number or None."""

    regex = None

    def __init__(self, least, most):
        self._least = least
        self._most = most
        told = [words % bound for words, bound in (("at least %d", least), ("at most %d", most)) if bound is not None]
        self.words = "%d" % least if least == most else " and ".join(told)

    def test(self, value):
        return (self._least is None or value >= self._least) and (self._most is None or value <= self._most)


class AnyCondition:
    """Written as a list: one of them."""

    def __init__(self, conditions):
        self._conditions = conditions
        self.words = " or ".join(each.words for each in conditions)

    @property
    def regex(self):
        return next((each.regex for each in self._conditions if each.regex is not None), None)

    def test(self, value):
        for each in self._conditions:
            found = each.test(value)
            if found:
                return found
        return False


class NotCondition:

    regex = None

    def __init__(self, condition):
        self._condition = condition
        self.words = "not " + condition.words

    def test(self, value):
        return not self._condition.test(value)


class SomeCondition:
    """Of a list of texts: one of them satisfies a condition; with `every`, each of these conditions has one."""

    def __init__(self, condition, every=()):
        self._conditions = ([condition] if condition is not None else []) + list(every)
        self._absent = condition.__class__ is AbsentCondition
        self.words = " and ".join(each.words for each in self._conditions)

    @property
    def regex(self):
        return next((each.regex for each in self._conditions if each.regex is not None), None)

    def test(self, values):
        if self._absent:
            return not values
        result = True
        for each in self._conditions:
            if each.__class__ is NotCondition:
                found = all(each.test(value) for value in values)
            else:
                found = next((hit for hit in map(each.test, values) if hit), False)
            if not found:
                return False
            if result is True:
                result = found
        return result


class ToolResult:
    """A tool's output that came since the last answer. text str; call_id, tool: str or None."""

    __slots__ = ("text", "call_id", "tool")

    def __init__(self, text, call_id, tool):
        self.text = text
        self.call_id = call_id
        self.tool = tool


class ResultCondition:
    """Of a ToolResult. condition: of its text, or of what stands at `path` in it; tool, call_id: of those.
    Each is None when it was not given."""

    def __init__(self, condition=None, path=None, tool=None, call_id=None):
        self._condition = condition
        self._path = path
        self._tool = tool
        self._call_id = call_id
        told = []
        if tool is not None:
            told.append("of the tool %s" % tool.words)
        if call_id is not None:
            told.append("of the call %s" % call_id.words)
        if path is not None:
            told.append("that has a path %s" % ".".join(map(str, path)))
        if condition is not None:
            told.append("with %s" % condition.words)
        self.words = "a result " + " ".join(told)

    @property
    def regex(self):
        return self._condition.regex if self._condition is not None else None

    def test(self, result):
        if self._tool is not None and not self._tool.test(result.tool):
            return False
        if self._call_id is not None and not self._call_id.test(result.call_id):
            return False
        value = result.text
        if self._path is not None:
            try:
                value = follow_path(json.loads(result.text), self._path)
            except (ValueError, RecursionError, KeyError):
                return self._condition.__class__ is AbsentCondition
            if self._condition.__class__ is not EqualCondition and value is not None:
                value = path_text(value)
        return True if self._condition is None else self._condition.test(value)


class FieldsCondition:
    """Of a dict of texts: conditions by key; a key that is not there counts as None."""

    def __init__(self, conditions):
        self.conditions = conditions
        self.words = ", ".join("%s: %s" % (key, each.words) for key, each in conditions.items())

    @property
    def regex(self):
        return next((each.regex for each in self.conditions.values() if each.regex is not None), None)

    def test(self, values):
        result = True
        for key, each in self.conditions.items():
            found = each.test(values.get(key))
            if not found:
                return False
            if result is True:
                result = found
        return result


# ---- the facts --------------------------------------------------------------------------------

class RequestView:
    """A GenerationRequest as a script sees it: each fact worked out once, when it is first asked for.

    Raises TakesLong where a long chain has to be read and this is the loop.
    """

    def __init__(self, request):
        self.request = request
        self._facts = {}

    def fact(self, name):
        """A fact by the name of its key in a rule's match."""
        facts = self._facts
        if name not in facts:
            facts[name] = _FACTS[name](self)
        return facts[name]

    def _messages(self):
        return self.request.history.messages()

    def _last_user_text(self):
        history = self.request.history
        if history.last_user_text or history.items is None:
            return history.last_user_text
        for message in reversed(self.fact("messages")):     # a turn of the Responses API may bring an output alone
            if message.get("role") == "user":
                return content_text(message.get("content"))
        return ""

    def _system(self):
        return "\n".join(content_text(message.get("content")) for message in self.fact("messages")
                         if message.get("role") in ("system", "developer"))

    def _any_message(self):
        return [content_text(message.get("content")) for message in self.fact("messages")]

    def _turn(self):
        turn, before = 1, None
        for message in self.fact("messages"):
            role = message.get("role")
            if role == "assistant" and before != "assistant":
                turn += 1
            before = role
        return turn

    def _tools(self):
        return [spec.name or spec.kind for spec in self.request.tools]

    def _tool_result(self):
        results, names = [], {}
        messages = self.fact("messages")
        for message in reversed(messages):
            role = message.get("role")
            if role == "assistant":
                break
            if role in ("tool", "function"):
                results.append(message)
        for message in messages if results else ():
            for call in message.get("tool_calls") or () if message["role"] == "assistant" else ():
                names[call.get("id")] = (call.get("function") or call.get("custom") or {}).get("name")
        return [ToolResult(content_text(message.get("content")), message.get("tool_call_id"),
                           _text_or_none(message.get("name")) or names.get(message.get("tool_call_id")))
                for message in reversed(results)]

    def _images(self):
        return any(part.__class__ is dict and part.get("type") in ("image_url", "input_image")
                   for message in self.fact("messages") if message.get("content").__class__ is list
                   for part in message["content"])

    def _endpoint(self):
        return "websocket" if self.request.over_socket else self.request.endpoint

    def _format(self):
        form = self.request.output_format
        return "text" if form is None else form.kind

    def _body(self):
        return self.request.raw or {}

    def _metadata(self):
        found = self.fact("body").get("metadata")
        return {key: path_text(value) for key, value in found.items()} if found.__class__ is dict else {}

    def _conversation(self):
        found = self.fact("body").get("conversation")
        return _text_or_none(found.get("id") if found.__class__ is dict else found)

    def _previous(self):
        return _text_or_none(self.fact("body").get("previous_response_id"))

    def _root(self):
        return self.request.root() if self.request.root is not None else None


_FACTS = {
    "messages": RequestView._messages, "last_user_text": RequestView._last_user_text, "system": RequestView._system,
    "any_message": RequestView._any_message, "turn": RequestView._turn, "tools": RequestView._tools,
    "tool_result": RequestView._tool_result, "images": RequestView._images, "endpoint": RequestView._endpoint,
    "format": RequestView._format, "body": RequestView._body, "conversation": RequestView._conversation,
    "root": RequestView._root, "model": lambda view: view.request.model,
    "metadata": RequestView._metadata, "header": lambda view: view.request.headers or {},
    "previous_response_id": RequestView._previous,
    "stream": lambda view: bool(view.request.over_socket or view.fact("body").get("stream")),
}


def _text_or_none(value):
    return value if value.__class__ is str else None


def tell_fact(view, name, condition):
    """What a request has for a key, in a few words, without secrets."""
    value = view.fact(name)
    if name == "header":
        return ", ".join("%s: %s" % (key, "(not shown)" if key in UNTOLD_HEADERS and key in value
                                     else _quoted(value.get(key))) for key in condition.conditions)
    if name == "metadata":
        return ", ".join("%s: %s" % (key, _quoted(value.get(key))) for key in condition.conditions)
    if name == "tool_result":
        value = [result.text for result in value]
    if value.__class__ is list:
        told = ", ".join(map(_quoted, value[:5])) or "none"
        return told + (" and %d more" % (len(value) - 5) if len(value) > 5 else "")
    return _quoted(value)


def _quoted(value):
    if value.__class__ is not str:
        return "nothing" if value is None else str(value).lower() if value.__class__ is bool else str(value)
    return "'%s'" % shown(value if len(value) <= _SHOWN_FACT_CHARS else value[:_SHOWN_FACT_CHARS] + "...")
