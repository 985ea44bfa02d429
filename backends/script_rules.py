"""Reads and checks scripts: rules as JSON says them become ScriptRules, and every mistake is named with its place.

In: a script's text, or rules as dicts. Out: ScriptRules, or ScriptMistakes, which has all of them: file, line,
key. What a rule asks is script_match.py's, what it says script_reply.py's. Pure functions; any thread.
"""
import json

from backends.script_aimock import convert_fixtures, is_fixtures
from backends.script_check import ScriptCheck, ScriptMistake, ScriptMistakes, listed_words, path_words
from backends.script_conditions import ConditionReader
from backends.script_json import ScriptSyntaxError, parse_script_json
from backends.script_reply import (ITEM_KINDS, CallPart, ItemPart, JsonTemplate, ReasoningPart, RefusalPart, Reply,
                                   Spoken, Template, TextPart, read_template)

SCRIPT_MOST_RULES = 10000           # of a file
SCRIPT_MOST_MISTAKES = 200          # then the rest is not looked for
_SCRIPT_MOST_MS = 3600000           # an hour
_SCRIPT_MOST_TOKENS = 1000000000

_RULE_KEYS = ("name", "match", "reply", "replies", "times", "then")
_THEN_WORDS = ("repeat", "cycle", "next rule")
_FINISH_WORDS = ("stop", "length", "tool_calls", "content_filter")
_USAGE_KEYS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
_CONTENT_KEYS = ("reasoning", "text", "json", "pieces", "refusal", "tool_calls")
REPLY_KEYS = _CONTENT_KEYS + ("items", "annotations", "usage", "id", "message_id", "created", "finish", "ttft_ms",
                               "itl_ms", "template", "fault", "gate")
_ITEM_WORDS = ("text", "json", "pieces", "refusal", "reasoning", "tool_call", "item")


# ---- rules ------------------------------------------------------------------------------------

class ScriptRule:
    """One rule. name; source; line int or None; conditions: list of (key, condition), without `matched`;
    matched: NumberCondition or None; replies: list of Reply; times: int or None; then: what follows the last one.
    told: the rule as it was given.

    The book's: seen: how often it was its turn and all else held; issued: how many numbers of answers were given
    out; returned: those among them that were not used.
    """

    __slots__ = ("name", "source", "line", "conditions", "matched", "replies", "times", "then", "told", "seen",
                 "issued", "returned")

    def __init__(self, name, source, line, conditions, matched, replies, times, then, told):
        self.name = name
        self.source = source
        self.line = line
        self.conditions = conditions
        self.matched = matched
        self.replies = replies
        self.times = times
        self.then = then
        self.told = told
        self.forget()

    def forget(self):
        """It has not answered yet."""
        self.seen = self.issued = 0
        self.returned = []

    @property
    def answered(self):
        """How often it has answered."""
        return self.issued - len(self.returned)

    def place(self):
        return self.source if self.line is None else "%s:%d" % (self.source, self.line)

    def reply_for(self, number):
        """The Reply of the number-th answer, from 0; None when they are used up."""
        replies = self.replies
        if self.times is not None and number >= self.times:
            return None
        if number >= len(replies):
            if self.then == "next rule":
                return None
            number = number % len(replies) if self.then == "cycle" else -1
        return replies[number]

    def catches_all(self):
        """Whether no rule behind it is ever asked."""
        return not self.conditions and self.matched is None and self.times is None and self.then != "next rule"


def read_script(text, source, form=None, fault_reader=None, gate_reader=None, unnamed=None):
    """(ScriptRules, warnings) of a script's text. form: "aimock", or None to see for itself. unnamed: see read_rules().

    Raises ScriptMistakes.
    """
    try:
        value, places, repeats = parse_script_json(text)
    except ScriptSyntaxError as exc:
        raise ScriptMistakes([ScriptMistake(source, exc.line, "", "column %d: %s" % (exc.column, exc))])
    check = ScriptCheck(source, places, fault_reader, gate_reader)
    for path in repeats:
        check.add(path, "the key is given twice")
    if form == "aimock" or is_fixtures(value):
        entries = convert_fixtures(value, check)
    else:
        entries = _script_entries(value, check)
    file = source.replace("\\", "/").split("/")[-1]
    rules = read_rules(entries, check, unnamed or (lambda number: "rule %d of %s" % (number, file)))
    if check.mistakes:
        raise ScriptMistakes(check.mistakes)
    return rules, check.warnings


