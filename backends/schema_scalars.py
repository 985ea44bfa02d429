"""Strings and numbers that satisfy a JSON schema, and values that it lists.

In: SchemaDemands. Out: one value that meets them, the most real-looking first, or UnsatisfiableSchema. A text for
`pattern` comes from backends/schema_patterns.py. One object serves one call.
"""
from backends.hint_tables import HINT_FIXED_KINDS
from backends.schema_check import (SCHEMA_ANY, SCHEMA_ARRAY, SCHEMA_INTEGER, SCHEMA_NULL,
                                   SCHEMA_NUMBER, SCHEMA_OBJECT, SCHEMA_STRING, UnsatisfiableSchema, decimal_fraction,
                                   is_multiple, is_step, schema_bounds, schema_list, schema_number, schema_place,
                                   schema_size, value_type_bit)
from backends.schema_demands import SchemaGatherer
from backends.schema_formats import draw_format
from backends.schema_hints import hint_words
from backends.schema_regex import PatternError
from backends.schema_work import draw_below

SCHEMA_MOST_ITEMS = 10000           # what minItems, minLength and minProperties may ask for
SCHEMA_FEW_NUMBERS = 300            # tried in order, where the values of an array need not differ
SCHEMA_MOST_BITS = 14000            # of a whole number: Python writes up to 4300 digits

