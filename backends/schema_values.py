"""Values that satisfy a JSON schema: what a tool call's arguments and a structured answer are filled with.

In: a schema as parsed from JSON, a seeded `random.Random`, the user's text. Out: a JSON-able value, the same for the
same seed on every Python, or UnsatisfiableSchema, which names the place. It does not say how the value is worded on
the wire. Any thread; one call is bounded in work and depth, whatever the schema.

How: at each place what the schemas ask is gathered (backends/schema_demands.py), and a value is built for all of it.
Where a choice was made or something can only be checked, the value is checked there, and other choices are tried. At
last the whole value is checked against the whole schema.
"""
from backends.schema_check import (SCHEMA_BOOLEAN, SCHEMA_FRACTION, SCHEMA_NULL, SCHEMA_NUMBER, SCHEMA_OBJECT,
                                   SCHEMA_STRING, SchemaChecker, SchemaDocument, UnsatisfiableSchema, is_schema,
                                   json_key, schema_dict, schema_list, schema_place, schema_size, schema_strings)
from backends.schema_demands import SCHEMA_REFERENCES, SchemaDemands
from backends.schema_regex import PatternError
from backends.schema_scalars import SCHEMA_MOST_ITEMS, SchemaScalars
from backends.schema_work import WorkBudget, WorkSpent, draw_below

SCHEMA_WORK = 400000                # units of about a microsecond for one value
SCHEMA_MOST_DEPTH = 90              # values in values, at three frames each under Python's limit of 1000
SCHEMA_LAST_TURN = 4                # so often is begun anew when a value could not be made and there was a choice
SCHEMA_MOST_LEVELS = 12             # that a recursion which has begun may still need
SCHEMA_TRIES = 60                   # at one place, when there is something to choose

# What may do where nothing that was built did; it says little, so it comes last.
_SCHEMA_LAST_RESORTS = ("", "a", 0, 1, -1, 0.5, True, False, [], {}, None)
SCHEMA_LAST_WORK = 20000
_SCHEMA_DEPENDENT = ("dependentSchemas", "dependencies", "dependentRequired")
_SCHEMA_NAME = {"type": "string"}   # what every property's name is


