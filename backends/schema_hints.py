"""Values that look real: what a property's name, its description and the user's words suggest.

In: names and texts of a schema, the user's text, a source of draws. Out: str, or a range for numbers; they only
suggest, the bounds are checked elsewhere. Nothing here is code or means anything to a shell. Any thread.
"""
import re

from backends.schema_formats import draw_format
from backends.schema_work import draw_below, pick_from

_HINT_CUT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HINT_EXAMPLE = re.compile(r"(?:e\.g\.|for example|such as)[,:]?\s+['\"`]?"
                           r"([A-Z0-9][A-Za-z0-9]*(?:[ ,'/.-]{1,2}[A-Za-z0-9]+){0,5})")
_HINT_SENTENCE = re.compile(r"[.!?:\n]+(?:\s|$)")
_HINT_PROPER = re.compile(r"[A-Z][\w'-]*[a-z][\w-]*")
_HINT_MOST_TEXT = 2000              # characters of a description or a user's text that are read

# Never taken for a name, though capitalised within a sentence.
_HINT_NO_NAMES = frozenset((
    "I", "Ok", "Please", "The", "What", "How", "Where", "When", "Who", "Why", "Could", "Can", "Would", "Is", "Are",
    "Do", "Does", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "January", "February",
    "March", "April", "May", "June", "July", "August", "September", "October", "November", "December", "Celsius",
    "Fahrenheit", "English"))

# kind: the words that suggest it. The first kind of which one is among the property's words is taken, so special
# ones stand before general ones ("city name" is a city, "user id" is an id).
_HINT_KINDS = (
    ("command", "command cmd script shell bash exec argv cmdline"),
    ("email", "email mail emails"),
    ("url", "url uri link href website webpage homepage endpoint webhook"),
    ("uuid", "uuid guid"),
    ("phone", "phone telephone mobile fax tel"),
    ("ip", "ip ipv ipaddress"),
    ("host", "hostname domain host fqdn"),
    ("secret", "password token secret apikey key passphrase pin"),
    ("currency", "currency"),
    ("language", "language lang locale"),
    ("timezone", "timezone tz"),
    ("mime", "mime mimetype"),
    ("path", "path file filename filepath folder directory"),
    ("username", "username login handle nickname"),
    ("color", "color colour"),
    ("unit", "unit units"),
    ("zip", "zip zipcode postcode postal"),
    ("country", "country nation"),
    ("city", "city town location place destination origin departure arrival municipality locations cities where"),
    ("region", "region state province county"),
    ("street", "street address"),
    ("company", "company organization organisation employer vendor supplier brand manufacturer"),
    ("product", "product item sku article"),
    ("datetime", "datetime timestamp created updated deleted createdat updatedat modified"),
    ("date", "date day birthday deadline due checkin checkout dob"),
    ("time", "time clock hour"),
    ("duration", "duration"),
    ("version", "version"),
    ("expression", "expression formula equation calculation"),
    ("code", "code snippet source sourcecode program"),
    ("firstname", "firstname forename given"),
    ("lastname", "lastname surname family"),
    ("department", "department team"),
    ("job", "job occupation profession role position"),
    ("gender", "gender sex"),
    ("category", "category genre kind type group"),
    ("tag", "tag label keyword topic subject hobby interest skill"),
    ("status", "status phase stage"),
    ("priority", "priority severity urgency"),
    ("sentiment", "sentiment mood tone"),
    ("ticker", "ticker stock"),
    ("title", "title headline heading"),
    ("query", "query search question term q"),
    ("sentence", "description summary text content body message comment note reason explanation answer details bio "
                 "reasoning rationale thought instruction instructions prompt review feedback abstract"),
    ("person", "name person author owner user customer assignee contact attendee participant sender recipient player "
               "employee patient guest fullname speaker"),
    ("id", "id identifier ref reference number no"),
)
HINT_FIXED_KINDS = ("command", "code")       # never taken from examples or from what the user says
_HINT_RANKS = {word: (rank, kind) for rank, (kind, words) in reversed(tuple(enumerate(_HINT_KINDS)))
               for word in words.split()}

