"""Split patterns: the regular expression that cuts a text into the pieces within which byte pairs are merged.

In: a pattern as tiktoken and tokenizer.json spell it, with \\p{..}, which `re` does not know. Out: a SplitPattern, which
cuts exactly as the original does, in one pass of `re`. Any thread.
"""

import re
import unicodedata
from bisect import bisect_right

# Strategy. A pattern cannot tell two characters apart that have the same general category and stand in the same of the
# pattern's own ranges. So each such kind gets one stand-in character; a text is translated to stand-ins (ASCII stays
# as it is, and is most of most texts), and the pattern becomes one over small classes of them. No table of Unicode is
# built and compiled, which would take some 0.3 s and 1 MB, and slow every miss down.

_SPLIT_CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()

# White_Space of Unicode. Python's own \s has four control characters more (1C to 1F).
_SPLIT_SPACES = ((9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
                 (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000))

_SPLIT_FIRST_STAND_IN = 0x100
_SPLIT_KEPT = 1 << 16               # code points whose stand-in is remembered; a hostile text brings a million
_SPLIT_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "e": 27, "0": 0}
_SPLIT_FOLDS = {"s": (0x17F,), "k": (0x212A,)}          # what folds to an ASCII letter beside its other case

SPLIT_PATTERNS = {
    "r50k_base": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k_base": r"(?i:'(?:[sdmt]|ll|ve|re))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                   r"|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k_base": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                  r"(?i:'(?:[sdmt]|ll|ve|re))?"
                  r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
                  r"(?i:'(?:[sdmt]|ll|ve|re))?"
                  r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
SPLIT_PATTERNS["gpt2"] = SPLIT_PATTERNS["p50k_base"] = SPLIT_PATTERNS["p50k_edit"] = SPLIT_PATTERNS["r50k_base"]
SPLIT_PATTERNS["o200k_harmony"] = SPLIT_PATTERNS["o200k_base"]


class _SplitKind:
    """What one element of the pattern matches: ranges of code points, categories (prefixes), or all but those."""

    def __init__(self, ranges=(), categories=(), negated=False, parts=()):
        self.ranges = ranges
        self.categories = categories
        self.negated = negated
        self.parts = parts

    def holds(self, code, category):
        """Whether a code point that stands for its kind belongs here."""
        found = category.startswith(self.categories) if self.categories else False
        found = found or any(low <= code <= high for low, high in self.ranges) \
            or any(part.holds(code, category) for part in self.parts)
        return found != self.negated

    def borders(self):
        """Code points where membership may change within a category."""
        found = {border for low, high in self.ranges for border in (low, high + 1)}
        return found.union(*[part.borders() for part in self.parts])


_SPLIT_ESCAPES = {
    "s": _SplitKind(_SPLIT_SPACES), "d": _SplitKind(categories=("Nd",)),
    "w": _SplitKind(categories=("L", "M", "N", "Pc")),
}


class _SplitReader:
    """Reads a pattern into a list of str, which `re` takes as they are, and _SplitKinds."""

    def __init__(self, pattern):
        self._pattern = pattern
        self._at = 0

    def read(self):
        """The list. Raises ValueError for what is not known to mean the same in `re`."""
        out, folds = [], []             # folds: whether case counts, one for each open group
        while self._at < len(self._pattern):
            char = self._take()
            if char == "(":
                opening = self._opening()
                folds.append(opening == "(?i:" or bool(folds and folds[-1]))
                out.append("(?:" if opening in ("(", "(?i:") else opening)
            elif char == ")":
                if not folds:
                    raise self._refusal("a bracket too many")
                folds.pop()
                out.append(char)
            elif char == "[":
                out.append(self._class(bool(folds and folds[-1])))
            elif char in "*+?|":
                out.append(char)
                if char in "*+?" and self._pattern.startswith("+", self._at):
                    raise self._refusal("possessive repeats are not supported")
            elif char == "{":
                out.append(self._repeat())
            elif char == ".":
                out.append(_SplitKind(((10, 10),), negated=True))
            elif char in "^$":
                raise self._refusal("the anchor %s is not supported" % char)
            elif char == "\\":
                out.append("\\Z" if self._pattern.startswith("z", self._at) and self._take()
                           else self._folded(self._escape(), bool(folds and folds[-1])))
            else:
                out.append(self._folded(ord(char), bool(folds and folds[-1])))
        if folds:
            raise self._refusal("a bracket is not closed")
        return out

    def _refusal(self, what):
        return ValueError("%s (at %d of the split pattern %.80r)" % (what, self._at, self._pattern))

    def _take(self):
        if self._at == len(self._pattern):
            raise self._refusal("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _opening(self):
        for opening in ("?:", "?i:", "?=", "?!", "?<=", "?<!"):
            if self._pattern.startswith(opening, self._at):
                self._at += len(opening)
                return "(" + opening
        if self._pattern.startswith("?", self._at):
            raise self._refusal("this kind of group is not supported")
        return "("

    def _repeat(self):
        found = re.compile(r"\d*,?\d*\}(?!\+)").match(self._pattern, self._at)
        if not found:
            raise self._refusal("a repeat is expected after {")
        self._at = found.end()
        return "{" + found.group()

    def _escape(self):
        """A code point (int), or a _SplitKind, of what stands behind a backslash."""
        char = self._take()
        if char in "pP":
            name = self._take()
            if name == "{":
                end = self._pattern.find("}", self._at)
                if end < 0:
                    raise self._refusal("\\p{ is not closed")
                name, self._at = self._pattern[self._at:end], end + 1
            negated = (char == "P") != name.startswith("^")
            name = name.lstrip("^")
            if name not in _SPLIT_CATEGORIES and name not in "LMNPSZC":
                raise self._refusal("\\p{%s} is not supported, only general categories are" % name)
            return _SplitKind(categories=(name,), negated=negated)
        if char.lower() in _SPLIT_ESCAPES:
            kind = _SPLIT_ESCAPES[char.lower()]
            return kind if char.islower() else _SplitKind(parts=(kind,), negated=True)
        if char in _SPLIT_CONTROLS:
            return _SPLIT_CONTROLS[char]
        if char in "xu":
            found = re.compile(r"\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{%d})" % (2 if char == "x" else 4)).match(
                self._pattern, self._at)
            if not found:
                raise self._refusal("a code point is expected")
            self._at = found.end()
            return int(found.group(1) or found.group(2), 16)
        if char.isalnum():
            raise self._refusal("\\%s is not supported" % char)
        return ord(char)

    def _folded(self, item, fold):
        """A _SplitKind for a code point, with its other case where case does not count."""
        if item.__class__ is _SplitKind:
            return item
        codes = [item]
        char = chr(item)
        if fold and char.isalpha():
            if item > 127:
                raise self._refusal("only ASCII letters may ignore case")
            codes += [ord(char.swapcase()), *_SPLIT_FOLDS.get(char.lower(), ())]
        return _SplitKind(tuple((code, code) for code in codes))

    def _class(self, fold):
        """A _SplitKind of what stands in square brackets."""
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        parts, ranges, first = [], [], True
        while True:
            char = self._take()
            if char == "]" and not first:
                return _SplitKind(tuple(ranges), negated=negated, parts=tuple(parts))
            if char == "[" or char == "&" and self._pattern.startswith("&", self._at):
                raise self._refusal("classes within classes are not supported")
            first = False
            low = self._escape() if char == "\\" else ord(char)
            if low.__class__ is int and re.compile(r"-[^\]]").match(self._pattern, self._at):
                self._at += 1
                char = self._take()
                high = self._escape() if char == "\\" else ord(char)
                if high.__class__ is not int or high < low or fold:
                    raise self._refusal("this range is not supported")
                ranges.append((low, high))
            else:
                parts.append(self._folded(low, fold))


class _StandIns(dict):
    """Code point -> the code point of its kind's stand-in, for str.translate()."""

    def __init__(self, borders):
        self._borders = borders
        self._numbers = {category: number for number, category in enumerate(_SPLIT_CATEGORIES)}

    def __missing__(self, code):
        if len(self) >= _SPLIT_KEPT:
            self.clear()
        stand_in = code
        if code > 127:
            stand_in = (_SPLIT_FIRST_STAND_IN + bisect_right(self._borders, code) * len(_SPLIT_CATEGORIES)
                        + self._numbers[unicodedata.category(chr(code))])
        self[code] = stand_in
        return stand_in


class SplitPattern:
    """A pattern that cuts texts into pieces.

    pattern: str, as tiktoken or tokenizer.json spell it. Raises ValueError, with one line, for what it may not say.
    Characters newer than this Python's Unicode count as symbols.
    """

    def __init__(self, pattern):
        elements = _SplitReader(pattern).read()
        kinds = [element for element in elements if element.__class__ is _SplitKind]
        borders = sorted({border for kind in kinds for border in kind.borders() if border > 127} | {128})
        self._stand_ins = _StandIns(borders)
        parts = [element if element.__class__ is str else _split_class(element, borders) for element in elements]
        try:
            found = re.compile("".join(parts))
        except (re.error, OverflowError) as exc:
            raise ValueError("%s (in the split pattern %.80r)" % (exc, pattern))
        if found.match(""):
            raise ValueError("the split pattern %.80r fits nothing at all" % pattern)
        self._find, self._iterate = found.findall, found.finditer

    def _shadow(self, text):
        return text if text.isascii() else text.translate(self._stand_ins)

    def pieces(self, text):
        """All pieces of a text, a list of str: what the pattern matches, and what lies between matches."""
        found = self._find(self._shadow(text))
        if sum(map(len, found)) != len(text):
            return list(self.walk(text))
        if text.isascii():
            return found
        at = 0
        for number, piece in enumerate(found):
            end = at + len(piece)
            found[number] = text[at:end]
            at = end
        return found

    def walk(self, text):
        """Yield the pieces one by one, for a long text."""
        at = 0
        for found in self._iterate(self._shadow(text)):
            start, end = found.span()
            if start > at:
                yield text[at:start]
            if end > start:
                yield text[start:end]
            at = end
        if at < len(text):
            yield text[at:]


def _split_class(kind, borders):
    """A _SplitKind as a class of `re`: its ASCII characters and its stand-ins."""
    codes = [code for code in range(128) if kind.holds(code, unicodedata.category(chr(code)))]
    for number, border in enumerate(borders):
        first = _SPLIT_FIRST_STAND_IN + (number + 1) * len(_SPLIT_CATEGORIES)
        codes += [first + at for at, category in enumerate(_SPLIT_CATEGORIES) if kind.holds(border, category)]
    if not codes:
        return "(?!)"
    ranges = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[%s]" % "".join("\\u%04x-\\u%04x" % tuple(pair) for pair in ranges)
