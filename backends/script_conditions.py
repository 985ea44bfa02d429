"""Reads what a rule's match asks: JSON to the conditions of script_match.py, and mistakes to a ScriptCheck.

A condition of a text is a text (equal), null (there is none), a list (one of them) or an object; each kind of fact
has its own reader, and MATCH_KEYS are all there are. Pure; any thread.
"""
import re

from backends.schema_regex import PatternError
from backends.script_check import listed_words
from backends.script_match import (SCRIPT_ENDPOINTS, AbsentCondition, AnyCondition, EqualCondition, FieldsCondition,
                                   NotCondition, NumberCondition, ResultCondition, SomeCondition, TextCondition,
                                   read_json_path)
from backends.script_regex import REGEX_MOST_CHARS, unsafe_regex

_SCRIPT_FORMATS = ("text", "json_object", "json_schema")
_TEXT_KEYS = ("equal", "contains", "regex", "glob", "case", "not")


class ConditionReader:
    """A match's values to conditions; None where a mistake was added to the check."""

    def __init__(self, check):
        self.check = check

    def match(self, value, path):
        """([(key, condition)] without `matched`, its NumberCondition or None)."""
        conditions, matched = [], None
        if value is None or not self.check.is_object(value, path, "a match"):
            return conditions, matched
        for key in self.check.keys(value, MATCH_KEYS, path):
            condition = _MATCH_READERS[key](self, value[key], path + (key,))
            if key == "matched":
                matched = condition
            elif condition is not None:
                conditions.append((key, condition))
        return conditions, matched

    def _text(self, value, path):
        """A condition of a text."""
        check = self.check
        if value is None:
            return AbsentCondition()
        if value.__class__ is str:
            return TextCondition(equal=value)
        if value.__class__ is list:
            return self._any(value, path, self._text)
        if not self.check.is_object(value, path, "a condition of a text, if not a text, a list or null,"):
            return None
        return self._text_object(value, path, check.keys(value, _TEXT_KEYS, path))

    def _text_object(self, value, path, keys):
        check, given = self.check, {}
        if "not" in keys:
            if len(keys) > 1:
                check.add(path + ("not",), "stands alone: the other keys go into it, or into a rule before")
            condition = self._text(value["not"], path + ("not",))
            return NotCondition(condition) if condition is not None else None
        case = value.get("case", True)
        if case.__class__ is not bool:
            check.add(path + ("case",), "true or false")
        for key in ("equal", "contains", "regex", "glob"):
            if key not in value:
                continue
            each = value[key]
            if key == "contains" and each.__class__ is list and each and all(part.__class__ is str for part in each):
                given[key] = each
            elif each.__class__ is not str:
                check.add(path + (key,), "a text" + (", or a list of texts that must all be in it"
                                                     if key == "contains" else ""))
                return None
            else:
                given[key] = [each] if key == "contains" else each
        if not given:
            if all(key in _TEXT_KEYS for key in value):
                check.add(path, "empty: a condition of a text has one of %s" % listed_words(_TEXT_KEYS))
            return None
        if "regex" in given and not self._regex_fits(given["regex"], path + ("regex",)):
            return None
        return TextCondition(case=case is not False, **given)

    def _regex_fits(self, pattern, path):
        problem = None
        if len(pattern) > REGEX_MOST_CHARS:
            problem = "more than %d characters" % REGEX_MOST_CHARS
        else:
            try:
                re.compile(pattern)
                problem = unsafe_regex(pattern)
            except (re.error, PatternError, RecursionError, OverflowError) as exc:
                problem = str(exc)
        if problem is not None:
            self.check.add(path, "not a regex that can be used: %s" % problem)
        return problem is None

    def _any(self, value, path, read):
        if not value:
            self.check.add(path, "an empty list matches nothing; null is for what is not there")
            return None
        found = [read(each, path + (at,)) for at, each in enumerate(value)]
        return AnyCondition(found) if None not in found else None

    def _some(self, value, path):
        """A condition of a list of texts."""
        every = []
        if value.__class__ is dict and "all" in value:
            if value["all"].__class__ is not list or not value["all"]:
                self.check.add(path + ("all",), "a list of conditions that must all be met")
                return None
            every = [self._text(each, path + ("all", at)) for at, each in enumerate(value["all"])]
            if None in every:
                return None
            value = {key: each for key, each in value.items() if key != "all"}
            if not value:
                return SomeCondition(None, every)
        condition = self._text(value, path)
        return SomeCondition(condition, every) if condition is not None else None

    def _result(self, value, path):
        """The condition of tool_result."""
        if value is None:
            return SomeCondition(AbsentCondition())
        if value.__class__ is list:
            found = [self._one_result(each, path + (at,)) for at, each in enumerate(value)]
            if not found:
                self.check.add(path, "an empty list matches nothing; null is for no result")
                return None
            return SomeCondition(AnyCondition(found)) if None not in found else None
        condition = self._one_result(value, path)
        return SomeCondition(condition) if condition is not None else None

    def _one_result(self, value, path):
        if value.__class__ is not dict:
            condition = self._text(value, path)
            return ResultCondition(condition) if condition is not None else None
        keys = self.check.keys(value, ("tool", "call_id", "path") + _TEXT_KEYS, path)
        given = {}
        for key in ("tool", "call_id"):
            if key in value:
                given[key] = self._text(value[key], path + (key,))
                if given[key] is None:
                    return None
        if "path" in value:
            try:
                given["path"] = read_json_path(value["path"] if value["path"].__class__ is str else "..")
            except ValueError as exc:
                self.check.add(path + ("path",), str(exc))
                return None
        rest = [key for key in keys if key in _TEXT_KEYS]
        if "path" in given and "equal" in rest and (value["equal"].__class__ is not str or len(rest) == 1):
            if len(rest) > 1:
                self.check.add(path + ("equal",), "a value that is no text stands alone")
            given["condition"] = EqualCondition(value["equal"]) if value["equal"] is not None else AbsentCondition()
        elif rest:
            given["condition"] = self._text_object(value, path, rest)
            if given["condition"] is None:
                return None
        elif not given:
            self.check.add(path, "empty: it has tool, call_id, path or one of %s" % listed_words(_TEXT_KEYS))
            return None
        return ResultCondition(**given)

    def _number(self, value, path):
        if value.__class__ is int:
            return NumberCondition(value, value)
        if value.__class__ is list:
            return self._any(value, path, self._number)
        if not self.check.is_object(value, path, "a condition of a number, if not an integer or a list,"):
            return None
        keys = self.check.keys(value, ("min", "max"), path)
        for key in keys:
            if value[key].__class__ is not int:
                self.check.add(path + (key,), "an integer")
                return None
        if not keys:
            if not value:
                self.check.add(path, "empty: it has min, max or both")
            return None
        if len(keys) == 2 and value["min"] > value["max"]:
            self.check.add(path, "never holds: min is above max")
            return None
        return NumberCondition(value.get("min"), value.get("max"))

    def _flag(self, value, path):
        if value.__class__ is not bool:
            self.check.add(path, "true or false")
            return None
        return EqualCondition(value)

    def _fields(self, value, path):
        if not self.check.is_object(value, path, "a condition by key"):
            return None
        found = {}
        for key, each in value.items():
            condition = self._text(each, path + (key,))
            if condition is None:
                return None
            found[key.lower() if path[-1] == "header" else key] = condition
        if not found:
            self.check.add(path, "empty: it names keys")
            return None
        return FieldsCondition(found)


def _word_reader(words):
    """A reader of one of some words, or a list of them."""
    def read(reader, value, path):
        if value.__class__ is list:
            return reader._any(value, path, lambda each, place: read(reader, each, place))
        if value not in words:
            reader.check.add(path, "one of %s, or a list of them" % listed_words(words))
            return None
        return TextCondition(equal=value)
    return read


_MATCH_READERS = {
    "endpoint": _word_reader(SCRIPT_ENDPOINTS), "model": ConditionReader._text,
    "last_user_text": ConditionReader._text, "system": ConditionReader._text, "any_message": ConditionReader._some,
    "tools": ConditionReader._some, "tool_result": ConditionReader._result, "turn": ConditionReader._number,
    "images": ConditionReader._flag, "stream": ConditionReader._flag, "format": _word_reader(_SCRIPT_FORMATS),
    "metadata": ConditionReader._fields, "header": ConditionReader._fields, "conversation": ConditionReader._text,
    "previous_response_id": ConditionReader._text, "root": ConditionReader._text, "matched": ConditionReader._number}
MATCH_KEYS = tuple(_MATCH_READERS)
