"""The rules of a server: those of its script files, and those that were added while it runs.

A RuleBook holds them in one tuple that is swapped as a whole: who answers a request sees the rules of one moment.
Files are read again when they have changed, on a worker, or by a call; one that is wrong leaves the old rules as
they are. All methods may be called from any thread.
"""
import json
import os
import threading

from backends.script_check import ScriptCheck, ScriptMistake, ScriptMistakes
from backends.script_rules import read_rules, read_script

SCRIPT_MOST_BYTES = 50 << 20        # of a file
_AIMOCK_PREFIX = "aimock:"


class ScriptFile:
    """One script file. spec: as it was given, perhaps with aimock: before it. rules, warnings: as last read; error:
    str or None, why what is there now could not be."""

    def __init__(self, spec):
        self.form = "aimock" if spec.startswith(_AIMOCK_PREFIX) else None
        self.path = spec[len(_AIMOCK_PREFIX):] if self.form else spec
        self.rules = self.warnings = ()
        self.error = None
        self._stamp = None

    def changed(self):
        """Whether the file is another one than was last read, or tried to be."""
        return _file_stamp(self.path) != self._stamp

    def read(self, fault_reader=None, gate_reader=None):
        """(rules, warnings). Raises ScriptMistakes, after which it counts as read all the same."""
        self._stamp = _file_stamp(self.path)
        try:
            with open(self.path, "rb") as script:
                data = script.read(SCRIPT_MOST_BYTES + 1)
            if len(data) > SCRIPT_MOST_BYTES:
                raise ValueError("more than %d MB" % (SCRIPT_MOST_BYTES >> 20))
            text = data.decode("utf-8")
        except OSError as exc:
            raise ScriptMistakes([ScriptMistake(self.path, None, "", "cannot be read: %s" % (exc.strerror or exc))])
        except ValueError as exc:
            raise ScriptMistakes([ScriptMistake(self.path, None, "", "is not UTF-8 text"
                                                if isinstance(exc, UnicodeDecodeError) else str(exc))])
        return read_script(text, self.path, self.form, fault_reader, gate_reader)


def _file_stamp(path):
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def check_scripts(specs, fault_reader=None, gate_reader=None):
    """(mistakes, warnings, number of rules) of script files, all of them."""
    mistakes, warnings, count = [], [], 0
    for spec in specs:
        try:
            rules, told = ScriptFile(spec).read(fault_reader, gate_reader)
        except ScriptMistakes as exc:
            mistakes += exc.mistakes
        else:
            warnings += told
            count += len(rules)
    return mistakes, warnings, count


