"""The file of a recorded exchange: one JSON object, a delta a line, readable and editable by hand.

In: a Recording. Out: its text; and back, with a FixtureFault that says what is wrong and where. No I/O but
read_fixture().
"""
import json

from api_common import ApiError, dump_json
from backends.contract import (AnnotationDelta, Finish, ItemEnd, ItemStart, ItemUpdate, RawAnswer, ReasoningDelta,
                               RefusalDelta, TextDelta, ToolCallDelta, Usage)

FIXTURE_FORMAT = "mockturtle recording 1"
FIXTURE_ENDS = ("complete", "failed", "cut")
_RECORDED_FINISHES = ("stop", "length", "tool_calls", "content_filter")
_NEEDED = object()                  # in place of a default


_READABLE = json.JSONEncoder(ensure_ascii=False).encode     # json.dumps makes a new one each time: 3 us


class FixtureFault(ValueError):
    """A file is no recording: what is wrong, and where in it."""


class Recording:
    """One exchange. request: a neutral.kept_request(). entries: [(at_s, delta)], no TextRun and no Failure among
    them. how: "complete", "failed" or "cut". end_s. error: an ApiError when it failed. about: {"at", "api", "backend"},
    str: when, over which API and from which kind of backend it was recorded."""

    __slots__ = ("request", "entries", "how", "end_s", "error", "about")

    def __init__(self, request, entries, how, end_s, error=None, about=None):
        self.request = request
        self.entries = entries
        self.how = how
        self.end_s = end_s
        self.error = error
        self.about = about or {}


# ---- deltas -----------------------------------------------------------------------------------

# The key that names a delta in its line -> (class, ((key, attribute, type, default), ...)), that key first
_DELTA_SHAPES = {
    "text": (TextDelta, (("text", "text", str, _NEEDED), ("logprobs", "logprobs", list, None))),
    "reasoning": (ReasoningDelta, (("reasoning", "text", str, _NEEDED), ("kind", "kind", str, "summary"))),
    "refusal": (RefusalDelta, (("refusal", "text", str, _NEEDED),)),
    "call": (ToolCallDelta, (("call", "index", int, _NEEDED), ("name", "name", str, None), ("call_id", "call_id", str, None),
                             ("namespace", "namespace", str, None), ("kind", "kind", str, "function"),
                             ("arguments", "arguments", str, ""))),
    "item": (ItemStart, (("item", "kind", str, _NEEDED), ("fields", "fields", dict, {}))),
    "item_update": (ItemUpdate, (("item_update", "kind", str, _NEEDED), ("phase", "phase", str, _NEEDED),
                                 ("fields", "fields", dict, {}))),
    "item_end": (ItemEnd, (("item_end", "kind", str, _NEEDED), ("fields", "fields", dict, {}))),
    "annotation": (AnnotationDelta, (("annotation", "annotation", dict, _NEEDED),)),
    "finish": (Finish, (("finish", "reason", str, _NEEDED),)),
    "prompt_tokens": (Usage, (("prompt_tokens", "prompt_tokens", int, _NEEDED),
                              ("completion_tokens", "completion_tokens", int, _NEEDED),
                              ("reasoning_tokens", "reasoning_tokens", int, 0), ("cached_tokens", "cached_tokens", int, 0),
                              ("counted_here", "counted_here", bool, False))),
}
_SHAPE_OF = {shape[0]: shape[1] for shape in _DELTA_SHAPES.values()}
_DELTA_KINDS = {"reasoning": ("summary", "raw"), "call": ("function", "custom")}


def told_delta(at_s, delta):
    """A delta as the object of its line. Raises TypeError for a delta of no known class."""
    told = {"at_s": round(at_s, 4)}
    if delta.__class__ is TextDelta and delta.logprobs is None and not delta.choice:
        told["text"] = delta.text           # most of them
        return told
    if delta.__class__ is RawAnswer:
        told["raw"] = json.loads(delta.body)
        return told
    shape = _SHAPE_OF.get(delta.__class__)
    if shape is None:
        raise TypeError("a delta of class %s cannot be recorded" % delta.__class__.__name__)
    for key, attribute, _, default in shape:
        value = getattr(delta, attribute)
        if default is _NEEDED or value != default:
            told[key] = value
    if delta.choice:
        told["choice"] = delta.choice
    return told


