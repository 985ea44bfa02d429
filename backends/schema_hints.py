"""Values that look real: what a property's name, its title and description, the tool and the user's words suggest.

In: names and texts of a schema, the user's text, a source of draws. Out: str, or a range for numbers; they only
suggest, the bounds are checked elsewhere. Within an object they agree: a mail address with the name, a country with its
city, an end with its start, a total with its parts. Nothing here is code or means anything to a shell. Any thread.
"""
import re
from functools import lru_cache

from backends.hint_tables import (HINT_ABOUT_KINDS, HINT_FIXED_KINDS, HINT_NAMELIKE, HINT_NUMBERS, HINT_OWNER_KINDS,
                                  HINT_PLACE_FIELDS, HINT_PLACES, HINT_RANKS, HINT_STREETS, HINT_TEXTS, HINT_VAGUE,
                                  HINT_WORDS)
from backends.schema_formats import draw_format
from backends.schema_said import SaidValues, said_singular
from backends.schema_work import draw_below, pick_from

# Compiled at their first use, by re.
_HINT_CUT = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_HINT_EXAMPLE = (r"(?:e\.g\.|for example|such as)[,:]?\s+['\"`]?"
                 r"([A-Z0-9][A-Za-z0-9]*(?:[ ,'/.-]{1,2}[A-Za-z0-9]+){0,5})")
_HINT_DATE_STYLE = r"\b(?:YYYY|DD|MM)([-/.])(?:YYYY|DD|MM)\1(?:YYYY|DD|MM)\b|\bYYYYMMDD\b"
_HINT_CODES = r"(?i)\b(?:iso|code|two-letter|three-letter|alpha-[23]|639|3166|bcp)\b"
_HINT_MOST_TEXT = 2000              # characters of a description that are read

_HINT_FORMATS = {"email": "email", "url": "uri", "uuid": "uuid", "ip": "ipv4", "host": "hostname", "date": "date",
                 "datetime": "date-time"}
# A format of JSON Schema says its kind by itself.
_HINT_FORMAT_KINDS = {"email": "email", "idn-email": "email", "uri": "url", "url": "url", "iri": "url", "uuid": "uuid",
                      "ipv4": "ip", "date": "date", "date-time": "datetime", "hostname": "host"}

# Words that say which of two ends something is.
_HINT_STARTS = frozenset(
    "start begin from since checkin departure created valid opening min minimum lowest open low".split())
_HINT_ENDS = frozenset("end finish until to till checkout return updated modified due expiry expiration expires "
                       "closing max maximum highest close deadline high".split())
# Words that say what of somebody or something a property is, but not whose.
_HINT_ATTRIBUTES = frozenset(HINT_RANKS) - frozenset(
    "author owner customer assignee contact attendee participant sender recipient player employee patient guest "
    "speaker manager teacher student passenger driver director user destination origin departure arrival employer vendor "
    "supplier billing shipping airport venue birthplace capital hometown".split()) | frozenset(
    "code latitude longitude lat lng lon first last full iso currency number line".split()) | _HINT_STARTS | _HINT_ENDS

_HINT_NAME_PARTS = {"first": "firstname", "given": "firstname", "last": "lastname", "family": "lastname"}
_HINT_WHEN = frozenset(("date", "time", "datetime", "timestamp"))
_HINT_MONEY = frozenset("price cost budget amount total fee balance salary tip tax deposit fare payment".split())
_HINT_COUNTED = frozenset("quantity count amount number num limit max result top n k size".split())
_HINT_OPERANDS = frozenset(
    "a b c x y n m num number value operand first second left right base exponent addend factor".split())
_HINT_PEOPLE = frozenset("guest people person adult party attendee traveler passenger seat ticket".split())
# a unit behind a number: the words of a property that it fits
_HINT_UNITS = {
    "degree": "temperature temp", "celsius": "temperature temp", "fahrenheit": "temperature temp", "year": "age year",
    "kilometer": "distance radius", "km": "distance radius", "mile": "distance radius",
    "meter": "distance height length", "kg": "weight", "pound": "weight price amount", "cm": "height width length",
    "minute": "duration minute",
    "hour": "duration hour", "second": "duration timeout second", "percent": "percent percentage discount rate",
    "dollar": "price amount budget cost", "euro": "price amount budget cost", "usd": "amount price",
    "eur": "amount price", "star": "rating star", "calory": "calory"}
