"""Texts that match a regular expression of a JSON schema, and whether a text matches, in bounded work.

In: a pattern, a text or a source of draws, a WorkBudget. Out: a drawn text, or a bool. The matcher visits each
(instruction, position) once and counts its steps. Any thread.
"""
from backends.schema_regex import PatternError, PatternParser
from backends.schema_work import draw_below

PATTERN_MOST_CODE = 20000           # instructions, after counted repeats are written out

_PATTERN_TEXT_WORDS = (
    "a", "i", "an", "in", "sea", "map", "lamp", "tide", "rain", "maple", "river", "hazel", "garden", "meadow",
    "market", "lantern", "harbour", "compass", "orchards", "lakeside", "blueberry", "riverbank", "lighthouse",
    "watercolour")


# Instructions are (op, x, y, z). The matcher is RE2's bit-state search: depth first over (pc, position) with an
# explicit stack; each pair is visited once, so the time is at most instructions x characters. A counted repeat of
# one set is one instruction; other counted repeats are written out. Back-references make the captures part of what
# was visited, and then only the budget bounds the time.
class _PatternCode:
    """Nodes to instructions."""

    def __init__(self, node):
        self.code = []
        self._write(node)
        self.code.append(("match", 0, 0, 0))

    def _add(self, op, x=0, y=0, z=0):
        if len(self.code) >= PATTERN_MOST_CODE:
            raise PatternError("it is too large")
        self.code.append((op, x, y, z))
        return len(self.code) - 1

    def _write(self, node):
        kind = node.kind
        if kind == "set":
            self._add("set", node.chars)
        elif kind == "seq":
            for part in node.parts:
                self._write(part)
        elif kind == "alt":
            self._write_alt(node)
        elif kind == "repeat":
            self._write_repeat(node)
        elif kind == "group":
            self._add("save", 2 * node.index)
            self._write(node.parts[0])
            self._add("save", 2 * node.index + 1)
        elif kind == "ref":
            self._add("ref", node.index)
        elif kind == "look":
            self._add("look", _PatternCode(node.parts[0]).code, node.ahead, node.negated)
        else:
            self._add(kind, node.negated)

    def _write_alt(self, node):
        jumps = []
        for part in node.parts[:-1]:
            split = self._add("split")
            self._write(part)
            jumps.append(self._add("jump"))
            self.code[split] = ("split", split + 1, len(self.code), 0)
        self._write(node.parts[-1])
        for jump in jumps:
            self.code[jump] = ("jump", len(self.code), 0, 0)

    def _write_repeat(self, node):
        body = node.parts[0]
        if body.kind == "set":
            if node.high is not None:
                self._add("run", body.chars, (node.low, node.high), node.lazy)
                return
            if node.low > 1:
                self._add("run", body.chars, (node.low, node.low), False)
            elif node.low:
                self._add("set", body.chars)
        else:
            for _ in range(node.low):
                self._write(body)
        if node.high is None:
            split = self._add("split")
            self._write(body)
            self._add("jump", split)
            self._set_split(split, node.lazy)
            return
        if body.kind != "set":
            splits = []
            for _ in range(node.high - node.low):
                splits.append(self._add("split"))
                self._write(body)
            for split in splits:
                self._set_split(split, node.lazy)

    def _set_split(self, split, lazy):
        ways = (len(self.code), split + 1) if lazy else (split + 1, len(self.code))
        self.code[split] = ("split",) + ways + (0,)


def _pattern_is_word(text, at):
    return 0 <= at < len(text) and (text[at] == "_" or (text[at].isascii() and text[at].isalnum()))


def _pattern_anchor_holds(op, negated, text, at):
    if op == "start":
        return at == 0
    if op == "end":
        return at == len(text)
    if op == "line_start":
        return at == 0 or text[at - 1] == "\n"
    if op == "line_end":
        return at == len(text) or text[at] == "\n"
    return (_pattern_is_word(text, at - 1) != _pattern_is_word(text, at)) != negated


