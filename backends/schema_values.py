"""Values that satisfy a JSON schema: what a tool call's arguments and a structured answer are filled with.

In: a schema as parsed from JSON, a seeded `random.Random`, the user's text. Out: a JSON-able value, the same for the
same seed on every Python, or UnsatisfiableSchema, which names the place. It does not say how the value is worded on
the wire. Any thread; one call is bounded in work and depth, whatever the schema.

How: at each place the schemas that apply (through $ref, allOf, and one drawn branch of anyOf, oneOf, if and of what
`not` leaves open) are gathered into one list of demands, and a value is built for all of them. Where a choice was
made or something can only be checked, the value is checked there, and other choices are tried. At last the whole
value is checked against the whole schema.
"""
from backends.schema_check import (SCHEMA_ANY, SCHEMA_ARRAY, SCHEMA_BARRED, SCHEMA_BOOLEAN, SCHEMA_FRACTION,
                                   SCHEMA_IN_PLACE_WORDS, SCHEMA_INTEGER, SCHEMA_NULL, SCHEMA_NUMBER, SCHEMA_OBJECT, SCHEMA_STRING,
                                   SchemaChecker, SchemaDocument, SchemaNegator, UnsatisfiableSchema, is_multiple,
                                   is_schema, is_step, json_equal, json_key, satisfies, schema_bounds, schema_dict,
                                   schema_list, schema_number, schema_place, schema_size, schema_strings,
                                   schema_type_bits, value_type_bit)
from backends.schema_formats import draw_format, format_holds
from backends.schema_hints import ValueHints
from backends.schema_patterns import PatternError, WorkBudget, WorkSpent, draw_below

SCHEMA_WORK = 300000                # units of about a microsecond for one value
SCHEMA_MOST_DEPTH = 90              # values in values, at three frames each under Python's limit of 1000
SCHEMA_MOST_NESTING = 60            # allOf in anyOf in ..., all at one place
SCHEMA_MOST_ITEMS = 10000           # what minItems, minLength and minProperties may ask for
SCHEMA_TRIES = 60                   # at one place, when there is something to choose
SCHEMA_ROOMY_NODES = 400            # a value of more nodes gets only what is required
SCHEMA_ROOMY_DEPTH = 8              # and so does one below this depth

_SCHEMA_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SCHEMA_NAME = {"type": "string"}   # what every property's name is
_SCHEMA_CHECKED_WORDS = frozenset(("unevaluatedProperties", "unevaluatedItems", "uniqueItems", "contains",
                                   "propertyNames"))
