"""Reads the regular expressions of JSON schemas: a pattern becomes nodes.

In: a pattern in the common ground of ECMA-262, Python and Rust (`\\d \\w \\s \\b \\p{..}`, classes, groups,
quantifiers, back-references, look-around, leading flags). Out: PatternNodes and PatternSets, or PatternError. `re` is
not used, because it cannot be stopped and knows no `\\p`. Any thread.
"""
import unicodedata

PATTERN_MOST_DEPTH = 40             # groups in groups; the parser and the writer call themselves once a level
PATTERN_MOST_CHARS = 10000          # what a quantifier may ask for in one text

_PATTERN_LAST = 0x10FFFF
_PATTERN_DIGITS = ((48, 57),)
_PATTERN_WORDS = ((48, 57), (65, 90), (95, 95), (97, 122))
_PATTERN_SPACES = ((9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
                   (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))
_PATTERN_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_PATTERN_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "e": 27}

# What a drawn character is taken from, the first string that has one that fits: letters and digits say
# nothing to a shell, so they come before all else.
_PATTERN_LOWER = "abcdefghijklmnopqrstuvwxyz"
_PATTERN_TAME = _PATTERN_LOWER + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PATTERN_POOL = _PATTERN_TAME + (" -_.,:/@+=#!?()[]{}*&^%~<>'\"\\$;|`\t\n"
                                 "\u00e9\u00df\u00f8\u03b1\u0436\u4e2d\u3042\ud55c")

# Long names of general categories, as \\p{..} may spell them; scripts are told by the character's name.
_PATTERN_CATEGORIES = {
    "letter": "L", "alphabetic": "L", "alpha": "L", "uppercase": "Lu", "uppercase_letter": "Lu", "upper": "Lu",
    "lowercase": "Ll", "lowercase_letter": "Ll", "lower": "Ll", "number": "N", "digit": "Nd", "decimal_number": "Nd",
    "punctuation": "P", "punct": "P", "symbol": "S", "separator": "Z", "space_separator": "Zs", "mark": "M",
    "other": "C", "control": "Cc", "white_space": "Z", "space": "Z"}
_PATTERN_SCRIPTS = {"han": "CJK"}


class PatternError(ValueError):
    """The pattern is none that this module can read, or none that a text can match."""


def _pattern_property(name):
    """\\p{name} -> a function of one character. Raises PatternError when the name is unknown."""
    value = name.split("=")[-1].strip()
    key = value.lower().replace(" ", "_").replace("-", "_")
    if key == "any":
        return lambda char: True
    if key == "ascii":
        return lambda char: char < "\x80"
    if key in ("emoji", "extended_pictographic", "emoji_presentation", "emoji_component"):
        return lambda char: "\u2600" <= char <= "\u27bf" or "\U0001f300" <= char <= "\U0001faff"
    if key in _PATTERN_CATEGORIES:
        value = _PATTERN_CATEGORIES[key]
    if 1 <= len(value) <= 2 and value[0] in "LMNPSZC" and value[1:] in ("", *"ultmocdepsifkn"):
        return lambda char: unicodedata.category(char).startswith(value)
    if not key.replace("_", "").isalpha():
        raise PatternError("unknown property %r" % name)
    script = _PATTERN_SCRIPTS.get(key, key.upper().replace("_", " "))
    return lambda char: unicodedata.name(char, "").startswith(script)


def _pattern_complement(ranges):
    """All code points that are in none of `ranges`, as ranges."""
    outside, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            outside.append((at, low - 1))
        at = max(at, high + 1)
    if at <= _PATTERN_LAST:
        outside.append((at, _PATTERN_LAST))
    return tuple(outside)