class _SchemaWriter(SchemaScalars):
    """Makes one value. sparse: see generate_value()."""

    sparse = False

    def value(self, wanted, name, depth, taken=()):
        """A value for a list of (schema, path).

        name: of the property, for what looks real. taken: json_key of each value that it may not be.
        """
        path = wanted[0][1] if wanted else self.place
        self.place = path
        if depth > SCHEMA_MOST_DEPTH:
            raise UnsatisfiableSchema(schema_place(path), "values nested deeper than %d are not made"
                                      % SCHEMA_MOST_DEPTH)
        self.nodes += 1
        problem, failures, tries, attempt = None, {}, 1, 0
        used = self.hints.said.used
        while attempt < tries:
            self.budget.spend(8)
            self.hints.said.used = used
            demands = SchemaDemands(attempt, path, taken)
            try:
                self.gather_all(wanted, demands, failures, depth)
                made = self._build(demands, name, depth, failures, wanted)
                if not demands.checked or self.holds(made, wanted, demands):
                    return made
                problem = problem or UnsatisfiableSchema(schema_place(path), "no value was found that meets all of it")
            except UnsatisfiableSchema as error:
                if not error.path:          # of a check, which does not know where it is
                    error = UnsatisfiableSchema(schema_place(self.place), error.reason)
                problem = problem or error
            if demands.checked or demands.options:
                tries = max(tries, min(SCHEMA_TRIES, 8 + 3 * demands.options))
            for pick in demands.picks:
                failures[pick] = failures.get(pick, 0) + 1
            attempt += 1
        found = self._last_resort(wanted, taken)
        if found is None:
            raise problem
        return found[0]

    def _last_resort(self, wanted, taken):
        """(value,) of the simplest values that satisfies what is wanted, or None."""
        try:
            for value in _SCHEMA_LAST_RESORTS if all(is_schema(schema) for schema, _ in wanted) else ():
                if self.is_wanted(value, wanted, taken):
                    return (value.copy() if isinstance(value, (dict, list)) else value,)
        except UnsatisfiableSchema:
            pass                        # a reference or a pattern cannot be read: that was said already
        return None

    def _build(self, demands, name, depth, failures, wanted):
        listed = [entry for entry in demands.entries if "const" in entry.schema or schema_list(entry.schema, "enum")]
        if listed:
            return self.build_listed(demands, listed, name, wanted)
        for entry in demands.entries:
            if entry.schema.get("enum") == []:
                raise UnsatisfiableSchema(schema_place(entry.path + ("enum",)), "an empty enum allows nothing")
        bit = self.pick_type(demands, failures)
        if bit == SCHEMA_STRING:
            return self.build_string(demands, name)
        if not demands.attempt:
            found = self.said_number(demands, name) if bit & SCHEMA_NUMBER else None
            found = found or self.given_example(demands, bit)
            if found is not None:
                return found[0]
        if bit == SCHEMA_NULL:
            return None
        if bit == SCHEMA_BOOLEAN:
            return draw_below(self.draw, 2) == 1
        if bit & SCHEMA_NUMBER:
            return self.build_number(demands, name, not demands.bits & SCHEMA_FRACTION)
        outer = self.level
        self.level = recursion = max(outer, self.recursion(demands))
        targets = tuple(demands.references)     # a dependent schema may add to them
        if recursion > 1 and not all(self.ends_within(target, SCHEMA_MOST_LEVELS)
                                     for target in demands.references.values()):
            self.level = outer
            raise UnsatisfiableSchema(schema_place(demands.path), "it needs itself without end")
        for target in targets:
            self.active[target] = self.active.get(target, 0) + 1
        try:
            if bit == SCHEMA_OBJECT:
                self.hints.enter(name, demands.schemas())
                try:
                    return self._build_object(demands, name, depth, recursion)
                finally:
                    self.hints.leave()
            return self._build_array(demands, name, depth, recursion)
        finally:
            self.level = outer
            for target in targets:
                self.active[target] -= 1

    # -- objects

    def _build_object(self, demands, name, depth, recursion):
        required, known, least, most, least_path = self._object_shape(demands)
        made, failed = {}, 0
        cramped = self.is_cramped(demands, depth)
        chance = 0.85 if demands.attempt < 3 else (0.5, 0.0, 1.0)[demands.attempt % 3]
        if self.sparse and demands.attempt < 3 and any(entry.schema.get("required") for entry in demands.entries):
            chance = 0.0
        if demands.attempt % 4 == 2:
            self._assume_dependents(demands, required, known)
        # what depends on some may be impossible
        avoided = [] if demands.attempt % 2 == 0 else [
            name for entry in demands.entries for word in _SCHEMA_DEPENDENT for name in schema_dict(entry.schema, word)]
        for key in known:
            if key in required:
                wanted = self._property_wanted(demands, key, required[key])
                made[key] = self.value(wanted, key, depth + 1)
            elif key not in avoided and (
                    most is None or len(made) < most - sum(1 for other in required if other not in made)):
                self._add_optional(demands, made, key, depth, recursion, 0.0 if cramped else chance, least)
        self._add_dependents(demands, made, depth)
        if most is not None and len(made) > most:
            raise UnsatisfiableSchema(schema_place(demands.path + ("maxProperties",)), "more properties are required")
        target = max(least, 0 if cramped or known or recursion > 1 else self._map_size(demands))
        if demands.checked and demands.attempt > 2 and demands.attempt % 2:
            target = max(target, len(made) + 1)     # one that is not named may make the difference
        if most is not None:
            target = min(target, most)
        for key in known:
            if len(made) >= target:
                break
            if key not in made and key not in avoided:
                self._add_optional(demands, made, key, depth, 0, 1.0, least)
        while len(made) < target and failed < 20:
            failed += self._add_unnamed(demands, made, depth, name, failed)
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
        checker = self.checker
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
        if self.checker.property_schemas(entry.schema, key):
            return True
        if not is_top and "unevaluatedProperties" in entry.schema:
            return True
        return any(self._covers_name(child, key, False) for child in entry.children)

    def _add_optional(self, demands, made, key, depth, recursion, chance, least):
        """Add the property, unless drawn otherwise or it cannot be; short of the end of a recursion."""
        if len(made) >= least and self.draw.random() >= chance:
            return
        try:
            wanted = self._property_wanted(demands, key, demands.path + ("properties", key))
            if recursion and not all(self.ends_within(schema, 0) and self._is_flat(schema) for schema, _ in wanted):
                if recursion > 1 or self.draw.random() < 0.5:
                    return
            made[key] = self.value(wanted, key, depth + 1)
        except UnsatisfiableSchema:
            made.pop(key, None)

    def _is_flat(self, schema):
        """True when the schema can hold no reference at one look."""
        return not isinstance(schema, dict) or not any(
            word in schema for word in SCHEMA_REFERENCES + ("items", "properties", "additionalProperties", "anyOf"))

    def _assume_dependents(self, demands, required, known):
        """Now and then take what triggers a dependent schema for required, and its schema with it."""
        for entry in list(demands.entries):
            for word in ("dependentSchemas", "dependencies"):
                for trigger, asked in schema_dict(entry.schema, word).items():
                    if isinstance(asked, dict) and id(asked) not in demands.by_id and self.draw.random() < 0.5:
                        self.gather(asked, entry.path + (word, trigger), entry, demands, 1)
                        required.setdefault(trigger, entry.path + (word, trigger))
                        if trigger not in known:
                            known.append(trigger)

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
                for keyword in _SCHEMA_DEPENDENT:
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
        self.gather(asked, path, entry, demands, 1)
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
                self.choose(entry, keyword, branches, demands, {}, depth)

    def _map_size(self, demands):
        """How many entries an object without known names gets: 1 to 3 where their values are described."""
        if demands.attempt % 4 == 2:
            return 0
        for entry in demands.entries:
            if schema_dict(entry.schema, "additionalProperties") or schema_dict(entry.schema, "patternProperties"):
                return 1 + draw_below(self.draw, 3)
        return 0

    def _add_unnamed(self, demands, made, depth, name, failed):
        """Add a property of a name that the schema does not give. Returns 0, or how much of a failure it was."""
        names = [(schema, path) for entry in demands.having("propertyNames")
                 for schema, path in ((entry.schema["propertyNames"], entry.path + ("propertyNames",)),)]
        patterns = [pattern for entry in demands.entries for pattern in schema_dict(entry.schema, "patternProperties")]
        try:
            if names and not (patterns and failed % 2):
                key = self.value(names + [(_SCHEMA_NAME, demands.path)], "", depth + 1)
                if key in made:
                    key = self.value(names + [(_SCHEMA_NAME, demands.path)], "", depth + 1, set(made))
            elif patterns and (failed < 6 or names):
                pattern = self.checker.pattern(patterns[draw_below(self.draw, len(patterns))])
                key = pattern.sample(self.draw, 8, False, 1 if made else 0, self.budget)
                turn = (failed // 2 if names else failed) + demands.attempt
                if turn % 3:            # where it may go on, or begin sooner
                    key = key + self.hints.words(1) if turn % 3 == 1 else self.hints.words(1) + key
            else:
                key = self.hints.property_name(made)
            if key in made:
                return 1
            wanted = self._property_wanted(demands, key, demands.path + ("additionalProperties",))
        except (UnsatisfiableSchema, PatternError):
            return 1
        if any([schema is False for schema, _ in wanted]):
            return 1
        try:
            made[key] = self.value(wanted, name, depth + 1)
        except UnsatisfiableSchema:
            return 5                    # that was dear, and will hardly be otherwise with another name
        return 0

    # -- arrays

    def _build_array(self, demands, name, depth, recursion):
        least, most, least_path, longest_prefix, contained = self._array_shape(demands)
        unique = any(entry.schema.get("uniqueItems") is True for entry in demands.entries)
        counts = [count for _, count, _ in contained]
        needed = max(counts, default=0) if demands.attempt % 4 == 1 else sum(counts)    # at times one item has all
        if self.is_cramped(demands, depth) or recursion > 1:
            length = max(least, needed)
        else:
            length = max(least, needed, longest_prefix or 1 + draw_below(self.draw, 1 if recursion else 3))
            if longest_prefix and contained and demands.attempt % 2 == 0:
                length = max(length, longest_prefix + needed)       # behind the prefix, which may not have it
        if demands.attempt > 2 and demands.attempt % 3 == 0:
            length = max(least, 0 if demands.attempt % 2 else needed)
        if most is not None:
            length = min(length, most)
        if demands.attempt % 4 == 3:    # where hardly an item can be without it, more of them have it
            contained = [(entry, max(count, length if high is None else min(high, length)), high)
                         for entry, count, high in contained]
        asked = [entry for entry, count, _ in contained for _ in range(count)]
        if demands.attempt % 4 == 1:
            asked = asked[:needed]
        start = max(0, min(longest_prefix, length - len(asked)))
        if contained:
            demands.options += min(length, 10)
        if demands.attempt % 2:         # anywhere, one place after the other
            start = demands.attempt // 4 % (max(0, length - len(asked)) + 1)
        made, seen = [], set()
        for index in range(length):
            try:
                wanted = self._item_wanted(demands, index, asked, start, contained)
                self.hints.next_item()
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
            inner = self.checker.item_schema(entry.schema, index)
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
        return self.negator.opposite(schema["contains"])

    def _covers_item(self, entry, index, due, is_top):
        if self.checker.item_schema(entry.schema, index) is not None or entry is due:
            return True
        if not is_top and "unevaluatedItems" in entry.schema:
            return True
        return any(self._covers_item(child, index, due, False) for child in entry.children)


def generate_value(schema, draw, hint="", work=SCHEMA_WORK, sparse=False, about=""):
    """A JSON-able value that satisfies `schema`.

    schema: a dict or a bool. draw: a random.Random that the caller seeded; the same seed gives the same value.
    hint: the user's text; what it mentions (a city, a date, a number, an address) is used where the schema asks for
    such. about: the tool's name and description, which tell what a vague property is.
    work: the budget. sparse: objects that say what they require get nothing else, as a model calls a
    tool. Raises UnsatisfiableSchema with the place when no value can be made; when the budget
    was used up, with its `spent` true.
    """
    if not is_schema(schema):
        raise UnsatisfiableSchema("", "a schema must be an object or a boolean")
    problem, second = None, []
    for asserts_formats in (True, False):
        budget = WorkBudget(work if asserts_formats else work // 2)
        writer = _SchemaWriter(schema, draw, hint, asserts_formats, budget, about)
        writer.sparse = sparse
        try:
            for turn in range(6):
                writer.hints.said.used = frozenset()
                try:
                    value = writer.value([(schema, ())], "", 0)
                except UnsatisfiableSchema as error:
                    problem = problem or error
                    if turn < SCHEMA_LAST_TURN and writer.chose:
                        continue        # other choices may do
                    break
                holds, holds_otherwise = writer.accepts(value)
                if holds and holds_otherwise:
                    return value
                if holds:
                    second.append(value)
            problem = problem or UnsatisfiableSchema("", "no value was found that meets all of it")
        except UnsatisfiableSchema as error:
            problem = problem or error  # of the last check
        except WorkSpent:
            problem = UnsatisfiableSchema(schema_place(writer.place), "finding a value takes too much work", spent=True)
            if work < SCHEMA_WORK:
                break                   # with more there may be one that has its formats
        except RecursionError:
            problem = UnsatisfiableSchema(schema_place(writer.place[:40]), "it is nested too deeply")
            break
        if not (writer.met_format or writer.checker.format_failed):
            break
    if not second and problem.spent and work >= SCHEMA_WORK:
        checker = SchemaChecker(SchemaDocument(schema), WorkBudget(SCHEMA_LAST_WORK), False)
        try:
            second = [value for value in _SCHEMA_LAST_RESORTS if checker.ok(value, schema)]
        except (UnsatisfiableSchema, WorkSpent, RecursionError):
            pass                        # then there is none, as was found already
    if second:
        return second[-1]               # for those who take formats as notes, as the specification does
    raise problem from None
