"""Regular expressions of scripts: Python's own, kept from taking for ever as far as that can be seen beforehand.

`re` cannot be stopped and holds the interpreter. So an expression that can divide a text in many ways is refused
when it is read; only the beginning of a text is searched; what must be in the text is looked for first; and one
that begins with `.*` is tried once a line. Pure functions and values; any thread.
"""
import re

from backends.schema_regex import PatternParser

REGEX_TEXT_CHARS = 20000            # of a text are searched
REGEX_MOST_CHARS = 2000             # of an expression

_REGEX_FEW = 8                      # rounds of a repeat, with which a text can be divided in bearably many ways
_REGEX_MOST_WORDS = 100             # alternatives that are compared with each other

# Characters that stand for all others when two classes are laid over each other.
_REGEX_SAMPLE = [chr(code) for code in range(256)] + ["\u0436", "\u4e2d", "\u2028", "\U0001f600"]
_REGEX_ODD = re.compile(r"\\[0-9N]")     # escapes that `re` reads in another way than PatternParser
_REGEX_ANY_FIRST = re.compile(r"(?:\(\?i\))?\.\*")


class ScriptRegex:
    """A pattern that unsafe_regex() has let through. flags: of `re`."""

    def __init__(self, pattern, flags=0):
        self.pattern = pattern
        self._regex = re.compile(pattern, flags)
        self.groups = self._regex.groups
        self.groupindex = self._regex.groupindex
        node = PatternParser(pattern).parse()
        self._by_line = node.kind != "alt" and _REGEX_ANY_FIRST.match(pattern) and not self._regex.flags & re.DOTALL
        self._fold = bool(self._regex.flags & re.IGNORECASE)
        literals = [] if _REGEX_ODD.search(pattern) or "(?i" in pattern else sorted(_needed(node), key=len)[-3:]
        self._needed = [each.casefold() if self._fold else each for each in literals]

    def search(self, text):
        """re.Match or None, as re.search has it, of the beginning of a text."""
        text = text[:REGEX_TEXT_CHARS]
        if self._needed:
            words = text.casefold() if self._fold else text
            for each in self._needed:
                if each not in words:
                    return None
        if not self._by_line:
            return self._regex.search(text)
        at = 0                          # a match that begins within a line has one that begins with it
        while True:
            found = self._regex.match(text, at)
            at = text.find("\n", at) + 1
            if found is not None or not at:
                return found


def _single_char(node):
    """The character that a node is, or None."""
    if node.kind != "set":
        return None
    chars = node.chars
    if chars.negated or chars.properties or len(chars.ranges) != 1 or chars.ranges[0][0] != chars.ranges[0][1]:
        return None
    return chr(chars.ranges[0][0])


def _needed(node):
    """Texts that every match has in it."""
    if node.kind == "seq":
        found, run = [], ""
        for part in node.parts:
            char = _single_char(part)
            if char is not None:
                run += char
                continue
            found += [run] * bool(run) + _needed(part)
            run = ""
        return found + [run] * bool(run)
    if node.kind == "set":
        return [_single_char(node)] if _single_char(node) is not None else []
    if node.kind == "group" or node.kind == "repeat" and node.low:
        return _needed(node.parts[0])
    return []


def unsafe_regex(pattern):
    """Why an expression may take for ever on a text that nearly matches, in words; None when nothing says so.

    It finds what repeats in a repeat in such a way that one text can be cut in two ways, alternatives of which one
    text can be made in two ways, and what may be nothing, many times. Raises PatternError for what it cannot read.
    """
    return _unsafe_node(PatternParser(pattern).parse(), False)