class PatternSet:
    """The characters that one place of a pattern takes."""

    __slots__ = ("ranges", "properties", "negated", "fold", "_choices")

    def __init__(self, ranges, properties=(), negated=False, fold=False):
        self.ranges = tuple(ranges)
        self.properties = tuple(properties)     # (function of a character, negated)
        self.negated = negated
        self.fold = fold                        # letter case does not count
        self._choices = {}

    def _holds(self, char):
        code = ord(char)
        for low, high in self.ranges:
            if low <= code <= high:
                return True
        for test, negated in self.properties:
            if test(char) != negated:
                return True
        return False

    def has(self, char):
        found = self._holds(char)
        if self.fold and not found:
            found = any(len(other) == 1 and self._holds(other) for other in (char.lower(), char.upper()))
        return found != self.negated

    def choices(self, wild):
        """The characters to draw from, tame ones alone where there are any and `wild` is false."""
        if wild not in self._choices:
            found = [char for char in (_PATTERN_POOL if wild else _PATTERN_TAME) if self.has(char)]
            if not found and not wild:
                found = [char for char in _PATTERN_POOL if char.isprintable() and self.has(char)]
            if not found:
                found = [char for char in _PATTERN_POOL if self.has(char)]
            self._choices[wild] = found or self._rare_choices()
        return self._choices[wild]

    def _rare_choices(self):
        """Outside the pool: the ends of the ranges, else the first that fits in the usual planes."""
        ends = [chr(code) for pair in self.ranges for code in pair if not 0xD800 <= code <= 0xDFFF]
        found = [char for char in ends if self.has(char)]
        if found:
            return found[:64]
        for start, stop in ((0, 0x3400), (0x4E00, 0x4E80), (0xA000, 0xD7FF), (0xE000, 0x11000), (0x1F300, 0x1F700)):
            for code in range(start, stop):
                if self.has(chr(code)):
                    return [chr(code)]
        raise PatternError("a class that no character is in")

    def is_wordlike(self):
        """True when any lower-case word may stand here."""
        return self.choices(False)[:26] == list(_PATTERN_LOWER)


class PatternNode:
    """A piece of a pattern: kind, the least number of characters, and what the kind needs."""

    __slots__ = ("kind", "width", "parts", "chars", "low", "high", "lazy", "index", "negated", "ahead")

    def __init__(self, kind, width=0, parts=(), chars=None, low=0, high=None, lazy=False, index=0, negated=False,
                 ahead=True):
        self.kind = kind            # set seq alt repeat group ref look, or an anchor: start end line_start ...
        self.width = width
        self.parts = parts
        self.chars = chars
        self.low = low
        self.high = high            # None: no upper bound
        self.lazy = lazy
        self.index = index
        self.negated = negated
        self.ahead = ahead