class RuleBook:
    """paths: script files, as --script has them. log(level, message). only: --script-only.

    files: list of ScriptFile. rules: tuple of all ScriptRules in the order in which they are asked: those that were
    added, then the files'. on_change(book): called when the rules have become others.
    Raises ScriptMistakes, with those of all files.
    """

    def __init__(self, paths=(), only=False, log=lambda level, message: None, fault_reader=None, gate_reader=None):
        self.only = only
        self.rules = ()
        self.on_change = lambda book: None
        self._log = log
        self._readers = fault_reader, gate_reader
        self._reading = threading.Lock()    # held by who reads files, and the first that is taken
        self._lock = threading.Lock()       # guards the rest, and the counts of the rules; never for long
        self.files = [ScriptFile(path) for path in paths]
        self._added = []
        self._named = 0                     # rules that were added without a name
        with self._reading:
            self._read(self.files)

    # ---- what requests do ---------------------------------------------------------------------

    def claim(self, rule):
        """A request for which all of a rule's conditions hold, but for how often: (Reply, number of its answers
        with this one), or None when it is not the rule's turn, or its replies are used up."""
        with self._lock:
            seen = rule.seen
            rule.seen = seen + 1
            if rule.matched is not None and not rule.matched.test(seen):
                return None
            if rule.returned:
                number = min(rule.returned)
                rule.returned.remove(number)
                return rule.reply_for(number), number + 1
            reply = rule.reply_for(rule.issued)
            if reply is None:
                return None
            rule.issued += 1
            return reply, rule.issued

    def withdraw(self, rule, number):
        """A request that was given an answer, the number-th, begins again elsewhere."""
        with self._lock:
            rule.seen -= 1
            rule.returned.append(number - 1)

    # ---- what a test does ---------------------------------------------------------------------

    def add(self, rules, first=False, source="added"):
        """Add rules, dicts as in a script's array; their names. They are asked before the files' rules, in the
        order in which they were added; first: before all others.

        Raises ScriptMistakes, and then adds none.
        """
        check = ScriptCheck(source, None, *self._readers)
        try:
            # a copy: the caller's own may change
            rules = json.loads(json.dumps([rules] if rules.__class__ is dict else list(rules)))
        except (TypeError, ValueError, RecursionError) as exc:
            raise ScriptMistakes([ScriptMistake(source, None, "", "rules are a list of objects of JSON: %s" % exc)])
        found = read_rules([((at,), rule) for at, rule in enumerate(rules)], check, self._name)
        if check.mistakes:
            raise ScriptMistakes(check.mistakes)
        return self._take(found, first)

    def add_text(self, text, first=False, source="body"):
        """add() for a script's text, which may have comments."""
        found, _ = read_script(text, source, None, *self._readers, unnamed=self._name)
        return self._take(found, first)

    def clear(self, name=None):
        """Remove the rules that were added, or those of a name; how many that were."""
        with self._lock:
            kept = [] if name is None else [rule for rule in self._added if rule.name != name]
            removed = len(self._added) - len(kept)
            self._added = kept
            self._swap()
        return removed

    def reset(self):
        """As at the start: only the files' rules, and none has answered."""
        with self._lock:
            self._added, self._named = [], 0
            for file in self.files:
                for rule in file.rules:
                    rule.forget()
            self._swap()

    def reload(self):
        """Read all files again; how many rules they have. Raises ScriptMistakes, and then keeps the old ones."""
        with self._reading:
            self._read(self.files)
            return sum(len(file.rules) for file in self.files)

    # ---- files --------------------------------------------------------------------------------

    def has_changed(self):
        """Whether a file is another one than was read. It may wait for a disk."""
        return any(file.changed() for file in self.files)

    def poll(self):
        """Read the files that have changed. Mistakes go to the log. On a worker; it may take long."""
        with self._reading:
            changed = [file for file in self.files if file.changed()]
            if not changed:
                return
            try:
                self._read(changed)
            except ScriptMistakes as exc:
                self._log("error", "a script has changed and is wrong; the old rules stay\n%s" % exc)
                return
        self._log("notice", "read again: %s" % ", ".join(file.path for file in changed))

    def _read(self, files):
        """Read files and take their rules, if all are right. The caller holds _reading."""
        found, mistakes = [], []
        for file in files:
            try:
                found.append(file.read(*self._readers))
                file.error = None
            except ScriptMistakes as exc:
                mistakes += exc.mistakes
                file.error = str(exc)
        if mistakes:
            raise ScriptMistakes(mistakes)
        with self._lock:
            for file, (rules, warnings) in zip(files, found):
                file.rules, file.warnings = rules, warnings
            self._swap()

    def _name(self, number):
        with self._lock:
            self._named += 1
            return "added rule %d" % self._named

    def _take(self, rules, first):
        with self._lock:
            self._added = rules + self._added if first else self._added + rules
            self._swap()
        return [rule.name for rule in rules]

    def _swap(self):
        """The rules are others now. The caller holds the lock."""
        self.rules = tuple(self._added + [rule for file in self.files for rule in file.rules])
        self.on_change(self)

    def describe(self):
        """What GET /_mockturtle/rules says."""
        with self._lock:
            return {"object": "list", "script_only": self.only,
                    "files": [{"path": file.path, "rules": len(file.rules), "error": file.error}
                              for file in self.files],
                    "data": [{"object": "rule", "name": rule.name, "source": rule.place(), "seen": rule.seen,
                              "answered": rule.answered, "rule": rule.told} for rule in self.rules]}
