"""What the user's message mentions and an argument may repeat: names, places, dates, numbers, quoted words and so on.

In: a message's text. Out: candidates by kind, the best first; whether one fits the schema is checked elsewhere. What it
does not find it does not guess. Each search is made when it is first asked for, over a bounded text. One object a call.
"""
import re
from bisect import bisect_left
from collections import namedtuple
from functools import lru_cache

from backends.hint_tables import (HINT_KNOWN_COUNTRIES, HINT_KNOWN_CURRENCIES, HINT_KNOWN_LANGUAGES, HINT_KNOWN_PLACES,
                                  HINT_KNOWN_WORDS, HINT_TEXTS)
from backends.schema_formats import format_holds

SAID_MOST_TEXT = 2000               # characters of a message that are read
# Compiled at their first use, by re, as those of backends/schema_formats.py.
_SAID_DIGIT = r"\d"
_SAID_SHELL = r"[$`;|&<>\\\n\x00-\x1f]"

_SAID_SENTENCE = r"[.!?:\n]+(?:\s|$)"
_SAID_PROPER = r"[A-Z][\w'-]*[a-z][\w-]*"
# Never taken for a name, though capitalised within a sentence.
_SAID_NO_NAMES = frozenset((
    "I", "Ok", "Please", "The", "What", "How", "Where", "When", "Who", "Why", "Could", "Can", "Would", "Is", "Are",
    "Do", "Does", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "January", "February",
    "March", "April", "May", "June", "July", "August", "September", "October", "November", "December", "Celsius",
    "Fahrenheit", "English"))
_SAID_BEFORE_PLACES = frozenset(
    "in from to at near around towards into via through visit visiting between within".split())
_SAID_BEFORE_PEOPLE = frozenset(
    "for with by named called am email call contact tell ask invite message meet remind".split())
_SAID_FROM = frozenset("origin from departure departing source start starting pickup outbound".split())
_SAID_TO = frozenset("destination to arrival arriving target end ending dropoff".split())

_SAID_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
                "november", "december")
_SAID_MONTH = "(january|february|march|april|may|june|july|august|september|october|november|december)"
_SAID_YEAR = "2026"                 # of a date that names none: the draws' last one
_SAID_SMALL = {word: number for number, word in enumerate(
    "zero one two three four five six seven eight nine ten eleven twelve".split())}
_SAID_SUFFIXES = "|".join("txt md pdf csv json yaml yml xml html py js ts go rs java c h cpp sh sql log png jpg jpeg "
                          "gif svg docx xlsx pptx zip tar gz toml ini cfg ipynb mp3 mp4 wav".split())

# kind: what is searched for
_SAID_PATTERNS = {
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "url": r"https?://[^\s<>\"'`|\\^{}()\[\]]+",
    "uuid": r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
    "ip": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])",
    "phone": r"(?<![\w.,/-])\+?\(?\d[\d ().-]{6,18}\d(?![\w-])",
    "path": r"(?<![\w./~@:-])(?:[\w-]+/)*[\w-]+(?:\.[\w-]+)*\.(?:%s)(?![\w/]|\.\w)" % _SAID_SUFFIXES,
    "color": r"#[0-9a-fA-F]{6}\b",
    "hash": r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b",
    "timezone": r"\b[A-Z][a-z]+/[A-Z][A-Za-z_]+\b|\bUTC\b",
    "version": r"\bv?\d+\.\d+(?:\.\d+)+\b|(?<=version )\d+(?:\.\d+)*",
    "ticker": r"\b[A-Z]{2,5}\b(?!-)",
    "iata": r"\b[A-Z]{3}\b(?!-)",
    "flight": r"\b[A-Z]{2} ?\d{2,4}\b",
    "isbn": r"\b97[89][- ]?\d[\d -]{8,12}\d\b",
    "expression": r"[\d(][\d\s.,()]*(?:[-+*/^%][\d\s.,()]+)+",
    "zip": r"\b\d{5}(?:-\d{4})?\b|\b[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}\b",
    "id": r"\b[A-Z]{1,6}-?\d{2,12}\b|(?<=#)\w+|(?i:\b(?:order|ticket|user|customer|invoice|account|product|issue|case"
          r"|booking|id|number|no\.?)\s+(?:(?:id|number|no\.?)\s+)?(?:is\s+)?)([A-Za-z]*\d[\w-]*)",
    "duration": r"\b\d+(?:\.\d+)?\s?(?:seconds?|minutes?|mins?|hours?|days?|weeks?)\b",
}
_SAID_QUOTED_KINDS = frozenset((None, "title", "query", "sentence", "product", "company", "tag", "category", "song",
                                "movie", "book", "artist"))