_HINT_TEXTS = {
    "command": ("echo hello",), "code": ("echo hello",), "expression": ("2 + 2", "12 + 30", "7 + 8"),
    "secret": ("example",),
    "currency": ("EUR", "USD", "GBP", "JPY", "CHF"), "language": ("en", "de", "fr", "es", "nb"),
    "timezone": ("Europe/Oslo", "Europe/Berlin", "America/New_York", "Asia/Tokyo", "UTC"),
    "mime": ("text/plain", "application/json", "image/png"),
    "path": ("notes.txt", "report.pdf", "photos/garden.jpg", "data/prices.csv"),
    "username": ("anna42", "ben_larsen", "clara.n", "hugo7"),
    "color": ("blue", "green", "red", "amber", "teal"), "unit": ("celsius", "kilometre", "kilogram", "litre"),
    "zip": ("10115", "75001", "20095", "94103", "50667"),
    "country": ("Norway", "Germany", "France", "Japan", "Canada", "Portugal"),
    "city": ("Oslo", "Berlin", "Paris", "Kyoto", "Lisbon", "Toronto", "Vienna", "Bergen"),
    "region": ("Bavaria", "California", "Ontario", "Tuscany", "Viken"),
    "street": ("12 Harbour Street", "7 Orchard Lane", "48 Station Road", "3 Mill Square"),
    "company": ("Northwind Traders", "Blue Harbour Ltd", "Acme Corporation", "Willow Works"),
    "product": ("desk lamp", "garden chair", "water bottle", "notebook", "rain jacket"),
    "version": ("1.0.0", "1.2.3", "2.4.1"),
    "department": ("Sales", "Engineering", "Support", "Finance"),
    "job": ("engineer", "teacher", "designer", "nurse", "analyst"), "gender": ("female", "male", "other"),
    "category": ("general", "travel", "garden", "music", "sports"),
    "tag": ("travel", "garden", "music", "weather", "cooking", "history"),
    "status": ("active", "pending", "done", "open"), "priority": ("low", "medium", "high"),
    "sentiment": ("positive", "neutral", "negative"), "ticker": ("ACME", "NWND", "BLHB"),
    "title": ("The quiet harbour", "A walk by the river", "Notes from the garden", "The last train north"),
    "query": ("weather today", "best hiking trails", "opening hours", "train times"),
    "sentence": ("The harbour was quiet in the morning.", "A short note about the garden and the river.",
                 "The train arrives before noon.", "Everything works as expected."),
    "duration": ("30 minutes", "2 hours", "45 minutes"),
    "firstname": ("Anna", "Ben", "Clara", "David", "Elena", "Hugo", "Iris", "Noah"),
    "lastname": ("Miller", "Larsen", "Novak", "Rossi", "Schmidt", "Tanaka", "Olsen"),
    "time": ("09:30", "12:00", "14:15", "18:45"),
}
_HINT_WORDS = ("harbour", "lantern", "meadow", "river", "orchard", "compass", "garden", "window", "signal", "market",
               "summer", "letter", "bridge", "valley", "copper", "island", "winter", "pepper", "thistle", "maple",
               "candle", "forest", "hazel", "basket", "anchor", "pebble", "willow", "cinder")
_HINT_FORMATS = {"email": "email", "url": "uri", "uuid": "uuid", "ip": "ipv4", "host": "hostname", "date": "date",
                 "datetime": "date-time"}

# name of a number: (lowest, highest, decimals)
_HINT_NUMBERS = {
    "age": (18, 80, 0), "year": (2020, 2026, 0), "month": (1, 12, 0), "day": (1, 28, 0), "hour": (8, 20, 0),
    "minute": (0, 59, 0), "second": (0, 59, 0), "price": (2, 200, 2), "amount": (5, 500, 2), "cost": (2, 200, 2),
    "total": (10, 900, 2), "salary": (30000, 90000, 0), "budget": (100, 5000, 0), "discount": (5, 50, 0),
    "latitude": (-60, 70, 4), "lat": (-60, 70, 4), "longitude": (-170, 170, 4), "lng": (-170, 170, 4),
    "lon": (-170, 170, 4), "temperature": (-5, 30, 1), "humidity": (20, 90, 0), "percent": (0, 100, 0),
    "percentage": (0, 100, 0), "score": (0, 1, 2), "confidence": (0, 1, 2), "probability": (0, 1, 2),
    "rate": (0, 1, 2), "ratio": (0, 1, 2), "weight": (1, 90, 1), "height": (10, 200, 0), "width": (10, 200, 0),
    "length": (1, 200, 0), "distance": (1, 400, 1), "duration": (5, 90, 0), "port": (8000, 9000, 0),
    "id": (1000, 9999, 0), "count": (1, 10, 0), "quantity": (1, 10, 0), "limit": (1, 20, 0), "size": (1, 40, 0),
    "num": (1, 10, 0), "page": (1, 5, 0), "rating": (1, 5, 0), "stars": (1, 5, 0), "index": (0, 9, 0),
    "offset": (0, 20, 0), "priority": (1, 5, 0), "level": (1, 5, 0), "guests": (1, 6, 0), "adults": (1, 4, 0),
    "children": (0, 3, 0), "nights": (1, 10, 0), "timestamp": (1700000000, 1780000000, 0), "calories": (80, 700, 0),
    "stock": (1, 90, 0), "days": (1, 14, 0), "timeout": (5, 60, 0), "speed": (1, 120, 0), "k": (1, 10, 0)}


