"""What a JSON Schema asks of the value at one place: the schemas that apply, gathered, and the choices among them.

In: schemas with their paths, a source of draws. Out: SchemaDemands, one list for what $ref, allOf, and one drawn
branch of anyOf, oneOf, if and of what `not` leaves open say. It makes no value. One object serves one call.
"""
from backends.schema_check import (SCHEMA_ANY, SCHEMA_ARRAY, SCHEMA_BARRED, SCHEMA_IN_PLACE_WORDS, SCHEMA_INTEGER,
                                   SCHEMA_NULL, SCHEMA_NUMBER, SCHEMA_OBJECT, SCHEMA_STRING, SchemaChecker,
                                   SchemaDocument, UnsatisfiableSchema, is_schema, json_key, schema_dict, schema_list,
                                   schema_place, schema_size, schema_strings, schema_type_bits, value_type_bit)
from backends.schema_hints import ValueHints
from backends.schema_negation import SchemaNegator
from backends.schema_work import draw_below

SCHEMA_MOST_NESTING = 60            # allOf in anyOf in ..., all at one place
SCHEMA_ROOMY_NODES = 400            # a value of more nodes gets only what is required
SCHEMA_ROOMY_DEPTH = 8              # and so does one below this depth

SCHEMA_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SCHEMA_INTEGER_ONLY = {"type": "integer"}
_SCHEMA_CHECKED_WORDS = frozenset(("unevaluatedProperties", "unevaluatedItems", "uniqueItems", "contains",
                                   "propertyNames"))


class SchemaEntry:
    """One schema that applies at a place, and where it stands in the document."""

    __slots__ = ("schema", "path", "children", "is_open")

    def __init__(self, schema, path):
        self.schema = schema
        self.path = path
        self.children = []          # entries that apply through it, for what it leaves unevaluated
        self.is_open = True         # still being gathered: meeting it again is an endless reference


class SchemaDemands:
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
        self.references = {}        # id of a reference's target -> the target
        self.barred = []            # schemas that the value must fail
        self.checked = bool(taken)  # the value must be checked here

    def schemas(self):
        return [entry.schema for entry in self.entries]

    def having(self, key):
        return [entry for entry in self.entries if key in entry.schema]