_SCHEMA_KEYWORD_BITS = (
    (SCHEMA_OBJECT, ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                     "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
                     "unevaluatedProperties")),
    (SCHEMA_ARRAY, ("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "additionalItems",
                    "unevaluatedItems")),
    (SCHEMA_STRING, ("pattern", "format", "minLength", "maxLength", "contentEncoding")),
    (SCHEMA_NUMBER, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")))


class StringDemand:
    """What one string has to be."""

    def __init__(self, writer, low, high, patterns, formats, demands):
        self.low = low
        self.high = high
        self.patterns = patterns        # [(text, path)]
        self._writer = writer
        self._formats = formats
        self._demands = demands

    def accepts(self, text):
        return (self.low <= len(text) and (self.high is None or len(text) <= self.high)
                and self._writer.meets(text, self._demands))

    def fitted(self, text, hints):
        """`text`, cut or lengthened by words to the bounds."""
        if len(text) < self.low:
            parts, size = [text], len(text)
            while size < self.low:
                word = hints.words(1)
                parts.append(word)
                size += 1 + len(word)
            text = " ".join(parts)[:max(self.low, 1)]
        if self.high is not None and len(text) > self.high:
            text = text[:self.high]
        if text.endswith(" "):
            text = text[:-1] + "s"
        return text

    def room(self, width, draw):
        """(characters beyond the shortest text, take them all) for one try; None when even that is too long."""
        extra = 4 + draw_below(draw, 9)
        if self.high is not None:
            extra = min(extra, self.high - width)
        if extra < 0:
            return None
        if width + extra < self.low or (self.low > width and draw.random() < 0.5):
            return self.low - width, True
        return extra, False


class NumberRange:
    """Numbers between bounds, near what a hint suggests."""

    def __init__(self, low, low_open, high, high_open, first, last, draw):
        self._low, self._low_open = low, low_open
        self._high, self._high_open = high, high_open
        self.draw = draw
        if low is not None and (last <= low or first < low):
            first = low
            last = max(last, first + 1) if last > low else low + 100
        if high is not None and (last > high or first > high):
            last = high
            first = first if first <= high else high - 100
            if low is not None and first < low:
                first = low
        self._first, self._last = first, last

    def integers(self, most):
        """Whole numbers: drawn ones, then `most` in order from the lower bound."""
        from math import ceil, floor
        low = None if self._low is None else ceil(self._low) + (self._low_open and ceil(self._low) == self._low)
        high = None if self._high is None else floor(self._high) - (self._high_open and floor(self._high) == self._high)
        if low is not None and high is not None and low > high:
            return
        first, last = ceil(self._first), floor(self._last)
        first = max(first, low) if low is not None else first
        last = min(last, high) if high is not None else last
        last = max(first, last)
        span = min(last - first + 1, 1000000)
        for _ in range(4):
            yield first + draw_below(self.draw, span)
        for wide in (1000, 1000, 1000000, 1000000):
            span = min(wide, high - first + 1) if high is not None else wide
            yield first + draw_below(self.draw, span)
        if low is None and high is None:
            low = first
        start = low if low is not None else high - most
        end = start + most if high is None else min(high, start + most)
        yield from range(start, end + 1)

    def decimals(self, digits):
        """Fractions: drawn ones of few digits, then of all, then the bounds and the middle."""
        try:
            first, span = float(self._first), float(self._last) - float(self._first)
        except OverflowError:
            yield from self.integers(SCHEMA_FEW_NUMBERS)
            return
        if span == float("inf"):
            first, span = 0.0, 1.0
        for places in (digits, digits, max(2, digits), max(2, digits), 6, 12):
            value = round(first + span * self.draw.random(), places)
            yield value if places else int(value)       # 46, which every reader of numbers takes
        for _ in range(4):
            yield first + span * self.draw.random()
        yield first + span / 2
        for bound in (self._low, self._high):
            if bound is not None:
                yield bound
        yield from (1.5, 0.5, 2.25, 0, 1, -1.5)

    def multiples(self, steps, whole):
        """Multiples of all steps, exact in decimals; those first that two floats divide into, too."""
        from fractions import Fraction
        from math import ceil, floor
        unit = Fraction(1) if whole else None
        for step in steps:
            ratio = decimal_fraction(step)
            if unit is None:
                unit = ratio
                continue
            shared = unit.denominator * ratio.denominator
            left, right = int(unit * shared), int(ratio * shared)
            a, b = left, right
            while b:
                a, b = b, a % b
            unit = Fraction(left // a * right, shared)
        low = None if self._low is None else ceil(decimal_fraction(self._low) / unit)
        high = None if self._high is None else floor(decimal_fraction(self._high) / unit)
        near, far = ceil(decimal_fraction(self._first) / unit), floor(decimal_fraction(self._last) / unit)
        near = near if low is None else max(low, near)
        far = max(near, far if high is None else min(high, far))
        counts = [near + draw_below(self.draw, min(far - near + 1, 1000000)) for _ in range(20)]
        start = low if low is not None else 0 if high is None else min(0, high)
        end = start + 200 if high is None else min(high, start + 200)
        counts += range(start, end + 1)
        second = []
        for count in counts:
            value = unit * count
            try:
                value = int(value) if value.denominator == 1 else float(value)
                if all((value / step).is_integer() or isinstance(value, int) and isinstance(step, int)
                       for step in steps):
                    yield value
                else:
                    second.append(value)
            except OverflowError:
                if isinstance(value, int):
                    second.append(value)
        yield from (value for value in second if all(is_multiple(value, step) for step in steps))


class SchemaScalars(SchemaGatherer):
    """Makes what holds no other values."""

    def build_listed(self, demands, listed, name, wanted):
        """One of the values that an enum or a const lists, checked against all that is wanted, whatever was chosen."""
        entry = min(listed, key=lambda item: 1 if "const" in item.schema else len(item.schema["enum"]))
        self.budget.spend(len(schema_list(listed[0].schema, "enum")) // 16)
        choices = [entry.schema["const"]] if "const" in entry.schema else entry.schema["enum"]
        start = draw_below(self.draw, len(choices))
        order = choices[start:] + choices[:start]
        if len(choices) <= 1000:
            said = self.hints.said.listed(order, set(hint_words(name)))
            plain = [value for value in order if value is not None]
            order = said + (plain + order if self.draw.random() < 0.9 else order)
        for value in order:
            if self.is_wanted(value, wanted, demands.taken):
                if isinstance(value, str):
                    self.hints.said.take(value)
                return value
        for entry in demands.entries:
            if entry.schema.get("nullable") is True and self.is_wanted(None, wanted, demands.taken):
                return None
        key = "const" if "const" in entry.schema else "enum"
        raise UnsatisfiableSchema(schema_place(listed[0].path + (key,)), "no listed value meets the other demands")

    def pick_type(self, demands, failures):
        bits = demands.bits
        if bits & SCHEMA_NUMBER == SCHEMA_NUMBER:
            bits &= ~SCHEMA_INTEGER     # one type, built with or without a fraction
        kinds = [1 << at for at in range(7) if bits & (1 << at)]
        if len(kinds) == 1:
            return kinds[0]
        key = ("type", demands.path)
        if bits & (SCHEMA_OBJECT | SCHEMA_ARRAY | SCHEMA_STRING):
            demands.options += len(kinds)
            self.chose = True
        kind = self.pick_least_failed(kinds, key, failures, lambda likely: self._suggested(likely, demands),
                                      demands.attempt)
        demands.picks.append((key, kind))
        return kind

    def _suggested(self, likely, demands):
        """Those of the types that the keywords speak of, null rarely."""
        suggested = 0
        for keyword_bits, words in _SCHEMA_KEYWORD_BITS:
            if any(word in entry.schema for entry in demands.entries for word in words):
                suggested |= keyword_bits
        if self.recursion(demands) > 2:
            suggested = SCHEMA_ANY & ~(SCHEMA_OBJECT | SCHEMA_ARRAY)    # a recursion ends in what holds nothing
        elif demands.bits == SCHEMA_ANY and not suggested:
            suggested = SCHEMA_STRING
        for mask in (suggested, SCHEMA_ANY & ~SCHEMA_NULL if self.draw.random() < 0.9 else SCHEMA_ANY):
            likely = [kind for kind in likely if kind & mask] or likely
        return likely

    def given_example(self, demands, bit):
        """(value,) of `examples`, `example` or, at times, a telling `default`; None when there is none that fits."""
        for entry in demands.entries:
            schema = entry.schema
            given = schema_list(schema, "examples")
            if not given and "example" in schema:
                given = [schema["example"]]
            if not given and "default" in schema and schema["default"] not in (None, "", [], {}):
                given = [schema["default"]] if self.draw.random() < 0.5 else []
            if given:
                value = given[draw_below(self.draw, len(given))]
                if value_type_bit(value) & (SCHEMA_NUMBER if bit & SCHEMA_NUMBER else bit) \
                        and self.meets(value, demands):
                    return (value,)
        return None

    def build_string(self, demands, name):
        low, high, low_path = 0, None, demands.path
        patterns = []
        for entry in demands.entries:
            schema = entry.schema
            least, most = schema_size(schema, "minLength"), schema_size(schema, "maxLength")
            if least is not None and least > low:
                low, low_path = least, entry.path + ("minLength",)
            if most is not None and (high is None or most < high):
                high = most
            if isinstance(schema.get("pattern"), str):
                patterns.append((schema["pattern"], entry.path + ("pattern",)))
                self.place = entry.path + ("pattern",)
                self.checker.pattern(schema["pattern"])
        if low > SCHEMA_MOST_ITEMS:
            raise UnsatisfiableSchema(schema_place(low_path), "more than %d characters are not made"
                                      % SCHEMA_MOST_ITEMS)
        if high is not None and high < low:
            raise UnsatisfiableSchema(schema_place(low_path), "the least length is above the greatest")
        formats = [entry.schema["format"] for entry in demands.having("format")
                   if isinstance(entry.schema["format"], str)]
        formats += ["json-string" for entry in demands.entries
                    if entry.schema.get("contentMediaType") == "application/json"]
        formats += ["byte" for entry in demands.entries if entry.schema.get("contentEncoding") == "base64"]
        self.met_format = self.met_format or bool(formats)
        wanted = StringDemand(self, low, high, patterns, formats, demands)
        for text in self._real_strings(demands, name, formats, wanted):
            if wanted.accepts(text):
                self.hints.said.take(text)
                self.hints.note_text(name, text)
                return text
        if patterns:
            return self._pattern_string(wanted)
        raise UnsatisfiableSchema(schema_place(demands.path + ("format",) if formats else demands.path),
                                  "no string of that format and length was found" if formats
                                  else "no string was found")

    def _real_strings(self, demands, name, formats, wanted):
        """Texts that look real, the best first; each is still to be checked."""
        hints, schemas = self.hints, demands.schemas()
        kind = hints.kind(name, schemas)
        if not formats and kind in HINT_FIXED_KINDS:
            yield hints.text(kind, name, schemas)
        yield from hints.said_strings(kind, name, schemas, formats)
        if kind not in HINT_FIXED_KINDS and not demands.attempt:
            found = self.given_example(demands, SCHEMA_STRING)
            if found is not None:
                yield found[0]
        described = None if formats or kind in HINT_FIXED_KINDS else hints.described_example(schemas)
        if described is not None:
            yield described
        for kind_of_format in formats:
            for attempt in range(5):
                text = hints.format_text(kind_of_format, name, schemas) if not attempt else draw_format(
                    kind_of_format, self.draw)
                if text is not None:
                    yield text
        if wanted.patterns:
            yield hints.text(kind, name, schemas)
            return
        for _ in range(3):
            yield wanted.fitted(hints.text(kind, name, schemas), hints)
        for _ in range(8):
            yield wanted.fitted(hints.words(3), hints)
        if demands.barred:              # what must not match a pattern may be anything
            yield ""
            for char in "aA0_-. ":
                yield char * max(1, wanted.low)

    def _pattern_string(self, wanted):
        """A text for one of the patterns that the others take, too."""
        checker, draw = self.checker, self.draw
        for attempt in range(48):
            text, path = wanted.patterns[attempt % len(wanted.patterns)]
            self.place = path
            try:
                pattern = checker.pattern(text)
                room = wanted.room(pattern.width, draw)
                if room is None:
                    continue
                extra, greedy = room
                wild = attempt // len(wanted.patterns) % 3
                made = pattern.sample(draw, extra, greedy, wild, self.budget)
            except (PatternError, UnsatisfiableSchema) as error:
                raise UnsatisfiableSchema(schema_place(path), getattr(error, "reason", str(error))) from None
            if attempt % 4 == 3 and len(wanted.patterns) > 1:
                # one that begins as the first asks and ends as the last does
                made = "".join(checker.pattern(each).sample(draw, 2, False, 0, self.budget)
                               for each, _ in wanted.patterns)
            if len(made) < wanted.low:
                grown = pattern.sample(draw, wanted.low - pattern.width, True, attempt % 3, self.budget)
                if len(grown) >= wanted.low:
                    made = grown
                elif attempt % 2:
                    made = self.hints.words(wanted.low)[:wanted.low - len(made)] + made     # it may begin anywhere
                else:
                    made = wanted.fitted(made, self.hints)
            if wanted.accepts(made):
                return made
        raise UnsatisfiableSchema(schema_place(wanted.patterns[0][1]), "no string was found that matches it and meets "
                                  "the other demands")

    def said_number(self, demands, name):
        """(value,) of a number that the user said for such a property; None when there is none that fits."""
        for number in self.hints.said_number(name, demands.schemas()):
            if self.meets(number.value, demands):
                self.hints.said.take(number)
                self.hints.note_number(name, number.value)
                return (number.value,)
        return None

    def build_number(self, demands, name, whole):
        low = high = None
        low_open = high_open = False
        steps, path = [], demands.path
        for entry in demands.entries:
            least, least_open, most, most_open = schema_bounds(entry.schema)
            if least is not None and (low is None or least > low or (least == low and least_open)):
                low, low_open, path = least, least_open, entry.path + ("minimum",)
            if most is not None and (high is None or most < high or (most == high and most_open)):
                high, high_open, path = most, most_open, entry.path + ("maximum",)
            step = schema_number(entry.schema, "multipleOf")
            if is_step(step):
                steps.append(step)
        infinite = float("inf")
        low = None if low == -infinite else low
        high = None if high == infinite else high
        if low == infinite or high == -infinite or (low is not None and high is not None and low > high):
            raise UnsatisfiableSchema(schema_place(path), "the bounds leave no number")
        first, last, decimals = self.hints.number(name, demands.schemas(), whole)
        numbers = NumberRange(low, low_open, high, high_open, first, last, self.draw)
        if steps:
            candidates = numbers.multiples(steps, whole)
        elif whole:
            candidates = numbers.integers(SCHEMA_MOST_ITEMS if demands.taken else SCHEMA_FEW_NUMBERS)
        else:
            candidates = numbers.decimals(decimals)
        for value in candidates:
            self.budget.spend(2)
            if isinstance(value, int) and value.bit_length() > SCHEMA_MOST_BITS:
                continue
            if self.meets(value, demands):
                self.hints.note_number(name, value)
                return value
        raise UnsatisfiableSchema(schema_place(path), "no number was found within the bounds")