def _unsafe_node(node, repeated):
    """repeated: whether the node is repeated without a bound."""
    if node.kind == "repeat":
        body = node.parts[0]
        endless = _endless(node)
        if endless and _grows(body) and _meets_itself(body):
            return "a repeat within a repeat that can divide a text in many ways, such as (a+)+"
        if endless and node.high is not None and not body.width:
            return "a counted repeat of what may be nothing, such as (a?){30}"
        words = _words(body) if endless else None
        if words is not None and len(words) > 1 and _two_ways(words):
            return "alternatives within a repeat of which a text can be made in two ways, such as (a|aa)*"
        return _unsafe_node(body, repeated or endless)
    if node.kind == "alt" and repeated:
        singles = [part.chars for part in node.parts if part.kind == "set"]
        for at, chars in enumerate(singles):
            if any(_overlap(chars, other) for other in singles[:at]):
                return "alternatives within a repeat that begin alike, such as (a|a)*"
    for part in node.parts:
        found = _unsafe_node(part, repeated)
        if found is not None:
            return found
    return None


def _endless(node):
    """Whether a repeat has so many rounds that they may as well be without a bound."""
    return node.high is None or node.high > _REGEX_FEW


def _words(node):
    """All that a node matches, where that is a few sequences of sets: a list of tuples of frozensets. Else None."""
    if node.kind == "set":
        return [(frozenset(char for char in _REGEX_SAMPLE if node.chars.has(char)),)]
    if node.kind == "group":
        return _words(node.parts[0])
    if node.kind == "repeat":
        inner = _words(node.parts[0]) if not _endless(node) else None
        rounds = [] if inner is None else [[inner] * count for count in range(node.low, node.high + 1)]
        found = [_words_joined(each) for each in rounds]
    elif node.kind == "seq":
        return _words_joined([_words(part) for part in node.parts])
    elif node.kind == "alt":
        found = [_words(part) for part in node.parts]
    else:
        return None                     # an anchor, a look around, a reference
    if not found or None in found or sum(map(len, found)) > _REGEX_MOST_WORDS:
        return None
    return [word for each in found for word in each]


def _words_joined(lists):
    """The words of several lists behind each other, or None when one is None or they are too many."""
    found = [()]
    for each in lists:
        if each is None or len(found) * len(each) > _REGEX_MOST_WORDS:
            return None
        found = [one + other for one in found for other in each]
    return found


def _two_ways(words):
    """Whether some text is made of these words in two ways: Sardinas and Patterson's test, with sets for letters."""
    words = [word for word in words if word]
    waiting = [word[len(other):] for at, word in enumerate(words) for number, other in enumerate(words)
               if at != number and len(other) <= len(word) and _agree(word, other)]
    seen = set()
    while waiting:
        rest = waiting.pop()            # what one way has more than the other
        if not rest:
            return True
        if rest in seen:
            continue
        seen.add(rest)
        waiting += [rest[len(word):] if len(word) <= len(rest) else word[len(rest):] for word in words
                    if _agree(word, rest)]
    return False


def _agree(one, other):
    """Whether two sequences of sets can be the same as far as both go."""
    return not any(a.isdisjoint(b) for a, b in zip(one, other))


def _grows(node):
    """Whether something in it repeats without a bound."""
    if node.kind == "repeat" and _endless(node) and node.high != node.low:
        return True
    return node.kind != "look" and any(_grows(part) for part in node.parts)


def _meets_itself(body):
    """Whether an unbounded repeat at the end of `body` could take what the next round begins with."""
    firsts = _edge_sets(body, False)
    return any(_overlap(chars, first) for chars, endless in _edge_sets(body, True) if endless
               for first, _ in firsts)


def _edge_sets(node, last):
    """The sets that a match of `node` may begin (or end) with: [(PatternSet, whether it is repeated there)]."""
    if node.kind == "set":
        return [(node.chars, False)]
    if node.kind == "repeat":
        endless = _endless(node)
        return [(chars, endless or inner) for chars, inner in _edge_sets(node.parts[0], last)]
    if node.kind == "alt":
        return [entry for part in node.parts for entry in _edge_sets(part, last)]
    if node.kind == "group":
        return _edge_sets(node.parts[0], last)
    found = []
    if node.kind == "seq":
        for part in reversed(node.parts) if last else node.parts:
            found += _edge_sets(part, last)
            if part.width:
                break
    return found


def _overlap(one, other):
    return any(one.has(char) and other.has(char) for char in _REGEX_SAMPLE)
