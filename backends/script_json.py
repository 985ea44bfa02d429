"""JSON as people write it: comments, trailing commas, and where each thing stands.

In: the text of a script. Out: its value as json.loads gives it, and the line of every key and element, so that
a mistake can be shown where it was made. Strings and numbers are JSON's own. Pure functions; any thread.
"""
import json
import re

SCRIPT_MOST_DEPTH = 100             # of objects and arrays in each other
_SCRIPT_MOST_DIGITS = 300           # of a number; int() refuses a few thousand

# White space, // to the end of the line, and /* to the next */
_SCRIPT_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_SCRIPT_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SCRIPT_WORDS = (("true", True), ("false", False), ("null", None))
_SCRIPT_WORD = re.compile(r"[A-Za-z_$][\w$]*")


class ScriptSyntaxError(ValueError):
    """The text is not JSON with comments. line, column: of the place, from 1."""

    def __init__(self, message, text, at):
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        super().__init__(message)


def parse_script_json(text):
    """(value, places, repeats) of a script's text.

    places: {path: line}, a path being a tuple of keys and indexes, () the whole. repeats: paths of keys that an
    object has twice; the last one counts, as in json.loads. Raises ScriptSyntaxError.
    """
    reader = _ScriptReader(text[1:] if text[:1] == "\ufeff" else text)
    return reader.read(), reader.places, reader.repeats


class _ScriptReader:
    """One text; `at` is how far it has been read."""

    def __init__(self, text):
        self.text = text
        self.at = 0
        self.places = {}
        self.repeats = []
        self._line = 1              # of _counted, so that lines are counted once
        self._counted = 0

    def read(self):
        self._skip()
        value = self._value((), 0)
        self._skip()
        if self.at < len(self.text):
            self._fail("there is something behind the end of the script")
        return value

    def _fail(self, message, at=None):
        raise ScriptSyntaxError(message, self.text, self.at if at is None else at)

    def _skip(self):
        self.at = _SCRIPT_SPACE.match(self.text, self.at).end()
        if self.text.startswith("/*", self.at):
            self._fail("the comment that begins here never ends")

    def _take(self, mark):
        if self.text.startswith(mark, self.at):
            self.at += len(mark)
            return True
        return False

    def _note(self, path, at):
        self._line += self.text.count("\n", self._counted, at)
        self._counted = at
        self.places[path] = self._line

    def _value(self, path, depth):
        if path not in self.places:
            self._note(path, self.at)
        if depth > SCRIPT_MOST_DEPTH:
            self._fail("more than %d objects and arrays in each other" % SCRIPT_MOST_DEPTH)
        if self._take("{"):
            return self._object(path, depth)
        if self._take("["):
            return self._array(path, depth)
        if self.text.startswith('"', self.at):
            return self._string()
        number = _SCRIPT_NUMBER.match(self.text, self.at)
        if number is not None:
            return self._number(number)
        for word, value in _SCRIPT_WORDS:
            found = _SCRIPT_WORD.match(self.text, self.at)
            if found is not None and found.group() == word:
                self.at = found.end()
                return value
        if self.at >= len(self.text):
            self._fail("the text ends where a value was expected")
        if self.text[self.at] == "'":
            self._fail("strings are written with double quotes")
        self._fail("expected a value")

    def _string(self):
        try:
            value, self.at = json.decoder.scanstring(self.text, self.at + 1, True)
        except json.JSONDecodeError as exc:
            self._fail("a string is not right: %s" % exc.msg, exc.pos)
        return value

    def _number(self, found):
        if found.end() - found.start() > _SCRIPT_MOST_DIGITS:
            self._fail("a number of more than %d characters" % _SCRIPT_MOST_DIGITS)
        if found.group(1) is None and found.group(2) is None:
            value = int(found.group())
        else:
            value = float(found.group())
            if value in (float("inf"), float("-inf")):
                self._fail("the number is too large")
        self.at = found.end()
        if self.text[self.at:self.at + 1].isalnum() or self.text.startswith(".", self.at):
            self._fail("a number is not right", found.start())
        return value

    def _object(self, path, depth):
        found = {}
        while True:
            self._skip()
            if self._take("}"):
                return found
            start = self.at
            if not self.text.startswith('"', start):
                self._fail("expected a key in double quotes, or }")
            key = self._string()
            place = path + (key,)
            if key in found:
                self.repeats.append(place)
            self._note(place, start)
            self._skip()
            if not self._take(":"):
                self._fail("expected : behind a key")
            self._skip()
            found[key] = self._value(place, depth + 1)
            self._skip()
            if not self._take(",") and not self.text.startswith("}", self.at):
                self._fail("expected , or }")

    def _array(self, path, depth):
        found = []
        while True:
            self._skip()
            if self._take("]"):
                return found
            found.append(self._value(path + (len(found),), depth + 1))
            self._skip()
            if not self._take(",") and not self.text.startswith("]", self.at):
                self._fail("expected , or ]")