_HINT_LEADS = frozenset("page limit age rating budget under below over above least most about of size number id room "
                        "floor level version top first last next within".split())


@lru_cache(maxsize=512)             # the same schemas come again and again
def hint_words(text):
    """ "shippingAddress_line2" -> ("shipping", "address", "line")."""
    return tuple([word.lower() for word in re.findall(_HINT_CUT, text[:_HINT_MOST_TEXT])])


@lru_cache(maxsize=512)
def _hint_best(words):
    """The first kind of the table that one of the words (a tuple) suggests, or None."""
    ranks = [HINT_RANKS.get(word) or HINT_RANKS.get(said_singular(word)) for word in words]
    return min(filter(None, ranks), default=(0, None))[1]


@lru_cache(maxsize=512)
def _hint_own_kind(words):
    """What the words (a tuple) of a property's name say together."""
    kind = _hint_best(words)
    if len(words) < 2:
        return kind
    if words[-1] == "name" and words[-2] in _HINT_NAME_PARTS:
        return _HINT_NAME_PARTS[words[-2]]
    if words[-1] == "id" or (words[-1] == "code" and kind == "code" and _hint_best(words[:-1]) is None):
        return "id"                     # "user id", "promo code"; not "source code"
    if kind == "code" and words[-1] == "code":
        return _hint_best(words[:-1])   # "country code"
    if words[-1] in _HINT_WHEN and kind is not None:
        return "datetime" if words[-1] == "timestamp" else words[-1]        # a departure's date is no place
    return kind


class _HintObject:
    """What was said of one object so far, so that the rest agrees with it."""

    def __init__(self, owner):
        self.owner = owner              # the kind that the object itself is of, or None
        self.people = {}                # subject -> (first name, last name)
        self.places = {}                # subject -> a row of HINT_PLACES
        self.ends = {}                  # (subject, "start" or "end") -> (year, month, day)
        self.numbers = {}               # the words of a number's name -> its value