class SchemaGatherer:
    """Finds what applies; the makers of values build on it."""

    def __init__(self, root, draw, hint, asserts_formats, budget, about=""):
        self.budget = budget
        self.place = ()             # where work is being done, for the message when it runs out
        self.met_format = False
        self.root = root
        self.draw = draw
        self.document = SchemaDocument(root)
        self.checker = SchemaChecker(self.document, budget, asserts_formats)
        self.negator = SchemaNegator(self.checker)
        self.hints = ValueHints(hint, draw, about)
        self.asserts_formats = asserts_formats
        self.active = {id(root): 1}    # target of a reference -> how often it is being filled now
        self._fits = {}                 # (id of a schema, levels) -> whether it can end within them
        self.level = 0                 # how deep in a recursion the place is
        self.nodes = 0
        self.chose = False              # there was something to choose: other draws may lead to a value

    def holds(self, made, wanted, demands):
        return (self.is_wanted(made, wanted, demands.taken)
                and not any(self.checker.ok(made, schema) for schema in demands.barred))

    def is_wanted(self, value, wanted, taken):
        """True when a value satisfies the schemas of a place, and is none of the taken ones."""
        return (not (taken and json_key(value) in taken)
                and all(self.checker.ok(value, schema) for schema, _ in wanted))

    def accepts(self, value):
        """The last check, of the whole: (it holds, it holds also for a reader who takes formats otherwise).

        Some take a format as a demand, some as a note; what is not of one (in `not`) may hold for the former only.
        """
        checker = self.checker
        checker.format_failed = False
        if not checker.ok(value, self.root):
            return False, False
        if self.asserts_formats and not checker.format_failed:
            return True, True
        return True, SchemaChecker(self.document, self.budget, not self.asserts_formats).ok(value, self.root)

    def meets(self, value, demands):
        """True when a value that was given, not built, meets all demands."""
        return (value_type_bit(value) & demands.bits and not (demands.taken and json_key(value) in demands.taken)
                and all(self.checker.ok(value, entry.schema) for entry in demands.entries)
                and not any(self.checker.ok(value, schema) for schema in demands.barred))

    def gather_all(self, wanted, demands, failures, depth):
        for schema, path in wanted:
            self.gather(schema, path, None, demands, 0)
        made = 0
        while made < len(demands.choices):
            entry, keyword, branches = demands.choices[made]
            made += 1
            self.choose(entry, keyword, branches, demands, failures, depth)
        if not demands.bits:
            raise UnsatisfiableSchema(schema_place(demands.path + ("type",)), "no type is allowed by all of it")

    def gather(self, schema, path, parent, demands, nesting):
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
        entry = SchemaEntry(schema, path)
        demands.by_id[id(schema)] = entry
        if parent is not None:
            parent.children.append(entry)
        alone = "$ref" in schema and self.document.refs_alone
        if not alone:
            demands.entries.append(entry)
            self._gather_plain(schema, path, demands)
        for kind in SCHEMA_REFERENCES:
            if kind in schema and (not alone or kind == "$ref"):
                try:
                    target, target_path = self.document.resolve(schema, kind)
                except LookupError as error:
                    raise UnsatisfiableSchema(schema_place(path + (kind,)), str(error.args[0])) from None
                demands.references[id(target)] = target
                self.gather(target, target_path, entry, demands, nesting + 1)
        if not alone:
            self._gather_applied(schema, path, entry, demands, nesting)
        entry.is_open = False

    def _gather_plain(self, schema, path, demands):
        try:
            demands.bits &= schema_type_bits(schema)
        except KeyError as error:
            raise UnsatisfiableSchema(schema_place(path + ("type",)), "unknown type %s" % error) from None
        if "const" in schema or "enum" in schema:
            demands.bits &= self._listed_bits(schema) | (SCHEMA_NULL if schema.get("nullable") is True else 0)
        if schema.get(SCHEMA_BARRED) == _SCHEMA_INTEGER_ONLY:
            demands.bits &= ~SCHEMA_INTEGER
        if not demands.bits:
            key = next((key for key in ("const", "enum") if key in schema), "type")
            raise UnsatisfiableSchema(schema_place(path + (key,)), "no type is allowed by all of it")
        if SCHEMA_BARRED in schema:
            demands.barred.append(schema[SCHEMA_BARRED])
            demands.checked = True
        if not _SCHEMA_CHECKED_WORDS.isdisjoint(schema):
            demands.checked = True

    def _gather_applied(self, schema, path, entry, demands, nesting):
        if SCHEMA_IN_PLACE_WORDS.isdisjoint(schema):
            return
        for at, inner in enumerate(schema_list(schema, "allOf")):
            self.gather(inner, path + ("allOf", at), entry, demands, nesting + 1)
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
        found = self.negator.alternatives(schema)
        demands.checked = True
        if not found:
            raise UnsatisfiableSchema(schema_place(path), "nothing is allowed by this `not`")
        if len(found) == 1:
            self.gather(found[0], path, entry, demands, nesting + 1)
        else:
            demands.choices.append((entry, "not%d" % id(schema), [(inner, path, nesting + 1) for inner in found]))

    def choose(self, entry, keyword, branches, demands, failures, depth):
        """Take one branch: of those that failed least, one whose type can be, drawn; null is drawn rarely."""
        demands.options += len(branches)
        self.chose = True
        self.budget.spend(1 + len(branches) // 4)
        key = (id(entry.schema), keyword)
        if keyword == "if":
            places = [at for at, word in enumerate(("then", "else")) if entry.schema.get(word) is not False]
        else:
            places = [at for at, branch in enumerate(branches) if self._shallow_bits(branch[0]) & demands.bits]
        places = places or range(len(branches))
        at = self.pick_least_failed(places, key, failures, lambda places: (
            self._likely(places, branches, demands, depth) if keyword != "if" and len(places) > 1 else places),
            demands.attempt)
        demands.picks.append((key, at))
        schema, path, nesting = branches[at]
        if keyword == "if":
            condition = entry.schema["if"]
            if schema:
                self.gather(condition, entry.path + ("if",), entry, demands, nesting)
            else:
                self._gather_not(condition, entry.path + ("if",), entry, demands, nesting)
            branch = entry.schema.get("then" if schema else "else")
            if is_schema(branch):
                self.gather(branch, path, entry, demands, nesting)
            return
        self.gather(schema, path, entry, demands, nesting)
        if keyword == "oneOf" and demands.attempt > 1:
            # at first the other branches are only checked: they mostly fail by themselves
            for other, (inner, other_path, _) in enumerate(branches):
                if other != at:
                    self._gather_not(inner, other_path, entry, demands, nesting)

    def pick_least_failed(self, places, key, failures, likely, attempt):
        """One of the places: of those that are likely, if none has failed more than another; else rather one that
        failed less. At every third try any: of two choices that always change together some pairs never meet."""
        counts = [failures.get((key, at), 0) for at in places]
        if attempt > 2 and attempt % 3 == 2:
            return places[draw_below(self.draw, len(places))]
        if min(counts) == max(counts):
            found = likely(list(places))
            return found[draw_below(self.draw, len(found))]
        weights = [(1 + count - min(counts)) ** -2.0 for count in counts]
        left = self.draw.random() * sum(weights)
        for at, weight in zip(places, weights):
            left -= weight
            if left < 0:
                return at
        return places[-1]

    def _likely(self, places, branches, demands, depth):
        if self.is_cramped(demands, depth) or self.level > 1 or self.recursion(demands) > 1:
            for levels in range(8):
                short = [at for at in places if self.ends_within(branches[at][0], levels)]
                if short:
                    return short
        if self._shallow_bits(branches[places[0]][0]) & SCHEMA_NUMBER:
            # a number that may also be written as a string, as decimals are, is a number
            places = [at for at in places if self._shallow_bits(branches[at][0]) != SCHEMA_STRING]
        if self.draw.random() < 0.88:
            return [at for at in places if self._shallow_bits(branches[at][0]) != SCHEMA_NULL] or places
        return places

    def _shallow_bits(self, schema):
        """The types that a branch allows, as far as one look tells."""
        for _ in range(4):
            if not isinstance(schema, dict):
                return 0 if schema is False else SCHEMA_ANY
            if "const" in schema and not (self.document.refs_alone and "$ref" in schema):
                return value_type_bit(schema["const"])
            if "$ref" not in schema or "type" in schema and not self.document.refs_alone:
                break
            try:
                schema = self.document.resolve(schema, "$ref")[0]
            except LookupError:
                return 0
        try:
            bits = schema_type_bits(schema)
        except KeyError:
            return 0
        return bits & self._listed_bits(schema)

    @staticmethod
    def _listed_bits(schema):
        """The types of what `const` or a short enum lists; all of them without such."""
        listed = schema.get("enum")
        if "const" in schema:
            return value_type_bit(schema["const"])
        if not isinstance(listed, list) or len(listed) > 50:
            return SCHEMA_ANY
        bits = 0
        for item in listed:
            bits |= value_type_bit(item)
        return bits

    def recursion(self, demands):
        return max((self.active.get(target, 0) for target in demands.references), default=0)

    def is_cramped(self, demands, depth):
        """True when only what is required should be made."""
        return depth > SCHEMA_ROOMY_DEPTH or self.nodes > SCHEMA_ROOMY_NODES

    def ends_within(self, schema, levels):
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
        fits = all(self.ends_within(inner, levels) for inner in self._schemas_in_place(schema))
        for keyword in ("anyOf", "oneOf"):
            branches = schema_list(schema, keyword)
            fits = fits and (not branches or any(self.ends_within(inner, levels) for inner in branches))
        if fits:
            fits = self._content_ends(schema, levels)
        self._fits[key] = fits
        return fits

    def _schemas_in_place(self, schema):
        for kind in SCHEMA_REFERENCES:
            if kind in schema:
                try:
                    yield self.document.resolve(schema, kind)[0]
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
            inner += [item for item in (self.checker.item_schema(schema, 0),) if item is not None]
        if bits & SCHEMA_ARRAY and "contains" in schema and schema_size(schema, "minContains") != 0:
            inner.append(schema["contains"])
        if not inner:
            return True
        return levels > 0 and all(self.ends_within(item, levels - 1) for item in inner)