def read_delta(told, choices):
    """told_delta() undone: (at_s, delta). choices: how many the request has. Raises FixtureFault."""
    if told.__class__ is not dict:
        raise FixtureFault("a delta must be an object")
    at_s = _read_time(told, "at_s")
    if "raw" in told:
        _refuse_others(told, ("at_s", "raw"))
        return at_s, RawAnswer(dump_json(told["raw"]))
    name = next((key for key in told if key in _DELTA_SHAPES), None)
    if name is None:
        raise FixtureFault("a delta needs one of %s" % ", ".join(list(_DELTA_SHAPES) + ["raw"]))
    made, shape = _DELTA_SHAPES[name]
    _refuse_others(told, ["at_s", "choice"] + [field[0] for field in shape])
    values = {}
    for key, attribute, kind, default in shape:
        value = told.get(key, default)
        if value is _NEEDED:
            raise FixtureFault("'%s' is missing beside '%s'" % (key, name))
        if value is not default and value.__class__ is not kind or kind is int and value < 0:
            raise FixtureFault("'%s' must be %s" % (key, _TYPE_WORDS[kind]))
        values[attribute] = value
    if name in _DELTA_KINDS and values["kind"] not in _DELTA_KINDS[name]:
        raise FixtureFault("'kind' must be %s" % " or ".join(_DELTA_KINDS[name]))
    if name == "finish" and values["reason"] not in _RECORDED_FINISHES:
        raise FixtureFault("'finish' must be one of %s" % ", ".join(_RECORDED_FINISHES))
    if made is not Usage:
        values["choice"] = told.get("choice", 0)
        if values["choice"].__class__ is not int or not 0 <= values["choice"] < choices:
            raise FixtureFault("'choice' must be an integer from 0 to %d, as the request has %d" % (choices - 1, choices))
    return at_s, made(**values)


_TYPE_WORDS = {str: "a string", int: "an integer of 0 or more", dict: "an object", list: "an array", bool: "true or false"}


def _refuse_others(told, known):
    for key in told:
        if key not in known:
            raise FixtureFault("'%s' is unknown here" % key)


def _read_time(told, name):
    value = told.get(name)
    if value.__class__ not in (int, float) or not 0 <= value < 1e7:
        raise FixtureFault("'%s' must be a number of seconds, 0 or more" % name)
    return float(value)


# ---- writing ----------------------------------------------------------------------------------