class ValueHints:
    """What the user's text and the schema suggest. One object a call.

    text: the user's. about: the tool's name and description.
    """

    def __init__(self, text, draw, about=""):
        self._draw = draw
        self.said = SaidValues(text)
        self._about = _hint_best(tuple([word for word in hint_words(about) if HINT_RANKS.get(word, (0, ""))[1]
                                        in HINT_ABOUT_KINDS])) if about else None
        self._objects = [_HintObject(None)]

    # -- objects

    def enter(self, name, schemas):
        """An object begins: what is said from here on is of it. name: of the property that it stands in."""
        titles = [schema["title"] for schema in schemas if isinstance(schema.get("title"), str)]
        kind = None
        for text in [name] + titles:
            kind = kind or _hint_best(hint_words(text))
        self._objects.append(_HintObject(kind if kind in HINT_OWNER_KINDS else None))

    def leave(self):
        self._objects.pop()

    def next_item(self):
        """Another item of an array of strings or numbers begins: it need not agree with the one before."""
        self._objects[-1] = _HintObject(self._objects[-1].owner)

    # -- kinds

    def kind(self, name, schemas):
        """What a string is about: a kind of the table, or None."""
        words = hint_words(name)
        kind = _hint_own_kind(words)
        if HINT_NAMELIKE.issuperset(words) and words and self._objects[-1].owner:
            return self._objects[-1].owner          # the name of a city
        for key in ("title", "description"):
            for schema in schemas:
                text = schema.get(key)
                if kind is None and isinstance(text, str):
                    kind = _hint_best(hint_words(text)[:40])
        if self._about and (kind is None or kind == "query") and not HINT_VAGUE.isdisjoint(words):
            kind = self._about
        if kind == "country" and self._is_code(words, schemas):
            kind = "countrycode"
        return kind

    @staticmethod
    def _is_code(words, schemas):
        """Whether a country or a language is wanted as its code."""
        if not {"code", "iso", "locale"}.isdisjoint(words):
            return True
        return any(isinstance(schema.get("description"), str)
                   and re.search(_HINT_CODES, schema["description"][:_HINT_MOST_TEXT])
                   or schema.get("maxLength") in (2, 3)
                   for schema in schemas)

    def said_strings(self, kind, name, schemas, formats):
        """What the user said for such a property, the best first; each is still to be checked."""
        if kind in HINT_FIXED_KINDS:
            return []
        for form in formats:
            kind = _HINT_FORMAT_KINDS.get(form, kind)
        words = set(hint_words(name))
        found = self.said.candidates(kind, words, self._is_code(words, schemas))
        if kind == "date":
            return [self._styled(date, schemas) for date in found]
        return found

    @staticmethod
    def described_example(schemas):
        """ "The city, e.g. San Francisco, CA" -> "San Francisco, CA"; None when nothing is described so."""
        for schema in schemas:
            text = schema.get("description")
            found = re.search(_HINT_EXAMPLE, text[:_HINT_MOST_TEXT]) if isinstance(text, str) else None
            if found:
                return found.group(1)
        return None

    # -- strings

    def text(self, kind, name, schemas=()):
        """A string of the kind; one or two words for None."""
        draw = self._draw
        words = hint_words(name)
        method = self._METHODS.get(kind)
        if method is not None:
            return method(self, words, schemas)
        if kind in HINT_PLACE_FIELDS:
            return self._place(words)[HINT_PLACE_FIELDS[kind]]
        if kind in _HINT_FORMATS:
            return draw_format(_HINT_FORMATS[kind], draw)
        if kind in HINT_TEXTS:
            return pick_from(draw, HINT_TEXTS[kind])
        return self.words(1 + draw_below(draw, 2))

    def format_text(self, form, name, schemas):
        """A string of a format that agrees with the object so far, or None when the format is not one of those."""
        if form in ("email", "idn-email"):
            return self._email(hint_words(name), schemas)
        if form in ("date", "date-time"):
            date = "%04d-%02d-%02d" % self._day(hint_words(name))
            return date if form == "date" else date + draw_format("date-time", self._draw)[10:]
        return None

    @staticmethod
    def _subject(words):
        """Whose or what's property it is: "billing city" and "billing country" are of one place."""
        return tuple(word for word in words if word not in _HINT_ATTRIBUTES)

    def _known(self, table, words, draw):
        """What is known of a subject; drawn at the first need."""
        subject = self._subject(words)
        if subject not in table:
            table[subject] = draw()
        return table[subject]

    def _place(self, words):
        return self._known(self._objects[-1].places, words, lambda: pick_from(self._draw, HINT_PLACES))

    def _person(self, words):
        return self._known(self._objects[-1].people, words, lambda: (
            pick_from(self._draw, HINT_TEXTS["firstname"]), pick_from(self._draw, HINT_TEXTS["lastname"])))

    def _name(self, words, schemas):
        return " ".join(self._person(words))

    def _first_name(self, words, schemas):
        return self._person(words)[0]

    def _last_name(self, words, schemas):
        return self._person(words)[1]

    def _email(self, words, schemas):
        return "%s@example.%s" % (".".join(self._person(words)).lower(), pick_from(self._draw, ("com", "org")))

    def _username(self, words, schemas):
        first, last = self._person(words)
        return pick_from(self._draw, ("%s.%s", "%s_%s")) % (first.lower(), last.lower())

    def _phone(self, words, schemas):
        return "+1-555-01%02d" % draw_below(self._draw, 100)        # 555-0100 to 0199 are nobody's

    def _id(self, words, schemas):
        return "%s-%d" % (pick_from(self._draw, "ABCDEFGH"), 1000 + draw_below(self._draw, 9000))

    def _street(self, words, schemas):
        return "%d %s" % (1 + draw_below(self._draw, 90), pick_from(self._draw, HINT_STREETS))

    def _coordinates(self, words, schemas):
        return "%.4f, %.4f" % self._place(words)[7:]

    def _color(self, words, schemas):
        if "hex" in words or any("hex" in str(schema.get("description")).lower() for schema in schemas):
            return "#" + "".join(pick_from(self._draw, "0369cf") * 2 for _ in range(3))
        return pick_from(self._draw, HINT_TEXTS["color"])

    def _hash(self, words, schemas):
        size = 32 if "md" in words else 40 if "commit" in words else 64
        return "".join(pick_from(self._draw, "0123456789abcdef") for _ in range(size))

    def _isbn(self, words, schemas):
        digits = "9780" + "".join(pick_from(self._draw, "0123456789") for _ in range(8))
        check = -sum(int(digit) * (3 if at % 2 else 1) for at, digit in enumerate(digits)) % 10
        return "978-0-%s-%s-%d" % (digits[4:7], digits[7:], check)

    def _flight(self, words, schemas):
        return "%s%d" % (pick_from(self._draw, ("XA", "XB", "XC")), 100 + draw_below(self._draw, 900))

    def _image(self, words, schemas):
        return "https://example.com/images/%s.png" % pick_from(self._draw, HINT_WORDS)

    def _date(self, words, schemas):
        return self._styled("%04d-%02d-%02d" % self._day(words), schemas)

    def _time(self, words, schemas):
        """HH:MM; an end after its start."""
        hour, role = 8 + draw_below(self._draw, 6), self._role(words)
        if role == "end":
            hour += 6
        return "%02d:%02d" % (hour, 5 * draw_below(self._draw, 12))

    @staticmethod
    def _role(words):
        return "start" if not _HINT_STARTS.isdisjoint(words) else "end" if not _HINT_ENDS.isdisjoint(words) else None

    def _datetime(self, words, schemas):
        return self.format_text("date-time", " ".join(words), schemas)

    @staticmethod
    def _styled(date, schemas):
        """YYYY-MM-DD, written as a description asks: "in DD/MM/YYYY"."""
        for schema in schemas:
            text = schema.get("description")
            found = re.search(_HINT_DATE_STYLE, text[:_HINT_MOST_TEXT]) if isinstance(text, str) else None
            if found:
                year, month, day = date.split("-")
                return found.group().replace("YYYY", year).replace("MM", month).replace("DD", day)
        return date

    def _day(self, words):
        """(year, month, day): an end after its start, a birthday long ago."""
        draw = self._draw
        if not {"birth", "birthday", "dob", "born"}.isdisjoint(words):
            return 1950 + draw_below(draw, 55), 1 + draw_below(draw, 12), 1 + draw_below(draw, 28)
        role = self._role(words)
        if role is None:
            return 2024 + draw_below(draw, 3), 1 + draw_below(draw, 12), 1 + draw_below(draw, 28)
        ends, subject = self._objects[-1].ends, self._subject(words)
        other = ends.get((subject, "end" if role == "start" else "start"))
        if other is None:
            day = 2024 + draw_below(draw, 3), 1 + draw_below(draw, 12), 1 + draw_below(draw, 28)
        else:
            from datetime import date, timedelta
            days = timedelta(1 + draw_below(draw, 14))
            day = (date(*other) + days if role == "end" else date(*other) - days).timetuple()[:3]
        ends[subject, role] = day
        return day

    _METHODS = {
        "person": _name, "firstname": _first_name, "lastname": _last_name, "email": _email, "username": _username,
        "phone": _phone, "id": _id, "street": _street, "coordinates": _coordinates, "color": _color, "hash": _hash,
        "isbn": _isbn, "flight": _flight, "image": _image, "date": _date, "time": _time, "datetime": _datetime}

    def words(self, count):
        return " ".join(pick_from(self._draw, HINT_WORDS) for _ in range(count))

    def property_name(self, taken):
        """A name for a property that the schema does not name."""
        word = pick_from(self._draw, HINT_WORDS)
        return word if word not in taken else "%s_%d" % (word, len(taken) + 1)

    def note_text(self, name, value):
        """A string of the object is settled: names and places that were said shape what follows."""
        holder, words = self._objects[-1], hint_words(name)
        kind = _hint_own_kind(words)
        if kind == "person" and value.isascii() and value.count(" ") == 1 and value.replace(" ", "").isalpha():
            holder.people[self._subject(words)] = tuple(value.split(" "))
        elif kind in ("firstname", "lastname") and value.isalpha() and value.isascii():
            first, last = self._person(words)
            holder.people[self._subject(words)] = (value, last) if kind == "firstname" else (first, value)
        elif kind in ("city", "country"):
            for place in HINT_PLACES:
                if place[HINT_PLACE_FIELDS[kind]] == value:
                    holder.places[self._subject(words)] = place
                    break
        elif kind in ("date", "datetime") and len(value) >= 10 and value[:10].replace("-", "").isdigit():
            role, day = self._role(words), value[:10].split("-")
            if role and len(day) == 3:
                holder.ends[self._subject(words), role] = tuple(map(int, day))

    # -- numbers

    def said_number(self, name, schemas):
        """The numbers that the user said for such a property, the best first."""
        numbers = self.said.numbers()
        if not numbers:
            return []
        words = [said_singular(word) for word in hint_words(name)]
        asked = set(words)
        found = []
        for number in numbers:
            if number in self.said.used:
                continue
            after, before = number.after[:2], number.before[:2]
            fits = set(after[:1]) | set(before[:1]) & _HINT_LEADS
            units = [word for unit in after[:1] for word in _HINT_UNITS.get(unit, "").split()]
            if asked & fits or asked & set(units) or asked & set(before[:1]) \
                    or asked & _HINT_PEOPLE and set(after[:1]) & _HINT_PEOPLE \
                    or number.sign == "%" and asked & {"percent", "percentage", "discount", "rate"}:
                found.append(number)
            elif number.sign and number.sign not in "%\u00b0" and asked & _HINT_MONEY:
                found.append(number)
            elif number.sign == "\u00b0" and asked & {"temperature", "temp"}:
                found.append(number)
        if not found and asked <= _HINT_OPERANDS:
            found = [number for number in numbers if number not in self.said.used]
        if not found and asked & _HINT_COUNTED and asked <= _HINT_COUNTED | {"of", "item"}:
            found = [number for number in numbers if number not in self.said.used and not number.sign
                     and number.value > 0 and number.value == int(number.value) and number.after[:1]
                     and number.after[0] not in _HINT_UNITS]
        return found

    def note_number(self, name, value):
        """A number of the object is settled."""
        self._objects[-1].numbers[tuple(hint_words(name))] = value

    def number(self, name, schemas, whole):
        """(lowest, highest, decimals) for a number."""
        texts = [name] + [schema["title"] for schema in schemas if isinstance(schema.get("title"), str)]
        for text in texts:
            words = hint_words(text)
            agreed = self._agreed(words)
            if agreed is not None:
                return agreed
            for word in reversed(words):
                found = HINT_NUMBERS.get(word) or HINT_NUMBERS.get(said_singular(word))
                if found and not (whole and found[2] and found[1] == 1):
                    return self._between(words, found)
        # clients read many a `number` as a count: 46, not 46.67
        return self._between(hint_words(name), (1, 100, 0))

    def _agreed(self, words):
        """What follows from the object so far: a total from its parts, coordinates from a place."""
        if not words:
            return None
        holder = self._objects[-1]
        if words[-1] in ("latitude", "lat", "longitude", "lng", "lon"):
            value = self._place(words)[7 if words[-1].startswith("lat") else 8]
            return value, value, 4
        if words[0] in ("total", "subtotal") and holder.numbers:
            price = [value for name, value in holder.numbers.items() if name and name[-1] in ("price", "cost", "rate")]
            count = [value for name, value in holder.numbers.items() if name and said_singular(name[-1]) in (
                "quantity", "count", "qty", "night", "unit", "hour")]
            if len(price) == 1 and len(count) == 1 and words[-1] in ("total", "subtotal", "price", "cost", "amount"):
                value = round(price[0] * count[0], 2)
                return value, value, 2
        return None

    def _between(self, words, found):
        """The range, above the lower end or below the upper one that stands already."""
        is_low, is_high = not _HINT_STARTS.isdisjoint(words), not _HINT_ENDS.isdisjoint(words)
        if is_low == is_high:
            return found
        rest = tuple(word for word in words if word not in _HINT_STARTS | _HINT_ENDS)
        for name, value in self._objects[-1].numbers.items():
            if tuple(word for word in name if word not in _HINT_STARTS | _HINT_ENDS) != rest or name == tuple(words):
                continue
            if is_high and not _HINT_STARTS.isdisjoint(name):
                return value, max(found[1], value + value / 2 + 1), found[2]
            if is_low and not _HINT_ENDS.isdisjoint(name) and value > 0:
                return min(found[0], value / 2), value, found[2]
        return found