def hint_words(text):
    """ "shippingAddress_line2" -> ["shipping", "address", "line"]."""
    return [word.lower() for word in _HINT_CUT.findall(text[:_HINT_MOST_TEXT])]


def _hint_singular(word):
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") else word


def _hint_best(words):
    """The first kind of the table that one of the words suggests, or None."""
    ranks = [_HINT_RANKS.get(word) or _HINT_RANKS.get(_hint_singular(word)) for word in words]
    return min(filter(None, ranks), default=(0, None))[1]


class ValueHints:
    """What the user's text and the schema suggest. One object a call."""

    def __init__(self, text, draw):
        self._draw = draw
        text = text[:_HINT_MOST_TEXT]
        self._names = self._proper_names(text)
        self._names_used = 0
        self._said = frozenset(re.findall(r"\w+", text.lower()))

    @staticmethod
    def _proper_names(text):
        """Runs of capitalised words that do not begin a sentence: ["Oslo", "New York"]."""
        names = []
        for sentence in _HINT_SENTENCE.split(text):
            run = []
            for word in sentence.split()[1:]:
                bare = word.strip(",;()\"'?!.")
                if _HINT_PROPER.fullmatch(bare) and bare not in _HINT_NO_NAMES:
                    run.append(bare[:-2] if bare.endswith("'s") else bare)
                    if bare == word:
                        continue
                if run:
                    names.append(" ".join(run))
                    run = []
            if run:
                names.append(" ".join(run))
        return names

    def is_said(self, text):
        """True when the user's text has this word."""
        return text.lower() in self._said

    def kind(self, name, schemas):
        """What a string is about: a kind of the table, or None."""
        words = hint_words(name)
        kind = _hint_best(words)
        if len(words) > 1 and (words[-1] == "id" or (words[-1] == "code" and kind == "code"
                                                     and _hint_best(words[:-1]) is None)):
            kind = "id"                 # "user id", "promo code"; not "source code"
        for key in ("title", "description"):
            for schema in schemas:
                text = schema.get(key)
                if kind is None and isinstance(text, str):
                    kind = _hint_best(hint_words(text)[:40])
        return kind

    def said_name(self, kind, name):
        """What the user named, for a property that asks for a place, a name or a query; None otherwise."""
        asks = kind in ("city", "query") or (kind == "person" and "name" in hint_words(name))
        if not self._names or not asks:
            return None
        name = self._names[min(self._names_used, len(self._names) - 1)]
        self._names_used += 1
        return name

    @staticmethod
    def described_example(schemas):
        """ "The city, e.g. San Francisco, CA" -> "San Francisco, CA"; None when nothing is described so."""
        for schema in schemas:
            text = schema.get("description")
            found = _HINT_EXAMPLE.search(text[:_HINT_MOST_TEXT]) if isinstance(text, str) else None
            if found:
                return found.group(1)
        return None

    def text(self, kind):
        """A string of the kind; one or two words for None."""
        draw = self._draw
        if kind in _HINT_FORMATS:
            return draw_format(_HINT_FORMATS[kind], draw)
        if kind == "phone":
            return "+1-555-01%02d" % draw_below(draw, 100)      # 555-0100 to 0199 are nobody's
        if kind == "id":
            return "%s-%d" % (pick_from(draw, "ABCDEFGH"), 1000 + draw_below(draw, 9000))
        if kind == "person":
            return pick_from(draw, _HINT_TEXTS["firstname"]) + " " + pick_from(draw, _HINT_TEXTS["lastname"])
        if kind in _HINT_TEXTS:
            return pick_from(draw, _HINT_TEXTS[kind])
        return self.words(1 + draw_below(draw, 2))

    def words(self, count):
        return " ".join(pick_from(self._draw, _HINT_WORDS) for _ in range(count))

    def property_name(self, taken):
        """A name for a property that the schema does not name."""
        word = pick_from(self._draw, _HINT_WORDS)
        return word if word not in taken else "%s_%d" % (word, len(taken) + 1)

    @staticmethod
    def number(name, schemas, whole):
        """(lowest, highest, decimals) for a number."""
        texts = [name] + [schema["title"] for schema in schemas if isinstance(schema.get("title"), str)]
        for text in texts:
            for word in reversed(hint_words(text)):
                found = _HINT_NUMBERS.get(word) or _HINT_NUMBERS.get(_hint_singular(word))
                if found and not (whole and found[2] and found[1] == 1):
                    return found
        return (1, 100, 0)      # clients read many a `number` as a count: 46, not 46.67
