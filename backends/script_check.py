"""What is wrong with a script: each mistake with its file, line and key, and all of them together.

Pure values; whoever reads a script adds to a ScriptCheck and goes on. Any thread.
"""
from api_common import shown


class ScriptMistake:
    """One thing that is wrong. source: the file's name, or what else the rules came from; line: int or None;
    key: the path in the file, as in rules[0].match.model; message."""

    __slots__ = ("source", "line", "key", "message")

    def __init__(self, source, line, key, message):
        self.source = source
        self.line = line
        self.key = key
        self.message = message

    def __str__(self):
        place = self.source if self.line is None else "%s:%d" % (self.source, self.line)
        return ": ".join([place] + [self.key] * bool(self.key) + [self.message])


class ScriptMistakes(ValueError):
    """All mistakes of the rules that were read: .mistakes, a list of ScriptMistake. str() is a line each."""

    def __init__(self, mistakes):
        self.mistakes = mistakes
        super().__init__("\n".join(map(str, mistakes)))


class ScriptCheck:
    """Collects what is wrong with one source. places: {path: line} of script_json.py. fault_reader, gate_reader:
    what reads the values of "fault" and "gate" and raises ValueError, or None."""

    def __init__(self, source, places=None, fault_reader=None, gate_reader=None):
        self.source = source
        self.mistakes = []
        self.warnings = []
        self.fault_reader = fault_reader
        self.gate_reader = gate_reader
        self._places = places or {}

    def add(self, path, message):
        self.mistakes.append(self._mistake(path, message))

    def warn(self, path, message):
        self.warnings.append(self._mistake(path, message))

    def line(self, path):
        """The line of a path, or of what is around it; None without places."""
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path)

    def is_object(self, value, path, what):
        """Whether a value is an object; else that is a mistake."""
        if value.__class__ is dict:
            return True
        self.add(path, "%s is an object" % what)
        return False

    def _mistake(self, path, message):
        return ScriptMistake(self.source, self.line(path), path_words(path), message)

    def keys(self, value, known, path):
        """The keys of an object that are known, in order; the others are mistakes."""
        for key in value:
            if key not in known:
                self.add(path + (key,), "unknown key%s" % (_hint(key, known) or "; there are %s" % ", ".join(known)))
        return [key for key in value if key in known]


def path_words(path):
    """A path as it is shown: rules[0].match.model."""
    told = ""
    for step in path:
        told += "[%d]" % step if step.__class__ is int else "." * bool(told) + shown(step)
    return told


def _hint(key, known):
    if key.__class__ is not str:
        return ""
    from difflib import get_close_matches
    found = get_close_matches(key, known, 1)
    return ", perhaps meant '%s'" % found[0] if found else ""


def listed_words(words):
    return ", ".join("'%s'" % word for word in words)