_SCHEMA_KEYWORD_BITS = (
    (SCHEMA_OBJECT, ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                     "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
                     "unevaluatedProperties")),
    (SCHEMA_ARRAY, ("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "additionalItems",
                    "unevaluatedItems")),
    (SCHEMA_STRING, ("pattern", "format", "minLength", "maxLength", "contentEncoding")),
    (SCHEMA_NUMBER, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")))


class _SchemaEntry:
    """One schema that applies at a place, and where it stands in the document."""

    __slots__ = ("schema", "path", "children", "is_open")

    def __init__(self, schema, path):
        self.schema = schema
        self.path = path
        self.children = []          # entries that apply through it, for what it leaves unevaluated
        self.is_open = True         # still being gathered: meeting it again is an endless reference


class _SchemaDemands:
    """All that is asked of the value at one place in one try."""

    def __init__(self, attempt, path, taken):
        self.attempt = attempt
        self.path = path
        self.taken = taken          # json_key of each value that it may not be, for items that must differ
        self.entries = []
        self.by_id = {}
        self.bits = SCHEMA_ANY
        self.choices = []           # (entry, keyword, [(schema, path)], weights by null) not yet made
        self.options = 0            # how many branches there were to choose from
        self.picks = []             # (id of the schema, keyword, index) that this try made
        self.references = []        # ids of the targets of references
        self.barred = []            # schemas that the value must fail
        self.checked = bool(taken)  # the value must be checked here

    def schemas(self):
        return [entry.schema for entry in self.entries]

    def having(self, key):
        return [entry for entry in self.entries if key in entry.schema]


class _SchemaWriter:
    """Makes one value."""

    def __init__(self, root, draw, hint, asserts_formats, budget):
        self.budget = budget
        self.place = ()             # where work is being done, for the message when it runs out
        self.met_format = False
        self._root = root
        self._draw = draw
        self._document = SchemaDocument(root)
        self._checker = SchemaChecker(self._document, budget, asserts_formats)
        self._negator = SchemaNegator(self._checker)
        self._hints = ValueHints(hint, draw)
        self._asserts_formats = asserts_formats
        self._active = {id(root): 1}    # target of a reference -> how often it is being filled now
        self._fits = {}                 # (id of a schema, levels) -> whether it can end within them
        self._level = 0                 # how deep in a recursion the place is
        self._nodes = 0

    # -- one place

    def value(self, wanted, name, depth, taken=()):
        """A value for a list of (schema, path).

        name: of the property, for what looks real. taken: json_key of each value that it may not be.
        """
        path = wanted[0][1] if wanted else self.place
        self.place = path
        if depth > SCHEMA_MOST_DEPTH:
            raise UnsatisfiableSchema(schema_place(path), "values nested deeper than %d are not made"
                                      % SCHEMA_MOST_DEPTH)
        self._nodes += 1
        problem, failures, tries, attempt = None, {}, 1, 0
        while attempt < tries:
            self.budget.spend(8)
            demands = _SchemaDemands(attempt, path, taken)
            try:
                self._gather_all(wanted, demands, failures, depth)
                made = self._build(demands, name, depth, failures)
                if not demands.checked or self._holds(made, wanted, demands):
                    return made
                problem = problem or UnsatisfiableSchema(schema_place(path), "no value was found that meets all of it")
            except UnsatisfiableSchema as error:
                problem = problem or error
            if demands.checked or demands.options:
                tries = min(SCHEMA_TRIES, 8 + 3 * demands.options)
            for pick in demands.picks:
                failures[pick] = failures.get(pick, 0) + 1
            attempt += 1
        raise problem

    def _holds(self, made, wanted, demands):
        return (not (demands.taken and json_key(made) in demands.taken)
                and all(self._checker.ok(made, schema) for schema, _ in wanted)
                and not any(self._checker.ok(made, schema) for schema in demands.barred))

    def accepts(self, value):
        """The last check, of the whole: (it holds, it holds also for a reader who takes formats as notes)."""
        checker = self._checker
        checker.format_failed = False
        if not checker.ok(value, self._root):
            return False, False
        if not checker.format_failed:
            return True, True
        return True, SchemaChecker(self._document, self.budget, False).ok(value, self._root)

    # -- gathering what applies

    def _gather_all(self, wanted, demands, failures, depth):
        for schema, path in wanted:
            self._gather(schema, path, None, demands, 0)
        made = 0
        while made < len(demands.choices):
            entry, keyword, branches = demands.choices[made]
            made += 1
            self._choose(entry, keyword, branches, demands, failures, depth, made)
        if not demands.bits:
            raise UnsatisfiableSchema(schema_place(demands.path + ("type",)), "no type is allowed by all of it")

    def _gather(self, schema, path, parent, demands, nesting):
        if schema is True:
            return
        if not isinstance(schema, dict):
            if schema is False:
                raise UnsatisfiableSchema(schema_place(path), "nothing is allowed here")
            raise UnsatisfiableSchema(schema_place(path), "a schema must be an object or a boolean")
        self.budget.spend(3)
        known = demands.by_id.get(id(schema))
        if known is not None:
            if known.is_open:
                raise UnsatisfiableSchema(schema_place(path), "it refers to itself without end")
            if parent is not None:
                parent.children.append(known)
            return
        if nesting > SCHEMA_MOST_NESTING:
            raise UnsatisfiableSchema(schema_place(path), "schemas nested deeper than %d are not read"
                                      % SCHEMA_MOST_NESTING)
        entry = _SchemaEntry(schema, path)
        demands.by_id[id(schema)] = entry
        if parent is not None:
            parent.children.append(entry)
        alone = "$ref" in schema and self._document.refs_alone
        if not alone:
            demands.entries.append(entry)
            self._gather_plain(schema, path, demands)
        for kind in _SCHEMA_REFERENCES:
            if kind in schema and (not alone or kind == "$ref"):
                try:
                    target, target_path = self._document.resolve(schema, kind)
                except LookupError as error:
                    raise UnsatisfiableSchema(schema_place(path + (kind,)), str(error.args[0])) from None
                demands.references.append(id(target))
                self._gather(target, target_path, entry, demands, nesting + 1)
        if not alone:
            self._gather_applied(schema, path, entry, demands, nesting)
        entry.is_open = False

    def _gather_plain(self, schema, path, demands):
        try:
            demands.bits &= schema_type_bits(schema)
        except KeyError as error:
            raise UnsatisfiableSchema(schema_place(path + ("type",)), "unknown type %s" % error) from None
        if not demands.bits:
            raise UnsatisfiableSchema(schema_place(path + ("type",)), "no type is allowed by all of it")
        if SCHEMA_BARRED in schema:
            demands.barred.append(schema[SCHEMA_BARRED])
            demands.checked = True
        if not _SCHEMA_CHECKED_WORDS.isdisjoint(schema):
            demands.checked = True

    def _gather_applied(self, schema, path, entry, demands, nesting):
        if SCHEMA_IN_PLACE_WORDS.isdisjoint(schema):
            return
        for at, inner in enumerate(schema_list(schema, "allOf")):
            self._gather(inner, path + ("allOf", at), entry, demands, nesting + 1)
        for keyword in ("anyOf", "oneOf"):
            branches = schema_list(schema, keyword)
            if branches:
                demands.checked = demands.checked or keyword == "oneOf"
                demands.choices.append((entry, keyword, [(inner, path + (keyword, at), nesting + 1)
                                                         for at, inner in enumerate(branches)]))
        if is_schema(schema.get("not")):
            self._gather_not(schema["not"], path + ("not",), entry, demands, nesting)
        if is_schema(schema.get("if")) and (is_schema(schema.get("then")) or is_schema(schema.get("else"))):
            demands.checked = True
            demands.choices.append((entry, "if", [(True, path + ("then",), nesting + 1),
                                                  (False, path + ("else",), nesting + 1)]))

    def _gather_not(self, schema, path, entry, demands, nesting):
        found = self._negator.alternatives(schema)
        demands.checked = True
        if not found:
            raise UnsatisfiableSchema(schema_place(path), "nothing is allowed by this `not`")
        if len(found) == 1:
            self._gather(found[0], path, entry, demands, nesting + 1)
        else:
            demands.choices.append((entry, "not%d" % id(schema), [(inner, path, nesting + 1) for inner in found]))

    def _choose(self, entry, keyword, branches, demands, failures, depth, number):
        """Take one branch: of those that failed least, one whose type can be, drawn; null is drawn rarely."""
        demands.options += len(branches)
        self.budget.spend(1 + len(branches) // 4)
        key = (id(entry.schema), keyword)
        counts = [failures.get((key, at), 0) for at in range(len(branches))]
        least = min(counts)
        places = [at for at, count in enumerate(counts) if count == least]
        if keyword != "if" and len(places) > 1:
            places = self._likely(places, branches, demands, depth)
        at = places[draw_below(self._draw, len(places))]
        demands.picks.append((key, at))
        schema, path, nesting = branches[at]
        if keyword == "if":
            condition = entry.schema["if"]
            if schema:
                self._gather(condition, entry.path + ("if",), entry, demands, nesting)
            else:
                self._gather_not(condition, entry.path + ("if",), entry, demands, nesting)
            branch = entry.schema.get("then" if schema else "else")
            if is_schema(branch):
                self._gather(branch, path, entry, demands, nesting)
            return
        self._gather(schema, path, entry, demands, nesting)
        if keyword == "oneOf" and demands.attempt > 1:
            # at first the other branches are only checked: they mostly fail by themselves
            for other, (inner, other_path, _) in enumerate(branches):
                if other != at:
                    self._gather_not(inner, other_path, entry, demands, nesting)

    def _likely(self, places, branches, demands, depth):
        fitting = [at for at in places if self._shallow_bits(branches[at][0]) & demands.bits]
        places = fitting or places
        if self._is_cramped(demands, depth) or self._level > 1 or self._recursion(demands) > 1:
            for levels in range(8):
                short = [at for at in places if self._ends_within(branches[at][0], levels)]
                if short:
                    return short
        if self._draw.random() < 0.88:
            return [at for at in places if self._shallow_bits(branches[at][0]) != SCHEMA_NULL] or places
        return places

    def _shallow_bits(self, schema):
        """The types that a branch allows, as far as one look tells."""
        for _ in range(4):
            if not isinstance(schema, dict):
                return 0 if schema is False else SCHEMA_ANY
            if "const" in schema:
                return value_type_bit(schema["const"])
            if "$ref" not in schema or "type" in schema:
                break
            try:
                schema = self._document.resolve(schema, "$ref")[0]
            except LookupError:
                return 0
        try:
            bits = schema_type_bits(schema)
        except KeyError:
            return 0
        if schema_list(schema, "enum"):
            listed = 0
            for item in schema["enum"][:50]:
                listed |= value_type_bit(item)
            bits &= listed if len(schema["enum"]) <= 50 else SCHEMA_ANY
        return bits

    def _recursion(self, demands):
        return max((self._active.get(target, 0) for target in demands.references), default=0)

    def _is_cramped(self, demands, depth):
        """True when only what is required should be made."""
        return depth > SCHEMA_ROOMY_DEPTH or self._nodes > SCHEMA_ROOMY_NODES

    def _ends_within(self, schema, levels):
        """Whether a value needs at most so many levels below its own; a guess that keeps recursion short."""
        if not isinstance(schema, dict):
            return schema is not False
        if "const" in schema or "enum" in schema:
            return True
        key = (id(schema), levels)
        if key in self._fits:
            return self._fits[key]
        if len(self._fits) > 20000:
            return False
        self._fits[key] = False         # while it is looked at: a reference to itself does not end
        self.budget.spend(2)
        fits = all(self._ends_within(inner, levels) for inner in self._schemas_in_place(schema))
        for keyword in ("anyOf", "oneOf"):
            branches = schema_list(schema, keyword)
            fits = fits and (not branches or any(self._ends_within(inner, levels) for inner in branches))
        if fits:
            fits = self._content_ends(schema, levels)
        self._fits[key] = fits
        return fits

    def _schemas_in_place(self, schema):
        for kind in _SCHEMA_REFERENCES:
            if kind in schema:
                try:
                    yield self._document.resolve(schema, kind)[0]
                except LookupError:
                    yield False
        yield from schema_list(schema, "allOf")

    def _content_ends(self, schema, levels):
        try:
            bits = schema_type_bits(schema)
        except KeyError:
            return False
        if bits != SCHEMA_ANY and bits & ~(SCHEMA_OBJECT | SCHEMA_ARRAY):
            return True
        inner = []
        if bits & SCHEMA_OBJECT:
            properties = schema_dict(schema, "properties")
            inner = [properties[name] for name in schema_strings(schema, "required") if name in properties]
            if schema_size(schema, "minProperties") and is_schema(schema.get("additionalProperties")):
                inner.append(schema["additionalProperties"])
        if bits & SCHEMA_ARRAY and schema_size(schema, "minItems"):
            inner += [item for item in (self._checker.item_schema(schema, 0),) if item is not None]
        if not inner:
            return True
        return levels > 0 and all(self._ends_within(item, levels - 1) for item in inner)

    # -- building

    def _build(self, demands, name, depth, failures):
        listed = [entry for entry in demands.entries if "const" in entry.schema or schema_list(entry.schema, "enum")]
        if listed:
            return self._build_listed(demands, listed)
        for entry in demands.entries:
            if entry.schema.get("enum") == []:
                raise UnsatisfiableSchema(schema_place(entry.path + ("enum",)), "an empty enum allows nothing")
        bit = self._pick_type(demands, failures)
        if bit == SCHEMA_STRING:
            return self._build_string(demands, name)
        if not demands.attempt:
            found = self._given_example(demands, bit)
            if found is not None:
                return found[0]
        if bit == SCHEMA_NULL:
            return None
        if bit == SCHEMA_BOOLEAN:
            return draw_below(self._draw, 2) == 1
        if bit & SCHEMA_NUMBER:
            return self._build_number(demands, name, not demands.bits & SCHEMA_FRACTION)
        outer = self._level
        self._level = recursion = max(outer, self._recursion(demands))
        for target in demands.references:
            self._active[target] = self._active.get(target, 0) + 1
        try:
            if bit == SCHEMA_OBJECT:
                return self._build_object(demands, name, depth, recursion)
            return self._build_array(demands, name, depth, recursion)
        finally:
            self._level = outer
            for target in demands.references:
                self._active[target] -= 1

    def _meets(self, value, demands):
        """True when a value that was given, not built, meets all demands."""
        return (value_type_bit(value) & demands.bits and not (demands.taken and json_key(value) in demands.taken)
                and all(self._checker.ok(value, entry.schema) for entry in demands.entries)
                and not any(self._checker.ok(value, schema) for schema in demands.barred))

    def _build_listed(self, demands, listed):
        entry = min(listed, key=lambda item: 1 if "const" in item.schema else len(item.schema["enum"]))
        self.budget.spend(len(schema_list(listed[0].schema, "enum")) // 16)
        choices = [entry.schema["const"]] if "const" in entry.schema else entry.schema["enum"]
        start = draw_below(self._draw, len(choices))
        order = choices[start:] + choices[:start]
        if len(choices) <= 1000:
            said = [value for value in order if isinstance(value, str) and self._hints.is_said(value)]
            plain = [value for value in order if value is not None]
            order = said + (plain + order if self._draw.random() < 0.9 else order)
        for value in order:
            if self._meets(value, demands):
                return value
        for entry in demands.entries:
            if entry.schema.get("nullable") is True and self._meets(None, demands):
                return None
        key = "const" if "const" in entry.schema else "enum"
        raise UnsatisfiableSchema(schema_place(listed[0].path + (key,)), "no listed value meets the other demands")

    def _pick_type(self, demands, failures):
        bits = demands.bits
        if bits & SCHEMA_NUMBER == SCHEMA_NUMBER:
            bits &= ~SCHEMA_INTEGER     # one type, built with or without a fraction
        kinds = [1 << at for at in range(7) if bits & (1 << at)]
        if len(kinds) == 1:
            return kinds[0]
        key = ("type", demands.path)
        if bits & (SCHEMA_OBJECT | SCHEMA_ARRAY | SCHEMA_STRING):
            demands.options += len(kinds)
        counts = [failures.get((key, kind), 0) for kind in kinds]
        likely = [kind for kind, count in zip(kinds, counts) if count == min(counts)]
        suggested = 0
        for keyword_bits, words in _SCHEMA_KEYWORD_BITS:
            if any(word in entry.schema for entry in demands.entries for word in words):
                suggested |= keyword_bits
        if demands.bits == SCHEMA_ANY and not suggested:
            suggested = SCHEMA_STRING
        for mask in (suggested, SCHEMA_ANY & ~SCHEMA_NULL if self._draw.random() < 0.9 else SCHEMA_ANY):
            likely = [kind for kind in likely if kind & mask] or likely
        kind = likely[draw_below(self._draw, len(likely))]
        demands.picks.append((key, kind))
        return kind

    def _given_example(self, demands, bit):
        """(value,) of `examples`, `example` or, at times, a telling `default`; None when there is none that fits."""
        for entry in demands.entries:
            schema = entry.schema
            given = schema_list(schema, "examples")
            if not given and "example" in schema:
                given = [schema["example"]]
            if not given and "default" in schema and schema["default"] not in (None, "", [], {}):
                given = [schema["default"]] if self._draw.random() < 0.5 else []
            if given:
                value = given[draw_below(self._draw, len(given))]
                if value_type_bit(value) & (SCHEMA_NUMBER if bit & SCHEMA_NUMBER else bit) \
                        and self._meets(value, demands):
                    return (value,)
        return None

    # -- strings

    def _build_string(self, demands, name):
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
        if low > SCHEMA_MOST_ITEMS:
            raise UnsatisfiableSchema(schema_place(low_path), "more than %d characters are not made"
                                      % SCHEMA_MOST_ITEMS)
        if high is not None and high < low:
            raise UnsatisfiableSchema(schema_place(low_path), "the least length is above the greatest")
        formats = [entry.schema["format"] for entry in demands.having("format")
                   if isinstance(entry.schema["format"], str)]
        formats += ["byte" for entry in demands.entries if entry.schema.get("contentEncoding") == "base64"]
        self.met_format = self.met_format or bool(formats)
        wanted = _StringDemand(self, low, high, patterns, formats, demands)
        for text in self._real_strings(demands, name, formats, wanted):
            if wanted.accepts(text):
                return text
        if patterns:
            return self._pattern_string(wanted)
        raise UnsatisfiableSchema(schema_place(demands.path + ("format",) if formats else demands.path),
                                  "no string of that format and length was found" if formats
                                  else "no string was found")

    def _real_strings(self, demands, name, formats, wanted):
        """Texts that look real, the best first; each is still to be checked."""
        hints, schemas = self._hints, demands.schemas()
        kind = hints.kind(name, schemas)
        if not formats and kind == "command":
            yield hints.text(kind)
        said = hints.said_name(kind) if not formats else None
        if said is not None:
            yield said
        found = self._given_example(demands, SCHEMA_STRING) if kind != "command" and not demands.attempt else None
        if found is not None:
            yield found[0]
        described = None if formats or kind == "command" else hints.described_example(schemas)
        if described is not None:
            yield described
        for kind_of_format in formats:
            for _ in range(4):
                text = draw_format(kind_of_format, self._draw)
                if text is not None:
                    yield text
        if wanted.patterns:
            yield hints.text(kind)
            return
        for _ in range(3):
            yield wanted.fitted(hints.text(kind), hints)
        for _ in range(8):
            yield wanted.fitted(hints.words(3), hints)

    def _pattern_string(self, wanted):
        """A text for one of the patterns that the others take, too."""
        checker, draw = self._checker, self._draw
        for attempt in range(48):
            text, path = wanted.patterns[attempt % len(wanted.patterns)]
            self.place = path
            try:
                pattern = checker.pattern(text)
                room = wanted.room(pattern.width, draw)
                if room is None:
                    continue
                extra, greedy = room
                made = pattern.sample(draw, extra, greedy, (0, 1, 2)[(attempt // len(wanted.patterns)) % 3], self.budget)
            except (PatternError, UnsatisfiableSchema) as error:
                raise UnsatisfiableSchema(schema_place(path), getattr(error, "reason", str(error))) from None
            if len(made) < wanted.low:
                grown = pattern.sample(draw, wanted.low - pattern.width, True, attempt % 3, self.budget)
                made = grown if len(grown) >= wanted.low else wanted.fitted(made, self._hints)
            if wanted.accepts(made):
                return made
        raise UnsatisfiableSchema(schema_place(wanted.patterns[0][1]), "no string was found that matches it and meets "
                                  "the other demands")

    # -- numbers

    def _build_number(self, demands, name, whole):
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
        first, last, decimals = self._hints.number(name, demands.schemas(), whole)
        numbers = _NumberRange(low, low_open, high, high_open, first, last, self._draw)
        if steps:
            candidates = numbers.multiples(steps, whole)
        elif whole:
            candidates = numbers.integers()
        else:
            candidates = numbers.decimals(decimals)
        for value in candidates:
            self.budget.spend(2)
            if self._meets(value, demands):
                return value
        raise UnsatisfiableSchema(schema_place(path), "no number was found within the bounds")

    # -- objects

    def _build_object(self, demands, name, depth, recursion):
        required, known, least, most, least_path = self._object_shape(demands)
        made, extra = {}, 0
        cramped = self._is_cramped(demands, depth)
        chance = 0.85 if demands.attempt < 3 else (0.5, 0.0, 1.0)[demands.attempt % 3]
        for key in known:
            if key in required:
                wanted = self._property_wanted(demands, key, required[key])
                made[key] = self.value(wanted, key, depth + 1)
            elif most is None or len(made) < most - sum(1 for other in required if other not in made):
                self._add_optional(demands, made, key, depth, recursion, 0.0 if cramped else chance, least)
        self._add_dependents(demands, made, depth)
        if most is not None and len(made) > most:
            raise UnsatisfiableSchema(schema_place(demands.path + ("maxProperties",)), "more properties are required")
        target = max(least, 0 if cramped or known or recursion > 1 else self._map_size(demands))
        if most is not None:
            target = min(target, most)
        for key in known:
            if len(made) >= target:
                break
            if key not in made:
                self._add_optional(demands, made, key, depth, 0, 1.0, least)
        while len(made) < target and extra < 20:
            if not self._add_unnamed(demands, made, depth, name):
                extra += 1
        if len(made) < least:
            raise UnsatisfiableSchema(schema_place(least_path), "not enough properties are allowed")
        return made

    def _object_shape(self, demands):
        """(required name -> path, known names in order, least, most, path of least)."""
        required, known, least, most, least_path = {}, {}, 0, None, demands.path
        for entry in demands.entries:
            schema = entry.schema
            known.update(dict.fromkeys(schema_dict(schema, "properties")))
            for key in schema_strings(schema, "required"):
                required.setdefault(key, entry.path + ("required", key))
            low, high = schema_size(schema, "minProperties"), schema_size(schema, "maxProperties")
            if low is not None and low > least:
                least, least_path = low, entry.path + ("minProperties",)
            if high is not None and (most is None or high < most):
                most = high
        if least > SCHEMA_MOST_ITEMS:
            raise UnsatisfiableSchema(schema_place(least_path), "more than %d properties are not made"
                                      % SCHEMA_MOST_ITEMS)
        if most is not None and most < max(least, len(required)):
            raise UnsatisfiableSchema(schema_place(demands.path + ("maxProperties",)), "more properties are required")
        known.update(required)
        return required, list(known), least, most, least_path

    def _property_wanted(self, demands, key, path):
        """[(schema, path)] for one property. Raises UnsatisfiableSchema when the name itself is refused."""
        wanted = []
        checker = self._checker
        self.budget.spend(len(demands.entries))
        for entry in demands.entries:
            schema = entry.schema
            properties = schema.get("properties")
            if isinstance(properties, dict) and key in properties and "patternProperties" not in schema:
                wanted.append((properties[key], entry.path + ("properties", key)))
            else:
                for inner in checker.property_schemas(schema, key):
                    where = ("properties", key) if key in schema_dict(schema, "properties") else (
                        "additionalProperties",)
                    wanted.append((inner, path if inner is False else entry.path + where))
            if "propertyNames" in schema and not checker.ok(key, schema["propertyNames"]):
                raise UnsatisfiableSchema(schema_place(entry.path + ("propertyNames",)),
                                          "the name %r is not allowed" % key)
        for entry in demands.having("unevaluatedProperties"):
            if not self._covers_name(entry, key, True):
                wanted.append((entry.schema["unevaluatedProperties"], entry.path + ("unevaluatedProperties",)))
        return wanted or [(True, path)]

    def _covers_name(self, entry, key, is_top):
        if self._checker.property_schemas(entry.schema, key):
            return True
        if not is_top and "unevaluatedProperties" in entry.schema:
            return True
        return any(self._covers_name(child, key, False) for child in entry.children)

    def _add_optional(self, demands, made, key, depth, recursion, chance, least):
        """Add the property, unless drawn otherwise or it cannot be; short of the end of a recursion."""
        if len(made) >= least and self._draw.random() >= chance:
            return
        try:
            wanted = self._property_wanted(demands, key, demands.path + ("properties", key))
            if recursion and not all(self._ends_within(schema, 0) and self._is_flat(schema) for schema, _ in wanted):
                if recursion > 1 or self._draw.random() < 0.5:
                    return
            made[key] = self.value(wanted, key, depth + 1)
        except UnsatisfiableSchema:
            made.pop(key, None)

    def _is_flat(self, schema):
        """True when the schema can hold no reference at one look."""
        return not isinstance(schema, dict) or not any(
            word in schema for word in _SCHEMA_REFERENCES + ("items", "properties", "additionalProperties", "anyOf"))

    def _add_dependents(self, demands, made, depth):
        """What the properties that are there ask for: names are added, schemas are tried and then checked."""
        entries = [entry for entry in demands.entries
                   if "dependentRequired" in entry.schema or "dependencies" in entry.schema
                   or "dependentSchemas" in entry.schema]
        if not entries:
            return
        demands.checked = True
        demands.options += 1
        grown = True
        while grown:
            grown = False
            for entry in entries:
                for keyword in ("dependentRequired", "dependencies", "dependentSchemas"):
                    for trigger, asked in schema_dict(entry.schema, keyword).items():
                        if trigger in made:
                            grown |= self._add_dependent(demands, made, entry, keyword, trigger, asked, depth)

    def _add_dependent(self, demands, made, entry, keyword, trigger, asked, depth):
        path = entry.path + (keyword, trigger)
        if isinstance(asked, list):
            missing = [key for key in asked if isinstance(key, str) and key not in made]
            for key in missing:
                made[key] = self.value(self._property_wanted(demands, key, path), key, depth + 1)
            return bool(missing)
        if not is_schema(asked) or id(asked) in demands.by_id or asked is True:
            return False
        # the schema joins the demands: what it says of properties that are there is made anew
        self._gather(asked, path, entry, demands, 1)
        number = len(demands.choices)
        if number:
            self._choose_late(demands, depth)
        for other in demands.entries:
            for key in list(schema_dict(other.schema, "properties")) + schema_strings(other.schema, "required"):
                if key in made or key in schema_strings(other.schema, "required"):
                    if other is entry and key in made:
                        continue
                    made[key] = self.value(self._property_wanted(demands, key, other.path + ("properties", key)), key,
                                           depth + 1)
        return True

    def _choose_late(self, demands, depth):
        """Choices that came with a dependent schema."""
        done = {key for key, _ in demands.picks}
        for entry, keyword, branches in list(demands.choices):
            if (id(entry.schema), keyword) not in done:
                self._choose(entry, keyword, branches, demands, {}, depth, 0)

    def _map_size(self, demands):
        """How many entries an object without known names gets: 1 to 3 where their values are described."""
        for entry in demands.entries:
            if schema_dict(entry.schema, "additionalProperties") or schema_dict(entry.schema, "patternProperties"):
                return 1 + draw_below(self._draw, 3)
        return 0

    def _add_unnamed(self, demands, made, depth, name):
        """Add a property of a name that the schema does not give. Returns False when that one cannot be."""
        names = [(schema, path) for entry in demands.having("propertyNames")
                 for schema, path in ((entry.schema["propertyNames"], entry.path + ("propertyNames",)),)]
        patterns = [pattern for entry in demands.entries for pattern in schema_dict(entry.schema, "patternProperties")]
        try:
            if names:
                key = self.value(names + [(_SCHEMA_NAME, demands.path)], "", depth + 1)
                if key in made:
                    key = self.value(names + [(_SCHEMA_NAME, demands.path)], "", depth + 1, set(made))
            elif patterns and (len(patterns) > 1 or self._draw.random() < 0.9):
                pattern = self._checker.pattern(patterns[draw_below(self._draw, len(patterns))])
                key = pattern.sample(self._draw, 8, False, 1 if made else 0, self.budget)
            else:
                key = self._hints.property_name(made)
            if key in made:
                return False
            wanted = self._property_wanted(demands, key, demands.path + ("additionalProperties",))
            made[key] = self.value(wanted, name, depth + 1)
        except (UnsatisfiableSchema, PatternError):
            return False
        return True

    # -- arrays

    def _build_array(self, demands, name, depth, recursion):
        least, most, least_path, longest_prefix, contained = self._array_shape(demands)
        unique = any(entry.schema.get("uniqueItems") is True for entry in demands.entries)
        needed = sum(count for _, count, _ in contained)
        if self._is_cramped(demands, depth) or recursion > 1:
            length = max(least, needed)
        else:
            length = max(least, needed, longest_prefix or 1 + draw_below(self._draw, 1 if recursion else 3))
        if demands.attempt > 2 and demands.attempt % 3 == 0:
            length = max(least, 0 if demands.attempt % 2 else needed)
        if most is not None:
            length = min(length, most)
        asked = [entry for entry, count, _ in contained for _ in range(count)]
        start = max(0, min(longest_prefix, length - len(asked)))
        if demands.attempt % 2:
            start = draw_below(self._draw, max(0, length - len(asked)) + 1)
        made, seen = [], set()
        for index in range(length):
            try:
                wanted = self._item_wanted(demands, index, asked, start, contained)
                item = self.value(wanted, name, depth + 1, seen)
                if unique:
                    seen.add(json_key(item))
            except UnsatisfiableSchema:
                if len(made) < max(least, needed):
                    raise
                break
            made.append(item)
        if len(made) > 1 and any(isinstance(schema, dict) and schema.get("uniqueItems") for schema in demands.barred):
            made[-1] = made[0]
        return made

    def _array_shape(self, demands):
        """(least, most, path of least, length of the longest prefix, [(entry with contains, least, most)])."""
        least, most, least_path, prefix, contained = 0, None, demands.path, 0, []
        for entry in demands.entries:
            schema = entry.schema
            low, high = schema_size(schema, "minItems"), schema_size(schema, "maxItems")
            if low is not None and low > least:
                least, least_path = low, entry.path + ("minItems",)
            if high is not None and (most is None or high < most):
                most = high
            first = schema.get("items") if isinstance(schema.get("items"), list) else schema_list(schema, "prefixItems")
            prefix = max(prefix, len(first))
            if is_schema(schema.get("contains")):
                low, high = schema_size(schema, "minContains"), schema_size(schema, "maxContains")
                contained.append((entry, 1 if low is None else low, high))
        if least > SCHEMA_MOST_ITEMS or sum(count for _, count, _ in contained) > SCHEMA_MOST_ITEMS:
            raise UnsatisfiableSchema(schema_place(least_path), "more than %d items are not made" % SCHEMA_MOST_ITEMS)
        if most is not None and most < least:
            raise UnsatisfiableSchema(schema_place(least_path), "the least number of items is above the greatest")
        return least, most, least_path, prefix, contained

    def _item_wanted(self, demands, index, asked, start, contained):
        """[(schema, path)] for one item: its own schemas, and what `contains` asks of this one."""
        wanted = []
        for entry in demands.entries:
            inner = self._checker.item_schema(entry.schema, index)
            if inner is not None:
                wanted.append((inner, entry.path + ("items",)))
        due = asked[index - start] if start <= index < start + len(asked) else None
        for entry, _, most in contained:
            path = entry.path + ("contains",)
            if entry is due or (due is not None and demands.attempt % 4 == 1):
                wanted.append((entry.schema["contains"], path))
            elif most is not None:
                wanted.append((self._kept_not(entry.schema), path))
        for entry in demands.having("unevaluatedItems"):
            if not self._covers_item(entry, index, due, True):
                wanted.append((entry.schema["unevaluatedItems"], entry.path + ("unevaluatedItems",)))
        return wanted or [(True, demands.path + ("items",))]

    def _kept_not(self, schema):
        """{"not": contains} of one schema, the same object each time."""
        return self._negator.opposite(schema["contains"])

    def _covers_item(self, entry, index, due, is_top):
        if self._checker.item_schema(entry.schema, index) is not None or entry is due:
            return True
        if not is_top and "unevaluatedItems" in entry.schema:
            return True
        return any(self._covers_item(child, index, due, False) for child in entry.children)


class _StringDemand:
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
                and self._writer._meets(text, self._demands))

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


class _NumberRange:
    """Numbers between bounds, near what a hint suggests."""

    def __init__(self, low, low_open, high, high_open, first, last, draw):
        self._low, self._low_open = low, low_open
        self._high, self._high_open = high, high_open
        self._draw = draw
        if low is not None and (last <= low or first < low):
            first = low
            last = max(last, first + 1) if last > low else low + 100
        if high is not None and (last > high or first > high):
            last = high
            first = first if first <= high else high - 100
            if low is not None and first < low:
                first = low
        self._first, self._last = first, last

    def integers(self):
        """Whole numbers: drawn ones, then all in order from the lower bound."""
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
            yield first + draw_below(self._draw, span)
        for wide in (1000, 1000, 1000000, 1000000):
            span = min(wide, high - first + 1) if high is not None else wide
            yield first + draw_below(self._draw, span)
        if low is None and high is None:
            low = first
        start = low if low is not None else high - SCHEMA_MOST_ITEMS
        end = start + SCHEMA_MOST_ITEMS if high is None else min(high, start + SCHEMA_MOST_ITEMS)
        yield from range(start, end + 1)

    def decimals(self, digits):
        """Fractions: drawn ones of few digits, then of all, then the bounds and the middle."""
        try:
            first, span = float(self._first), float(self._last) - float(self._first)
        except OverflowError:
            yield from self.integers()
            return
        if span == float("inf"):
            first, span = 0.0, 1.0
        for places in (digits, digits, max(2, digits), max(2, digits), 6, 12):
            yield round(first + span * self._draw.random(), places)
        for _ in range(4):
            yield first + span * self._draw.random()
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
            ratio = Fraction(repr(step))
            if unit is None:
                unit = ratio
                continue
            shared = unit.denominator * ratio.denominator
            left, right = int(unit * shared), int(ratio * shared)
            a, b = left, right
            while b:
                a, b = b, a % b
            unit = Fraction(left // a * right, shared)
        low = None if self._low is None else ceil(Fraction(repr(self._low)) / unit)
        high = None if self._high is None else floor(Fraction(repr(self._high)) / unit)
        near, far = ceil(Fraction(repr(self._first)) / unit), floor(Fraction(repr(self._last)) / unit)
        near = near if low is None else max(low, near)
        far = max(near, far if high is None else min(high, far))
        counts = [near + draw_below(self._draw, min(far - near + 1, 1000000)) for _ in range(20)]
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
                second.append(value)
        yield from (value for value in second if all(is_multiple(value, step) for step in steps))


def generate_value(schema, draw, hint=""):
    """A JSON-able value that satisfies `schema`.

    schema: a dict or a bool. draw: a random.Random that the caller seeded; the same seed gives the same value.
    hint: the user's text; a city, a name or a query that it names is used where the schema asks for one.
    Raises UnsatisfiableSchema with the place when no value can be made, or not within the bounds of one call.
    """
    if not is_schema(schema):
        raise UnsatisfiableSchema("", "a schema must be an object or a boolean")
    budget = WorkBudget(SCHEMA_WORK)
    problem = None
    for asserts_formats in (True, False):
        writer = _SchemaWriter(schema, draw, hint, asserts_formats, budget)
        try:
            second = []
            for _ in range(6):
                value = writer.value([(schema, ())], "", 0)
                holds, holds_plainly = writer.accepts(value)
                if holds_plainly:
                    return value
                if holds:
                    second.append(value)
            if second:
                return second[0]
            problem = problem or UnsatisfiableSchema("", "no value was found that meets all of it")
        except UnsatisfiableSchema as error:
            problem = problem or error
        except WorkSpent:
            raise UnsatisfiableSchema(schema_place(writer.place), "finding a value takes too much work") from None
        except RecursionError:
            raise UnsatisfiableSchema(schema_place(writer.place[:40]), "it is nested too deeply") from None
        if not writer.met_format:
            break
    raise problem