def _line(value):
    """Readable JSON on one line; escapes for what UTF-8 cannot say."""
    text = _READABLE(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def iter_fixture(recording):
    """The text of a recording's file, line by line."""
    yield "{\n"
    yield ' "format": %s,\n' % _line(FIXTURE_FORMAT)
    yield ' "recorded": %s,\n' % _line(recording.about)
    yield ' "request": {\n'
    names = list(recording.request)
    for name in names:
        end = "\n" if name is names[-1] else ",\n"
        value = recording.request[name]
        if value.__class__ is list and value and any(each.__class__ in (dict, list) for each in value):
            yield "  %s: [\n" % _line(name)
            yield from _iter_lines(value, "   ", len(value))
            yield "  ]" + end
        else:
            yield "  %s: %s%s" % (_line(name), _line(value), end)
    yield " },\n"
    yield ' "deltas": [\n'
    yield from _iter_lines((told_delta(*entry) for entry in recording.entries), "  ", len(recording.entries))
    yield " ],\n"
    told = {"at_s": round(recording.end_s, 4), "how": recording.how}
    if recording.error is not None:
        error = recording.error
        told["error"] = dict({"status": error.status}, **error.body())
        if error.headers:
            told["headers"] = dict(error.headers)
    yield ' "end": %s\n}\n' % _line(told)


def _iter_lines(values, indent, count):
    for number, value in enumerate(values, 1):
        yield "%s%s%s\n" % (indent, _line(value), "" if number == count else ",")


# ---- reading ----------------------------------------------------------------------------------

def _no_constant(name):
    raise ValueError("%s is not JSON" % name)


def read_fixture(path):
    """The Recording in a file. Raises FixtureFault and OSError."""
    with open(path, encoding="utf-8") as file:
        try:
            text = file.read()
        except UnicodeDecodeError:
            raise FixtureFault("it is not UTF-8")
    return parse_fixture(text)


def parse_fixture(text):
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as exc:
        raise FixtureFault("it is not JSON: line %d: %s" % (exc.lineno, exc.msg))
    except (ValueError, RecursionError) as exc:
        raise FixtureFault("it is not JSON: %s" % exc)
    if value.__class__ is not dict or value.get("format").__class__ is not str:
        raise FixtureFault('it is no recording: "format" is missing')
    if value["format"] != FIXTURE_FORMAT:
        raise FixtureFault('its "format" is %s, this server reads "%s"' % (_line(value["format"]), FIXTURE_FORMAT))
    for name, kind in (("request", dict), ("deltas", list), ("end", dict)):
        if value.get(name).__class__ is not kind:
            raise FixtureFault('"%s" must be %s' % (name, _TYPE_WORDS[kind]))
    about = value.get("recorded") or {}
    if about.__class__ is not dict:
        raise FixtureFault('"recorded" must be an object')
    request = value["request"]
    _check_request(request)
    choices = request.get("choices", 1)
    if choices.__class__ is not int or not 1 <= choices <= 1 << 20:
        raise FixtureFault('"request": \'choices\' must be an integer of 1 or more')
    entries, last_s = [], 0.0
    for number, told in enumerate(value["deltas"]):
        try:
            at_s, delta = read_delta(told, choices)
            if at_s < last_s:
                raise FixtureFault("'at_s' goes back from %g to %g" % (last_s, at_s))
            if delta.__class__ is RawAnswer and "call" not in request or delta.__class__ is not RawAnswer and "call" in request:
                raise FixtureFault("'raw' is for a request with a 'call', and only that has it")
        except FixtureFault as fault:
            raise FixtureFault('"deltas", number %d: %s' % (number + 1, fault))
        last_s = at_s
        entries.append((at_s, delta))
    try:
        how, end_s, error = _read_end(value["end"], last_s)
    except FixtureFault as fault:
        raise FixtureFault('"end": %s' % fault)
    return Recording(request, entries, how, end_s, error, about)


def _check_request(request):
    for name, kind in (("messages", list), ("call", str), ("prompt", (str, list, dict))):
        if name in request and not isinstance(request[name], kind):
            raise FixtureFault('"request": \'%s\' has the wrong type' % name)
    if not any(name in request for name in ("messages", "call", "prompt")):
        raise FixtureFault('"request" needs one of messages, prompt and call')
    if "call" not in request and request.get("model").__class__ is not str:
        raise FixtureFault('"request": \'model\' must be a string')


def _read_end(told, last_s):
    _refuse_others(told, ("at_s", "how", "error", "headers"))
    end_s = _read_time(told, "at_s")
    if end_s < last_s:
        raise FixtureFault("'at_s' is before the last delta's")
    if told.get("how") not in FIXTURE_ENDS:
        raise FixtureFault("'how' must be one of %s" % ", ".join(FIXTURE_ENDS))
    error = None
    if told["how"] == "failed":
        error = told.get("error")
        if error.__class__ is not dict or error.get("message").__class__ is not str:
            raise FixtureFault("'failed' needs an 'error' with a 'message'")
        _refuse_others(error, ("status", "message", "type", "param", "code"))
        status = error.get("status")
        if status.__class__ is not int or not 400 <= status <= 599:
            raise FixtureFault("'status' must be an integer from 400 to 599")
        for name in ("type", "param", "code"):
            if error.get(name) is not None and error[name].__class__ is not str:
                raise FixtureFault("'%s' must be a string" % name)
        headers = told.get("headers", {})
        if headers.__class__ is not dict or not all(
                each.__class__ is str and each.isprintable() and each.isascii() for pair in headers.items() for each in pair):
            raise FixtureFault("'headers' must be an object of strings")
        error = ApiError(status, error["message"], type=error.get("type") or "server_error", code=error.get("code"),
                         param=error.get("param"), headers=headers.items())
    return told["how"], end_s, error