class PatternParser:
    """Text to nodes. One object a pattern."""

    def __init__(self, text):
        self.text = text
        self.at = 0
        self.groups = 0
        self.names = {}
        self.has_refs = False
        self.fold = self.dotall = self.multiline = False

    def parse(self):
        node = self._alternatives(0)
        if self.at < len(self.text):
            raise PatternError("unbalanced ) at %d" % self.at)
        return node

    def _peek(self, token):
        return self.text.startswith(token, self.at)

    def _take(self, token):
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def _until(self, mark):
        end = self.text.find(mark, self.at)
        if end < 0:
            raise PatternError("%s is missing after %d" % (mark, self.at))
        inside = self.text[self.at:end]
        self.at = end + len(mark)
        return inside

    def _alternatives(self, depth):
        if depth > PATTERN_MOST_DEPTH:
            raise PatternError("more than %d groups in each other" % PATTERN_MOST_DEPTH)
        flags = self.fold, self.dotall, self.multiline
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        if depth:
            self.fold, self.dotall, self.multiline = flags
        if len(branches) == 1:
            return branches[0]
        return PatternNode("alt", min(branch.width for branch in branches), branches)

    def _sequence(self, depth):
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            node = self._atom(depth)
            if node is not None:
                parts.append(self._repeated(node))
        if len(parts) == 1:
            return parts[0]
        return PatternNode("seq", sum(part.width for part in parts), parts)

    def _repeated(self, node):
        bounds = self._quantifier()
        if bounds is None:
            return node
        low, high = bounds
        if high is not None and high < low:
            raise PatternError("{%d,%d} is the wrong way round" % (low, high))
        if low > PATTERN_MOST_CHARS:
            raise PatternError("more than %d repeats" % PATTERN_MOST_CHARS)
        lazy = self._take("?")
        if not lazy:
            self._take("+")             # possessive: the same texts but for rare cases
        return PatternNode("repeat", min(node.width * low, 1 << 40), [node], low=low, high=high, lazy=lazy)

    def _quantifier(self):
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        if not self._peek("{"):
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1:max(end, self.at + 1)].partition(",")
        digits = low + high
        if end < 0 or not digits or not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
            return None                 # a brace that stands for itself
        self.at = end + 1
        if not comma:
            return int(low), int(low)
        return int(low or 0), int(high) if high else None

    def _atom(self, depth):
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._one(self._class())
        if char == ".":
            return self._one(PatternSet(() if self.dotall else _PATTERN_LINE_ENDS, negated=True))
        if char == "^":
            return PatternNode("line_start" if self.multiline else "start")
        if char == "$":
            return PatternNode("line_end" if self.multiline else "end")
        if char == "\\":
            return self._escape()
        if char in "*+?":
            raise PatternError("nothing to repeat at %d" % (self.at - 1))
        return self._literal(ord(char))

    def _one(self, chars):
        return PatternNode("set", 1, chars=chars)

    def _literal(self, code):
        return self._one(PatternSet(((code, code),), fold=self.fold))

    def _group(self, depth):
        if not self._take("?"):
            return self._capture(depth, None)
        for mark, ahead, negated in (("=", True, False), ("!", True, True), ("<=", False, False), ("<!", False, True)):
            if self._take(mark):
                node = self._closed(depth)
                return PatternNode("look", parts=[node], ahead=ahead, negated=negated)
        if self._take(":") or self._take(">"):
            return self._closed(depth)
        if self._take("P=") or self._peek("P>"):
            return self._reference(self._until(")"))
        if self._take("P<") or self._take("<"):
            return self._capture(depth, self._until(">"))
        if self._take("#"):
            self._until(")")
            return None
        return self._flags(depth)

    def _flags(self, depth):
        """(?i) and (?i:...): the flags that change what is matched; u, a, L and U change nothing here."""
        saved, value = (self.fold, self.dotall, self.multiline), True
        while self.at < len(self.text) and self.text[self.at] not in ":)":
            flag = self.text[self.at]
            self.at += 1
            if flag == "-":
                value = False
            elif flag == "i":
                self.fold = value
            elif flag == "s":
                self.dotall = value
            elif flag == "m":
                self.multiline = value
            elif flag not in "uaLU":
                raise PatternError("unknown group (?%s" % flag)
        if self._take(")"):
            return None
        self._take(":")
        node = self._closed(depth)
        self.fold, self.dotall, self.multiline = saved
        return node

    def _capture(self, depth, name):
        self.groups += 1
        index = self.groups
        if name is not None:
            self.names[name] = index
        node = self._closed(depth)
        return PatternNode("group", node.width, [node], index=index)

    def _closed(self, depth):
        node = self._alternatives(depth + 1)
        if not self._take(")"):
            raise PatternError(") is missing")
        return node

    def _reference(self, name):
        self.has_refs = True
        if name.isdigit():
            return PatternNode("ref", index=int(name))
        if name not in self.names:
            raise PatternError("unknown group %r" % name)
        return PatternNode("ref", index=self.names[name])

    def _escape(self):
        if self.at >= len(self.text):
            raise PatternError("a backslash at the end")
        char = self.text[self.at]
        if char in "bB":
            self.at += 1
            return PatternNode("border", negated=char == "B")
        if char in "AzZ":
            self.at += 1
            return PatternNode("start" if char == "A" else "end")
        if char == "k" and self.text.startswith("<", self.at + 1):
            self.at += 2
            return self._reference(self._until(">"))
        if char in "123456789":
            digits = char
            while self.text[self.at + len(digits):self.at + len(digits) + 1].isdigit() and len(digits) < 2:
                digits += self.text[self.at + len(digits)]
            self.at += len(digits)
            return self._reference(digits)
        ranges, properties = self._escaped_set()
        return self._one(PatternSet(ranges, properties, fold=self.fold))

    def _escaped_set(self):
        """After a backslash, in a class or outside: (ranges, properties)."""
        char = self.text[self.at]
        self.at += 1
        for mark, ranges in (("d", _PATTERN_DIGITS), ("w", _PATTERN_WORDS), ("s", _PATTERN_SPACES)):
            if char == mark:
                return ranges, ()
            if char == mark.upper():
                return _pattern_complement(ranges), ()
        if char in "pP":
            name = self._until("}") if self._take("{") else self.text[self.at:self.at + 1]
            if self.text[self.at - 1] != "}":
                self.at += 1
            negated = name.startswith("^")
            return (), ((_pattern_property(name.lstrip("^")), negated != (char == "P")),)
        code = self._escaped_code(char)
        return ((code, code),), ()

    def _escaped_code(self, char):
        if char in _PATTERN_CONTROLS:
            return _PATTERN_CONTROLS[char]
        if char == "0":
            return 0
        if char == "c" and self.text[self.at:self.at + 1].isalpha():
            self.at += 1
            return ord(self.text[self.at - 1]) % 32
        if char in "xuU":
            if self._take("{"):
                digits = self._until("}")
            else:
                size = {"x": 2, "u": 4, "U": 8}[char]
                digits = self.text[self.at:self.at + size]
                self.at += size
            try:
                code = int(digits, 16)
            except ValueError:
                raise PatternError("\\%s needs hexadecimal digits" % char) from None
            if char == "u" and 0xD800 <= code < 0xDC00 and self._take("\\u"):
                low = self.text[self.at:self.at + 4]
                self.at += 4
                try:
                    code = 0x10000 + ((code - 0xD800) << 10) + (int(low, 16) - 0xDC00)
                except ValueError:
                    raise PatternError("\\u needs hexadecimal digits") from None
            if not 0 <= code <= _PATTERN_LAST:
                raise PatternError("no such character: %x" % code)
            return code
        return ord(char)

    def _class(self):
        negated = self._take("^")
        ranges, properties, first = [], [], True
        while True:
            if self.at >= len(self.text):
                raise PatternError("] is missing")
            if self._peek("]") and (not first or self.text.find("]", self.at + 1) < 0):
                self.at += 1
                return PatternSet(ranges, properties, negated, self.fold)
            first = False
            more, kinds = self._class_member()
            single = len(more) == 1 and more[0][0] == more[0][1]
            if single and self._peek("-") and not self.text.startswith("-]", self.at):
                self.at += 1
                ends, end_kinds = self._class_member()
                if end_kinds or len(ends) != 1 or ends[0][0] != ends[0][1]:
                    more = tuple(more) + tuple(ends) + ((45, 45),)
                    kinds = tuple(kinds) + tuple(end_kinds)
                elif ends[0][0] < more[0][0]:
                    raise PatternError("a range that is the wrong way round")
                else:
                    more = ((more[0][0], ends[0][0]),)
            ranges.extend(more)
            properties.extend(kinds)

    def _class_member(self):
        """One character, escape or POSIX class inside [ ]: (ranges, properties)."""
        if self.at >= len(self.text):
            raise PatternError("] is missing")
        if self._peek("[:") and ":]" in self.text[self.at:]:
            self.at += 2
            return (), ((_pattern_property(self._until(":]")), False),)
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ((ord(char), ord(char)),), ()
        if self.at >= len(self.text):
            raise PatternError("a backslash at the end")
        if self._take("b"):
            return ((8, 8),), ()
        return self._escaped_set()