_SAID_QUOTED = r"\"([^\"\n]{1,300})\"|\u201c([^\u201d\n]{1,300})\u201d|(?<!\w)'([^'\n]{2,300})'(?!\w)"
_SAID_TIME = (r"(?i)\b(?:([01]?\d|2[0-3]):([0-5]\d)(?!\d)\s?(am|pm|a\.m\.|p\.m\.)?|"
              r"(1[0-2]|[1-9])\s?(am|pm|a\.m\.|p\.m\.))")
_SAID_DATES = (
    r"(?i)\b(\d{4})-(\d\d)-(\d\d)\b|\b%s\s+(\d{1,2})(?:st|nd|rd|th)?\b(?:,?\s+(\d{4}))?|"
    r"\b(\d{1,2})(?:st|nd|rd|th)?\s+(?:of\s+)?%s\b(?:,?\s+(\d{4}))?" % (_SAID_MONTH, _SAID_MONTH))
_SAID_NUMBER = (r"(?<![\w./:#-])([$\u20ac\u00a3\u00a5]?)(-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d{1,15}(?:\.\d+)?)"
                r"(?![\d:/-]|\.\d)\s?([%\u00b0]?)")
_SAID_QUERY = (
    r"(?i)\b(?:search|look|google|find|browse|query|documents?|articles?|news|papers?|information|info|results?"
    r"|posts?)\b[^.?!\n]{0,40}?\b(?:for|about|on|up|regarding)\s+(?:the\s+web\s+(?:for|about)\s+)?([^.?!\n\"]{3,100})")
_SAID_SENTENCES = (r"(?i)\b(?:saying|says|say|message:|reading|translate|body:|text:|note:)\s+(?:that\s+)?"
                   r"([^.!?\n\"]{2,200}?[.!?]?)"
                   r"(?=\s+(?:to|into|in)\s+[A-Z]\w+[.!?]?$|$|\n|(?<=[.!?])\s)")

_SAID_TASK = (r"(?i)\bremind (?:me|us) to ([^.!?\n\"]{3,100}?)"
              r"(?=\s+(?:at|on|by|in|tomorrow|every|next)\b|[.!?]|$)")
_SAID_REST = r"(?<=\w):\s+([^\n\"]{8,200})$"


class SaidNumber(namedtuple("SaidNumber", "value sign before after")):
    """A number of a message. value: int or float; sign: of a currency, or %, or ""; before, after: the words beside it,
    nearest first, lower-case, without a plural s."""
    __slots__ = ()


def said_singular(word):
    """ "cities" -> "city"."""
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _said_by_first_word(names):
    """{first word: [names that begin with it, the longest first]}."""
    found = {}
    for name in sorted(names, key=lambda name: (-len(name), name)):
        found.setdefault(name.split()[0], []).append(name)
    return found


_SAID_PLACES = _said_by_first_word(HINT_KNOWN_PLACES)
_SAID_COUNTRIES = _said_by_first_word(HINT_KNOWN_COUNTRIES)


def _said_words(text):
    return [said_singular(word) for word in re.findall(r"[^\W\d_]+", text.lower())]