def _script_entries(value, check):
    """[(path, rule as JSON)] of a script."""
    path = ()
    if value.__class__ is dict and "rules" in value:
        check.keys(value, ("rules",), ())
        path, value = ("rules",), value["rules"]
    elif value.__class__ is dict and ("reply" in value or "replies" in value):
        return [((), value)]
    if value.__class__ is not list:
        check.add(path, "expected an array of rules, or an object with one under \"rules\"")
        return []
    if len(value) > SCRIPT_MOST_RULES:
        check.add(path, "%d rules; at most %d are taken" % (len(value), SCRIPT_MOST_RULES))
        return []
    return [(path + (at,), rule) for at, rule in enumerate(value)]


def read_rules(entries, check, unnamed):
    """ScriptRules of [(path, rule as JSON)]; what is wrong goes to the check. unnamed(number, from 1): the name of a
    rule that gives itself none."""
    rules, names, shadow = [], {}, None
    for number, (path, value) in enumerate(entries):
        if len(check.mistakes) >= SCRIPT_MOST_MISTAKES:
            break
        rule = _RuleReader(check).read(value, path, lambda: unnamed(number + 1))
        if rule is None:
            continue
        if rule.name in names:
            check.add(path + ("name",), "another rule has this name (%s)" % names[rule.name])
        names[rule.name] = path_words(path) or "the rule"
        if shadow is not None:
            check.warn(path, "never reached: %s before it matches everything" % shadow)
        elif rule.catches_all():
            shadow = path_words(path)
        rules.append(rule)
    return rules