def _pattern_run(code, text, start, end, captures, visited, budget):
    """True when `code` matches `text` from `start`, up to exactly `end` unless that is None."""
    stack = [(0, start, captures)]
    steps = 0
    while stack:
        pc, at, captures = stack.pop()
        key = (pc, at, captures) if captures is not None else (pc, at)
        if key in visited:
            continue
        visited.add(key)
        steps += 1
        if steps == 64:
            budget.spend(32)
            steps = 0
        op, x, y, z = code[pc]
        if op == "set":
            if at < len(text) and x.has(text[at]):
                stack.append((pc + 1, at + 1, captures))
        elif op == "split":
            stack.append((y, at, captures))
            stack.append((x, at, captures))
        elif op == "jump":
            stack.append((x, at, captures))
        elif op == "match":
            if end is None or at == end:
                return True
        elif op == "run":
            low, high = y
            count = 0
            while count < high and at + count < len(text) and x.has(text[at + count]):
                count += 1
            budget.spend(count // 8)
            ways = range(low, count + 1)
            for more in (reversed(ways) if z else ways):
                stack.append((pc + 1, at + more, captures))
        elif op == "save":
            if captures is not None:
                captures = captures[:x] + (at,) + captures[x + 1:]
            stack.append((pc + 1, at, captures))
        elif op == "ref":
            first, last = captures[2 * x:2 * x + 2] if 2 * x + 1 < len(captures) else (-1, -1)
            said = text[first:last] if 0 <= first <= last else ""
            if text.startswith(said, at):
                stack.append((pc + 1, at + len(said), captures))
        elif op == "look":
            if _pattern_look(x, y, text, at, captures, budget) != z:
                stack.append((pc + 1, at, captures))
        elif _pattern_anchor_holds(op, x, text, at):
            stack.append((pc + 1, at, captures))
    budget.spend(1 + steps // 2)
    return False


def _pattern_look(code, ahead, text, at, captures, budget):
    if ahead:
        return _pattern_run(code, text, at, None, captures, set(), budget)
    return any(_pattern_run(code, text, start, at, captures, set(), budget) for start in range(at, -1, -1))


class SchemaPattern:
    """One pattern, read. Raises PatternError when it cannot be."""

    def __init__(self, text):
        parser = PatternParser(text)
        self._node = parser.parse()
        self._groups = parser.groups
        self._has_refs = parser.has_refs
        self._code = None
        self.width = self._node.width       # characters of the shortest text, look-around aside

    def search(self, text, budget):
        """True when the pattern matches somewhere in `text`. Raises WorkSpent, PatternError."""
        if self._code is None:
            self._code = _PatternCode(self._node).code
            budget.spend(len(self._code) // 4)
        budget.spend(2)
        captures = (-1,) * (2 * self._groups + 2) if self._has_refs else None
        visited = set()
        starts = 1 if self._code[0][0] == "start" else len(text) + 1
        return any(_pattern_run(self._code, text, start, None, captures, visited, budget) for start in range(starts))

    def sample(self, draw, extra, greedy, wild, budget):
        """A text that matches, but for what anchors inside and look-around ask.

        extra: how many characters more than the shortest text it may have; greedy: repeats take as many
        of them as they can; wild: 0 for words where they fit, 1 for letters and digits, 2 for any character.
        Raises PatternError, WorkSpent.
        """
        return _PatternWriter(draw, extra, greedy, wild, budget).text(self._node)


class _PatternWriter:
    """Draws one text."""

    def __init__(self, draw, extra, greedy, wild, budget):
        self._draw = draw
        self._extra = extra
        self._greedy = greedy
        self._wild = wild
        self._budget = budget
        self._said = {}                 # group -> what it last gave

    def text(self, node):
        out = []
        self._write(node, out)
        return "".join(out)

    def _write(self, node, out):
        kind = node.kind
        self._budget.spend(1)
        if kind == "set":
            choices = node.chars.choices(self._wild > 1)
            out.append(choices[draw_below(self._draw, len(choices))])
        elif kind == "seq":
            for part in node.parts:
                self._write(part, out)
        elif kind == "alt":
            parts = [part for part in node.parts if part.width - node.width <= self._extra]
            part = parts[draw_below(self._draw, len(parts))]
            self._extra -= part.width - node.width
            self._write(part, out)
        elif kind == "group":
            text = []
            self._write(node.parts[0], text)
            self._said[node.index] = "".join(text)
            out.extend(text)
        elif kind == "ref":
            out.append(self._said.get(node.index, ""))
        elif kind == "repeat":
            self._write_repeat(node, out)

    def _write_repeat(self, node, out):
        body = node.parts[0]
        unit = max(1, body.width)
        most = self._extra // unit
        if node.high is not None:
            most = min(most, node.high - node.low)
        if self._greedy:
            more = most
        else:
            more = draw_below(self._draw, min(most, 6 if node.high is None else 3) + 1)
            if body.kind == "set" and body.chars.choices(False) == [" "]:
                more = 0
            elif not node.low and not more and most and self._draw.random() < 0.7:
                more = 1
        self._extra -= more * unit
        count = node.low + more
        if body.kind == "set" and not self._wild and node.high is None and body.chars.is_wordlike():
            self._budget.spend(count // 8)
            out.append(self._letters(count))
            return
        for _ in range(count):
            self._write(body, out)

    def _letters(self, count):
        """So many lower-case letters: words where one fits."""
        words, texts, left = _PATTERN_TEXT_WORDS, [], count
        while left > 0:
            fitting = [word for word in words if len(word) == left] or words
            texts.append(fitting[draw_below(self._draw, len(fitting))])
            left -= len(texts[-1])
        return "".join(texts)[:count]