def _said_misplaced(before, words):
    """How badly a word before something that was said fits a property: "from" fits an origin, and "to" does not."""
    for mine, others, said, denied in ((_SAID_FROM, _SAID_TO, ("from",), ("to", "into", "towards")),
                                       (_SAID_TO, _SAID_FROM, ("to", "into", "towards"), ("from",))):
        if not words.isdisjoint(mine) and words.isdisjoint(others):
            return 0 if before in said else 2 if before in denied else 1
    return 0


@lru_cache(maxsize=128)
def _said_findings(text):
    """{what was searched for: what was found} of a text, filled as it is asked for: a tool's loop asks of one message
    again and again."""
    return {}


class SaidValues:
    """The candidates of one message."""

    def __init__(self, text):
        self.text = text[:SAID_MOST_TEXT]
        self._found = _said_findings(self.text)
        self.used = frozenset()         # candidates that stand in the value already; may be set back

    def take(self, value):
        """The candidate stands in the value now: it is said once."""
        self.used |= {value}

    # -- words and listed values

    def words(self):
        """The lower-case words of the text."""
        return self._once("words", lambda: frozenset(re.findall(r"\w+", self.text.lower())))

    def listed(self, values, words):
        """Those of an enum's strings (and whole numbers) that the text says, in its order. words: the property's."""
        text = self._once("flat", lambda: " %s " % " ".join(re.findall(r"\w+", self.text.lower().replace("_", " "))))
        places = []
        for value in values:
            if isinstance(value, str):
                said = " ".join(re.findall(r"\w+", value.lower().replace("_", " ")))
            elif isinstance(value, int) and not isinstance(value, bool):
                said = str(value)
            else:
                continue
            at = text.find(" %s " % said) if said else -1
            if at >= 0:
                before = text[:at].rpartition(" ")[2]
                places.append((value in self.used, _said_misplaced(before, words), at, -len(said), value))
        return [place[-1] for place in sorted(places, key=lambda place: place[:4])]

    # -- names

    def names(self):
        """[(name, the lower-case word before it)]: runs of capitalised words that do not begin a sentence."""
        return self._once("names", self._find_names)

    def _find_names(self):
        names = []
        for sentence in re.split(_SAID_SENTENCE, self.text):
            run, before, last = [], "", ""
            for at, word in enumerate(sentence.split() + [""]):
                bare = word.strip(",;()\"'?!.")
                if at and re.fullmatch(_SAID_PROPER, bare) and bare not in _SAID_NO_NAMES:
                    if not run:
                        before = last
                    run.append(bare[:-2] if bare.endswith("'s") else bare)
                    if bare == word:
                        continue
                if run:
                    names.append((" ".join(run), before))
                    run = []
                last = bare.lower()
        return names

    def _known(self, known):
        """[(name, the word before it)] of well-known names in any letter case. known: first word -> names."""
        words, found, text = self._spoken(), [], self.text.lower()
        for at, (word, start) in enumerate(words):
            for name in known.get(word, ()):
                end = start + len(name)
                if text.startswith(name, start) and not text[end:end + 1].isalpha():
                    said = self.text[start:end]
                    found.append((said if said != name else name.title(), words[at - 1][0] if at else ""))
                    break
        return found

    def _spoken(self):
        """[(word in lower case, where it begins)]."""
        return self._once("spoken", lambda: [(match.group(), match.start())
                                             for match in re.finditer(r"[^\W\d_]+", self.text.lower())])

    def places(self):
        """[(place, the word before it)], cities that are known and names behind words such as "in"."""
        def find():
            known = self._known(_SAID_PLACES)
            taken = " | ".join(name for name, _ in known)
            others = [(name, before) for name, before in self.names()
                      if before in _SAID_BEFORE_PLACES and name not in taken
                      and not any(part.lower() in HINT_KNOWN_LANGUAGES for part in name.split())]
            longer = {part: name for name, _ in others for part, _ in known if part in name}
            found = [(longer.get(name, name), before) for name, before in known]
            found += [pair for pair in others if pair[0] not in longer.values()]
            order = self.text.lower()
            return sorted(found, key=lambda pair: order.find(pair[0].lower()))
        return self._once("places", find)

    def people(self):
        """Names that are no places, those behind words such as "for" first."""
        def find():
            places = {name for name, _ in self.places()} | {name for name, _ in self._known(_SAID_COUNTRIES)}
            names = [(name, before) for name, before in self.names()
                     if name not in places and name.lower() not in HINT_KNOWN_LANGUAGES]
            firsts = HINT_TEXTS["firstname"]
            return [name for name, before in sorted(names, key=lambda pair: not (
                pair[1] in _SAID_BEFORE_PEOPLE or pair[0].split()[0] in firsts))]
        return self._once("people", find)

    def _placed(self, words):
        """Places for a property of these words: an origin is what "from" stands before, and so on."""
        return [name for name, before in sorted(self.places(), key=lambda pair: _said_misplaced(pair[1], words))]

    def _languages(self, words):
        """Languages in lower case; none that the text wants at the other end of a translation."""
        spoken = self._spoken()
        found = [(word, spoken[at - 1][0] if at else "") for at, (word, _) in enumerate(spoken)
                 if word in HINT_KNOWN_LANGUAGES]
        return [word for word, before in found if _said_misplaced(before, words) < 2]

    # -- everything else

    def quoted(self):
        """[(text, the words before it, nearest first)]."""
        def find():
            return [(next(filter(None, match.groups())), _said_words(self.text[:match.start()])[:-6:-1])
                    for match in re.finditer(_SAID_QUOTED, self.text)]
        return self._once("quoted", find)

    def dates(self):
        """Dates as YYYY-MM-DD."""
        def find():
            found = []
            if not self._has_digit():
                return found
            for match in re.finditer(_SAID_DATES, self.text):
                year, month, day, name, name_day, name_year, other_day, other, other_year = match.groups()
                if name or other:
                    month = "%02d" % (1 + _SAID_MONTHS.index((name or other).lower()))
                    day = "%02d" % int(name_day or other_day)
                    year = name_year or other_year or _SAID_YEAR
                date = "%s-%s-%s" % (year, month, day)
                if format_holds("date", date):
                    found.append(date)
            return found
        return self._once("dates", find)

    def times(self):
        """Times as HH:MM."""
        def find():
            found = []
            for match in re.finditer(_SAID_TIME, self.text):
                hour, minute, half, hour_alone, half_alone = match.groups()
                half = (half or half_alone or "").lower()[:1]
                hour = int(hour or hour_alone)
                if half and 1 <= hour <= 12:
                    hour = hour % 12 + (12 if half == "p" else 0)
                found.append("%02d:%s" % (hour, minute or "00"))
            return found
        return self._once("times", find)

    def numbers(self):
        """[SaidNumber] of all numbers that are no part of a date, a time or a longer code, in the text's order."""
        return self._once("numbers", self._find_numbers)

    def _find_numbers(self):
        words, found = self._spoken(), []
        for at, (word, start) in enumerate(words):
            if word in _SAID_SMALL:
                found.append((start, _SAID_SMALL[word], "", at, at + 1))
        if not self._has_digit():
            taken = []
        else:
            taken = [match.span() for pattern in (_SAID_DATES, _SAID_TIME) for match in re.finditer(pattern, self.text)]
            starts = [start for _, start in words]
            for match in re.finditer(_SAID_NUMBER, self.text):
                sign, digits, percent = match.groups()
                text = digits.replace(",", "")
                value = float(text) if "." in text else int(text)
                at = bisect_left(starts, match.start())
                found.append((match.start(), value, sign or percent, at, at))
        singular = [said_singular(word) for word, _ in words]
        return [SaidNumber(value, sign, tuple(singular[max(0, before - 3):before][::-1]),
                           tuple(singular[after:after + 3]))
                for start, value, sign, before, after in sorted(found)
                if not any(low <= start < high for low, high in taken)]

    def _has_digit(self):
        return self._once("digit", lambda: re.search(_SAID_DIGIT, self.text) is not None)

    def _once(self, key, find):
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def _matches(self, kind):
        def find():
            found = []
            for match in re.finditer(_SAID_PATTERNS[kind], self.text):
                said = (next(filter(None, match.groups()), "") or match.group()).strip().rstrip(".,;:!?")
                if said and said not in found:
                    found.append(said)
            return found
        return self._once(("matches", kind), find)

    def _vocabulary(self, kind):
        known = HINT_KNOWN_WORDS[kind].split()
        said = [word for word, _ in self._spoken() if word in known]
        return [word.title() if kind in ("weekday", "month") else word for word in said]

    def candidates(self, kind, words, code):
        """Strings for a property of a kind, the best first. words: set of the property's words; code: whether a
        language or a country is to be a code."""
        found = []
        if kind in _SAID_PATTERNS:
            found += self._matches(kind)
            if kind == "email":
                found += ["%s@example.com" % name.lower().replace(" ", ".") for name in self.people()
                          if name.isascii() and name.replace(" ", "").isalpha()]
            elif kind == "ip":
                found = [said for said in found if format_holds("ipv4", said)]
            elif kind == "phone":
                found = [said for said in found if sum(map(str.isdigit, said)) >= 7 and said not in self.dates()]
            elif kind == "expression":
                found = [said.strip(" ,") for said in found if said.count("(") == said.count(")")]
        elif kind == "date":
            found += self.dates()
        elif kind == "time":
            found += self.times()
        elif kind == "datetime":
            times = self.times() or ["09:00"]
            found += ["%sT%s:00Z" % (date, times[min(at, len(times) - 1)]) for at, date in enumerate(self.dates())]
        elif kind in ("city", "region", "street"):
            found += self._placed(words)
            if kind == "city" and not found:
                found += [name for name, before in self.names() if before not in _SAID_BEFORE_PEOPLE
                          and name.split()[0] not in HINT_TEXTS["firstname"]]
        elif kind in ("country", "countrycode"):
            found += [] if code or kind == "countrycode" else [name for name, _ in self._known(_SAID_COUNTRIES)]
        elif kind == "language":
            found += [HINT_KNOWN_LANGUAGES[word] if code else word.title() for word in self._languages(words)]
        elif kind == "currency":
            found += [HINT_KNOWN_CURRENCIES[word] for word, _ in self._spoken() if word in HINT_KNOWN_CURRENCIES]
        elif kind in ("person", "firstname", "lastname"):
            part = {"firstname": slice(0, 1), "lastname": slice(1, None)}.get(kind, slice(None))
            found += filter(None, (" ".join(name.split()[part]) for name in self.people()))
        if kind in HINT_KNOWN_WORDS:
            found += self._vocabulary(kind)
        found += self._said_aloud(kind, words)
        if kind in ("company", "product", "song", "artist", "movie", "book", "query"):
            found += [name for name, _ in self.names()]
        return [said for said in found
                if said not in self.used and (kind == "url" or not re.search(_SAID_SHELL, said))]

    def _said_aloud(self, kind, words):
        """What stands in quotes, and what a search or a message is said to be about."""
        stems = {word[:4] for word in words if len(word) > 3}
        quoted = self.quoted()
        found = [text for text, before in quoted if any(word[:4] in stems for word in before)]
        if kind in _SAID_QUOTED_KINDS:
            found += [text for text, _ in quoted if text not in found]
        if kind == "query":
            found += [match.group(1).strip(" ,'") for match in re.finditer(_SAID_QUERY, self.text)]
        if kind == "sentence":
            found += [match.group(1).strip(" '") for match in re.finditer(_SAID_SENTENCES, self.text)]
        if kind in ("title", "sentence"):
            found += [match.group(1) for match in re.finditer(_SAID_TASK, self.text)]
        if kind == "sentence":
            found += [match.group(1) for match in re.finditer(_SAID_REST, self.text)]
        return found