class _RuleReader:
    """One rule's values to a ScriptRule."""

    def __init__(self, check):
        self._check = check
        self._regex = None          # the first of the match, which {{match.1}} is about
        self._plain = False         # "template": false
        self._format = None         # the match's format, where it is one word

    def read(self, value, path, unnamed):
        """The ScriptRule, or None when a mistake was added. unnamed(): its name, where it gives itself none."""
        check = self._check
        before = len(check.mistakes)
        if not check.is_object(value, path, "a rule"):
            return None
        check.keys(value, _RULE_KEYS, path)
        name = value["name"] if "name" in value else unnamed()
        if name.__class__ is not str or not name or len(name) > 200:
            check.add(path + ("name",), "a text of 1 to 200 characters")
        conditions, matched = ConditionReader(check).match(value.get("match"), path + ("match",))
        self._regex = next((each.regex for _, each in conditions if each.regex is not None), None)
        if value.get("match").__class__ is dict:
            self._format = value["match"].get("format")
        replies = self._replies(value, path)
        times = value.get("times")
        if times is not None and (times.__class__ is not int or times < 1):
            check.add(path + ("times",), "an integer of 1 or more")
        then = value.get("then", "repeat")
        if then not in _THEN_WORDS:
            check.add(path + ("then",), "one of %s" % listed_words(_THEN_WORDS))
        if len(check.mistakes) > before:
            return None
        return ScriptRule(name, check.source, check.line(path), conditions, matched, replies, times, then, value)

    # ---- replies ------------------------------------------------------------------------------

    def _replies(self, value, path):
        check = self._check
        if "reply" in value and "replies" in value:
            check.add(path + ("replies",), "a rule has \"reply\" or \"replies\", not both")
        if "replies" in value:
            if value["replies"].__class__ is not list or not value["replies"]:
                check.add(path + ("replies",), "a list of replies, one after the other")
                return []
            return [self._reply(each, path + ("replies", at)) for at, each in enumerate(value["replies"])]
        if "reply" not in value:
            check.add(path, "a rule needs a \"reply\"")
            return []
        return [self._reply(value["reply"], path + ("reply",))]

    def _reply(self, value, path):
        check = self._check
        before = len(check.mistakes)
        if value.__class__ is str:
            value = {"text": value}
        if not check.is_object(value, path, "a reply, if not a text,"):
            return None
        check.keys(value, REPLY_KEYS, path)
        self._plain = value.get("template") is False
        if value.get("template", True).__class__ is not bool:
            check.add(path + ("template",), "true or false")
        given = {"parts": self._parts(value, path)}
        for key in ("ttft_ms", "itl_ms"):
            if key in value:
                given[key[:-2] + "s"] = self._checked_number(value[key], path + (key,), _SCRIPT_MOST_MS) * 0.001
        if "finish" in value:
            if value["finish"] not in _FINISH_WORDS:
                check.add(path + ("finish",), "one of %s" % listed_words(_FINISH_WORDS))
            given["finish"] = value["finish"]
        if "usage" in value and self._check.is_object(value["usage"], path + ("usage",), "usage"):
            place = path + ("usage",)
            given["usage"] = {key: self._checked_number(value["usage"][key], place + (key,), _SCRIPT_MOST_TOKENS, True)
                              for key in check.keys(value["usage"], _USAGE_KEYS, place)}
        given["overrides"] = self._overrides(value, path)
        given["faults"] = self._faults(value, path)
        self._needs_words(value, path, given["parts"])
        return Reply(**given) if len(check.mistakes) == before else None

    def _needs_words(self, value, path, parts):
        """A reply without content is the simulated one, of which only faults and gates can be said."""
        if parts is not None:
            return
        if not value.get("fault") and not value.get("gate") and all(key in REPLY_KEYS for key in value):
            self._check.add(path, "says nothing: it needs one of %s, items, fault, gate" % ", ".join(_CONTENT_KEYS))
        for key in ("usage", "id", "message_id", "created", "finish", "ttft_ms", "itl_ms"):
            if key in value:
                self._check.add(path + (key,), "only with something to say: one of %s, items"
                                % ", ".join(_CONTENT_KEYS))

    def _checked_number(self, value, path, most, whole=False):
        if value.__class__ not in ((int,) if whole else (int, float)) or not 0 <= value <= most:
            self._check.add(path, "%s from 0 to %d" % ("an integer" if whole else "a number", most))
            return 0
        return value

    def _overrides(self, value, path):
        found = {}
        for key in ("id", "message_id"):
            if key in value:
                found[key] = self._template(value[key], path + (key,), "an id")
        if "created" in value:
            found["created"] = self._checked_number(value["created"], path + ("created",), 1 << 40, True)
        return found or None

    def _faults(self, value, path):
        """Faults and gates as raw values, in order; whether they are right is for others to say."""
        check, found = self._check, []
        if value.get("fault") is not None:
            found = list(value["fault"]) if value["fault"].__class__ is list else [value["fault"]]
            self._read_by_others(check.fault_reader, value["fault"], path + ("fault",))
        if value.get("gate") is not None:
            self._read_by_others(check.gate_reader, value["gate"], path + ("gate",))
            found.append({"gate": value["gate"]})
        return found

    def _read_by_others(self, reader, value, path):
        if reader is not None:
            try:
                reader(value)
            except ValueError as exc:
                self._check.add(path, str(exc))

    # ---- content ------------------------------------------------------------------------------

    def _parts(self, value, path):
        check = self._check
        given = [key for key in _CONTENT_KEYS if key in value]
        if "items" in value:
            for key in given:
                check.add(path + (key,), "not beside \"items\": it goes into the list")
            if value["items"].__class__ is not list or not value["items"]:
                check.add(path + ("items",), "a list of what is said, in order")
                return []
            return [self._item(each, path + ("items", at)) for at, each in enumerate(value["items"])]
        texts = [key for key in given if key in ("text", "json", "pieces", "refusal")]
        for key in texts[1:]:
            check.add(path + (key,), "only one of text, json, pieces, refusal; several go into \"items\"")
        if not given:
            if "annotations" in value:
                check.add(path + ("annotations",), "only with a text")
            return None
        parts = []
        for key in given:
            if key == "tool_calls":
                calls = value[key]
                if calls.__class__ is not list or not calls:
                    check.add(path + (key,), "a list of calls")
                    continue
                parts += [self._call(each, path + (key, at)) for at, each in enumerate(calls)]
            else:
                parts.append(self._part(key, value, path))
        return parts

    def _item(self, value, path):
        check = self._check
        if value.__class__ is str:
            value = {"text": value}
        if not self._check.is_object(value, path, "an item, if not a text,"):
            return None
        kinds = [key for key in value if key in _ITEM_WORDS]
        check.keys(value, _ITEM_WORDS + ("annotations",), path)
        if not kinds and any(key not in _ITEM_WORDS for key in value):
            return None                 # the mistake is that key
        if len(kinds) != 1:
            check.add(path, "an item has one of %s" % ", ".join(_ITEM_WORDS))
            return None
        kind, = kinds
        if kind == "tool_call":
            return self._call(value[kind], path + (kind,))
        if kind == "item":
            return self._builtin(value[kind], path + (kind,))
        return self._part(kind, value, path)

    def _part(self, key, value, path):
        """A part of text, json, pieces, refusal or reasoning. value: the object that it stands in."""
        each, place = value[key], path + (key,)
        if "annotations" in value and key not in ("text", "json", "pieces"):
            self._check.add(path + ("annotations",), "only with a text")
        if key == "reasoning":
            return self._reasoning(each, place)
        spoken = Spoken(JsonTemplate(self._filled(each, place))) if key == "json" else self._spoken(each, place)
        if key == "refusal":
            return RefusalPart(spoken)
        if key != "json":
            self._look_at_format(spoken, place)
        return TextPart(spoken, self._annotations(value, path))

    def _look_at_format(self, spoken, path):
        if self._format in ("json_object", "json_schema") and spoken is not None and spoken.fixed:
            try:
                json.loads(spoken.text)
            except ValueError:
                self._check.warn(path, "the rule is for format %s, but this is no JSON" % self._format)

    def _annotations(self, value, path):
        notes = value.get("annotations")
        if notes is None:
            return None
        if notes.__class__ is not list or not all(note.__class__ is dict and note.get("type").__class__ is str
                                                  for note in notes):
            self._check.add(path + ("annotations",), "a list of objects with a type, as in an output_text part")
            return None
        return JsonTemplate(self._filled(notes, path + ("annotations",)))

    def _reasoning(self, value, path):
        kind, place = "summary", path
        if value.__class__ is dict:
            keys = self._check.keys(value, ("summary", "text"), path)
            if len(keys) != 1:
                self._check.add(path, "reasoning has \"summary\" or \"text\" (the raw one)")
                return None
            kind, place, value = "raw" if keys[0] == "text" else "summary", path + (keys[0],), value[keys[0]]
        return ReasoningPart(self._spoken(value, place), kind)

    def _call(self, value, path):
        check = self._check
        if not self._check.is_object(value, path, "a call"):
            return None
        check.keys(value, ("name", "arguments", "input", "pieces", "id", "namespace"), path)
        for key in ("name", "namespace"):
            if (key in value or key == "name") and (value.get(key).__class__ is not str or not value[key]):
                check.add(path + (key,) if key in value else path, "a call needs a %s, a text" % key)
                return None
        words = [key for key in ("arguments", "input", "pieces") if key in value]
        for key in words[1:]:
            check.add(path + (key,), "only one of arguments, input (of a custom tool), pieces (of the arguments)")
        kind, key = "custom" if "input" in value else "function", words[0] if words else "arguments"
        each, place = value.get(key, {}), path + (key,)
        if key == "arguments" and each.__class__ is dict:
            spoken = Spoken(JsonTemplate(self._filled(each, place)))
        elif key == "arguments" and each.__class__ is not str:
            check.add(place, "an object, or a text that is sent as it is")
            return None
        else:
            spoken = self._spoken(each, place)
            if kind == "function" and spoken is not None and spoken.fixed:
                try:
                    json.loads(spoken.text)
                except ValueError:
                    check.warn(place, "the arguments are no JSON")
        call_id = self._template(value["id"], path + ("id",), "an id") if "id" in value else None
        return CallPart(value["name"], spoken, kind, call_id, value.get("namespace"))

    def _builtin(self, value, path):
        check = self._check
        if not self._check.is_object(value, path, "an item"):
            return None
        about = ITEM_KINDS.get(value.get("type")) if value.get("type").__class__ is str else None
        if about is None:
            check.add(path + ("type",), "one of %s" % ", ".join(ITEM_KINDS))
            return None
        for key in about.needed:
            if value.get(key) is None:
                check.add(path, "a %s needs \"%s\"" % (value["type"], key))
                return None
        if about.streamed is not None and value[about.streamed[1]].__class__ is not str:
            check.add(path + (about.streamed[1],), "a text")
            return None
        if value["type"] == "computer_call" and not ("action" in value or "actions" in value):
            check.add(path, "a computer_call needs \"action\" or \"actions\"")
        for key in ("id", "status"):
            if key in value:
                check.add(path + (key,), "is the server's to give")
        return ItemPart(value["type"], JsonTemplate(self._filled(
            {key: each for key, each in value.items() if key != "type"}, path)))

    def _spoken(self, value, path):
        """A text, or its pieces, as Spoken."""
        if value.__class__ is list and value:
            found = [self._template(each, path + (at,), "a piece") for at, each in enumerate(value)]
            return Spoken(None, found) if None not in found else None
        if value.__class__ is not str or path[-1] == "pieces":
            self._check.add(path, "a list of texts" if path[-1] == "pieces" else "a text, or a list of its pieces")
            return None
        template = self._template(value, path, "a text")
        return Spoken(template) if template is not None else None

    def _template(self, value, path, what):
        """A Template, or None when a mistake was added."""
        if value.__class__ is not str:
            self._check.add(path, "%s is a text" % what)
            return None
        try:
            return read_template(value, self._regex, self._plain)
        except ValueError as exc:
            self._check.add(path, str(exc))
            return None

    def _filled(self, value, path):
        """A JSON value with a Template for each string."""
        if value.__class__ is str:
            return self._template(value, path, "a text") or Template(value, [value])
        if value.__class__ is dict:
            return {key: self._filled(each, path + (key,)) for key, each in value.items()}
        if value.__class__ is list:
            return [self._filled(each, path + (at,)) for at, each in enumerate(value)]
        return value
