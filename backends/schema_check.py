"""What a JSON Schema says: where its references lead, and whether a value satisfies it.

In: a schema as parsed from JSON, of draft 2020-12 or one of the forms from draft 4 on, and OpenAPI's `nullable`.
Out: bools and schemas. Keywords of a wrong shape are passed over, unknown ones too; references stay inside the
document. Work is counted in a budget. One object serves one call; any thread.
"""
from urllib.parse import unquote, urljoin

from backends.schema_formats import format_holds
from backends.schema_patterns import SchemaPattern
from backends.schema_regex import PatternError
from backends.schema_work import WorkBudget, WorkSpent

SCHEMA_CHECK_WORK = 400000          # units of about a microsecond
SCHEMA_SHOWN_KEYS = 24              # of a path in an error

# One bit a type. JSON Schema's "number" is two bits, so that "integer" can be taken from it.
SCHEMA_NULL, SCHEMA_BOOLEAN, SCHEMA_OBJECT, SCHEMA_ARRAY, SCHEMA_STRING, SCHEMA_INTEGER, SCHEMA_FRACTION = (
    1, 2, 4, 8, 16, 32, 64)
SCHEMA_NUMBER = SCHEMA_INTEGER | SCHEMA_FRACTION
SCHEMA_ANY = 127
SCHEMA_TYPE_BITS = {
    "null": SCHEMA_NULL, "boolean": SCHEMA_BOOLEAN, "object": SCHEMA_OBJECT, "array": SCHEMA_ARRAY,
    "string": SCHEMA_STRING, "integer": SCHEMA_INTEGER, "number": SCHEMA_NUMBER, "any": SCHEMA_ANY}

# Where the schemas inside a schema are.
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMA_SINGLES = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties",
                   "contains", "propertyNames", "not", "if", "then", "else")
_SCHEMA_OLD_DRAFTS = ("draft-03", "draft-04", "draft-05", "draft-06", "draft-07")

# Words that are looked for before the work of looking at each: most schemas have none of them.
_SCHEMA_BOUND_WORDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
SCHEMA_IN_PLACE_WORDS = frozenset(("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "not ",
                                   "if", "unevaluatedProperties", "unevaluatedItems"))

# A schema that a value must fail, and that no other schema can say: read as "not", but never taken apart.
SCHEMA_BARRED = "not "


class UnsatisfiableSchema(Exception):
    """No value can be made. path: where, as in "properties.city.pattern"; reason: a clause; spent:
    whether more work might still have found one."""

    def __init__(self, path, reason, spent=False):
        super().__init__("%s: %s" % (path or "(root)", reason))
        self.path = path
        self.reason = reason
        self.spent = spent


def schema_place(path):
    """A tuple of keys -> "properties.city"; a very long one is cut."""
    shown = [str(key)[:200] for key in path[:SCHEMA_SHOWN_KEYS]]
    return ".".join(shown + ["..."] if len(path) > SCHEMA_SHOWN_KEYS else shown)


def json_equal(left, right):
    """Equality of JSON values: 1 is 1.0, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return left == right


def json_key(value):
    """A hashable that is equal for equal JSON values."""
    if isinstance(value, dict):
        return ("object", frozenset((key, json_key(item)) for key, item in value.items()))
    if isinstance(value, list):
        return ("array", tuple(json_key(item) for item in value))
    if isinstance(value, bool):
        return ("boolean", value)
    return value


def schema_number(schema, key):
    """The number under `key`, or None."""
    value = schema.get(key)
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    return value


def schema_size(schema, key):
    """The non-negative whole number under `key`, or None."""
    if key not in schema:
        return None
    value = schema_number(schema, key)
    if value is None or value in (float("inf"), float("-inf")):
        return None
    return max(0, int(value))


def schema_dict(schema, key):
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def schema_list(schema, key):
    value = schema.get(key)
    return value if isinstance(value, list) else []


def schema_strings(schema, key):
    """The strings in the list under `key`."""
    return [name for name in schema_list(schema, key) if isinstance(name, str)]


def is_schema(value):
    return isinstance(value, (dict, bool))


def schema_bounds(schema):
    """(low, low is excluded, high, high is excluded); None where there is no bound. Draft 4's booleans too."""
    if _SCHEMA_BOUND_WORDS.isdisjoint(schema):
        return None, False, None, False
    low, high = schema_number(schema, "minimum"), schema_number(schema, "maximum")
    low_open = schema.get("exclusiveMinimum") is True
    high_open = schema.get("exclusiveMaximum") is True
    above, below = schema_number(schema, "exclusiveMinimum"), schema_number(schema, "exclusiveMaximum")
    if above is not None and (low is None or above >= low):
        low, low_open = above, True
    if below is not None and (high is None or below <= high):
        high, high_open = below, True
    return low, low_open, high, high_open


def schema_type_bits(schema):
    """The types that `type` and `nullable` allow. Raises KeyError for an unknown type's name."""
    kinds = schema.get("type")
    if isinstance(kinds, str):
        bits = SCHEMA_TYPE_BITS[kinds]
    elif isinstance(kinds, list):
        bits = 0
        for kind in kinds:
            if isinstance(kind, str):
                bits |= SCHEMA_TYPE_BITS[kind]
            elif isinstance(kind, dict):
                return SCHEMA_ANY
    else:
        return SCHEMA_ANY
    return bits | SCHEMA_NULL if schema.get("nullable") is True else bits


def value_type_bit(value):
    """The one bit of a JSON value; 1.0 is an integer. 0 for what JSON cannot say: NaN and the infinities."""
    if value is None:
        return SCHEMA_NULL
    if isinstance(value, bool):
        return SCHEMA_BOOLEAN
    if isinstance(value, str):
        return SCHEMA_STRING
    if isinstance(value, dict):
        return SCHEMA_OBJECT
    if isinstance(value, (list, tuple)):
        return SCHEMA_ARRAY
    if isinstance(value, int) or value.is_integer():
        return SCHEMA_INTEGER
    return SCHEMA_FRACTION if value - value == 0 else 0


def decimal_fraction(value):
    """A number as JSON writes it, exact: 0.1 is a tenth."""
    from fractions import Fraction
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def is_multiple(value, step):
    """Exact in decimals, or by the quotient of two floats: what either way is one counts as one."""
    if isinstance(value, int) and isinstance(step, int):
        return step == 0 or value % step == 0
    if step == 0:
        return True
    try:
        quotient = value / step
        if quotient.is_integer():
            return True
    except OverflowError:
        pass
    if value != value or value in (float("inf"), float("-inf")):
        return False
    return decimal_fraction(value) % decimal_fraction(step) == 0


def is_step(step):
    return step is not None and 0 < step < float("inf")


class SchemaDocument:
    """The root schema and what its references lead to."""

    def __init__(self, root):
        self.root = root
        dialect = root.get("$schema") if isinstance(root, dict) else None
        self.refs_alone = isinstance(dialect, str) and any(draft in dialect for draft in _SCHEMA_OLD_DRAFTS)
        self._draft4 = isinstance(dialect, str) and "draft-04" in dialect      # which says `id` for $id
        self._bases = None              # id of a schema -> its base URI
        self._resources = {}            # URI -> (schema, path)
        self._anchors = {}              # (URI, anchor) -> (schema, path, is dynamic)
        self._found = {}                # (base, reference, kind) -> (schema, path)

    def _index(self):
        """Walk over all schemas once; done at the first reference."""
        self._bases = {}
        self._resources[""] = (self.root, ())
        todo = [(self.root, "", ())]
        while todo:
            schema, base, path = todo.pop()
            if not isinstance(schema, dict) or id(schema) in self._bases:
                continue
            base = self._note_names(schema, base, path)
            self._bases[id(schema)] = base
            for key in schema:
                value = schema[key]
                if key in _SCHEMA_MAPS and isinstance(value, dict):
                    todo.extend((value[name], base, path + (key, name)) for name in value)
                elif key in _SCHEMA_LISTS and isinstance(value, list):
                    todo.extend((item, base, path + (key, at)) for at, item in enumerate(value))
                elif key in _SCHEMA_SINGLES and isinstance(value, dict):
                    todo.append((value, base, path + (key,)))

    def _note_names(self, schema, base, path):
        """Note $id and the anchors of one schema. Returns its base URI."""
        name = schema.get("$id", schema.get("id"))
        if isinstance(name, str) and not (self.refs_alone and "$ref" in schema):
            if name.startswith("#"):            # an anchor, up to draft 7
                self._anchors.setdefault((base, name[1:]), (schema, path, False))
            elif "$id" in schema or not path or self._draft4:
                base = urljoin(base, name).partition("#")[0]
                self._resources.setdefault(base, (schema, path))
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._anchors.setdefault((base, schema[key]), (schema, path, key != "$anchor"))
        if schema.get("$recursiveAnchor") is True:
            self._anchors.setdefault((base, ""), (schema, path, True))
        return base

    def resolve(self, schema, kind):
        """The schema that schema[kind] refers to. kind: "$ref", "$dynamicRef" or "$recursiveRef".

        Returns (schema, path). Raises LookupError when it is none of this document's.
        """
        if self._bases is None:
            self._index()
        reference = schema[kind]
        if not isinstance(reference, str):
            raise LookupError("a reference must be a string")
        base = self._bases.get(id(schema), "")
        key = (base, reference, kind)
        if key not in self._found:
            self._found[key] = self._find(base, reference, kind)
        return self._found[key]

    def _find(self, base, reference, kind):
        uri, _, fragment = (urljoin(base, reference) if reference[:1] != "#" else base + reference).partition("#")
        if uri not in self._resources:
            raise LookupError("%r is not in this document" % reference)
        resource, path = self._resources[uri]
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((uri, fragment))
        elif fragment:
            return self._point(resource, path, fragment, uri)
        else:
            found = self._anchors.get((uri, "")) if kind == "$recursiveRef" else None
            found = found or (resource, path, False)
        if found is None:
            raise LookupError("%r is not in this document" % reference)
        if found[2] and kind != "$ref":
            # the outermost schema of that name wins, and nothing is further out than the root
            outer = self._anchors.get((self._bases.get(id(self.root), ""), fragment))
            if outer and outer[2]:
                found = outer
        return found[:2]

    def _point(self, schema, path, pointer, base):
        """Follow a JSON pointer (RFC 6901) from `schema`."""
        for part in pointer[1:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and part in schema:
                schema = schema[part]
            elif isinstance(schema, list) and part.isdigit() and int(part) < len(schema):
                schema = schema[int(part)]
            else:
                raise LookupError("%r leads nowhere" % ("#" + pointer))
            path += (part,)
            if isinstance(schema, dict):
                base = self._bases.setdefault(id(schema), base)
        if not is_schema(schema):
            raise LookupError("%r is no schema" % ("#" + pointer))
        return schema, path


class SchemaChecker:
    """Whether values satisfy schemas of one document. asserts_formats: `format` counts, too."""

    def __init__(self, document, budget, asserts_formats):
        self.document = document
        self.budget = budget
        self.asserts_formats = asserts_formats
        self.format_failed = False      # a format said no since this was last set
        self._patterns = {}
        self._open = set()              # (id of a reference's target, id of a value) that are being looked at

    def pattern(self, text):
        """The SchemaPattern of `text`, read once. Raises UnsatisfiableSchema."""
        found = self._patterns.get(text)
        if found is None:
            self.budget.spend(2 + len(text))
            try:
                found = SchemaPattern(text)
            except PatternError as error:
                found = error
            self._patterns[text] = found
        if isinstance(found, PatternError):
            raise UnsatisfiableSchema("", "%r is no regular expression this server knows: %s" % (text[:80], found))
        return found

    def matches(self, pattern, text):
        """True when the regular expression `pattern` is found in `text`."""
        try:
            return self.pattern(pattern).search(text, self.budget)
        except PatternError as error:
            raise UnsatisfiableSchema("", "%r: %s" % (pattern[:80], error)) from None

    def ok(self, value, schema):
        """True when `value` satisfies `schema`. Raises WorkSpent, UnsatisfiableSchema (a reference or pattern)."""
        self.budget.spend(2)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            return True
        if "$ref" in schema and self.document.refs_alone:
            return self._ok_reference(value, schema)
        if not self._ok_plain(value, schema):
            return False
        if isinstance(value, str):
            held = self._ok_string(value, schema)
        elif isinstance(value, dict):
            held = self._ok_object(value, schema)
        elif isinstance(value, list):
            held = self._ok_array(value, schema)
        elif value is None or isinstance(value, bool):
            held = True
        else:
            held = self._ok_number(value, schema)
        if not held or SCHEMA_IN_PLACE_WORDS.isdisjoint(schema):
            return held
        return self._ok_in_place(value, schema) and self._ok_unevaluated(value, schema)

    def _ok_plain(self, value, schema):
        if "type" in schema:
            try:
                if not value_type_bit(value) & schema_type_bits(schema):
                    return False
            except KeyError:
                return False
        if isinstance(schema.get("enum"), list) and not any(json_equal(value, item) for item in schema["enum"]):
            if not (value is None and schema.get("nullable") is True):
                return False
        return "const" not in schema or json_equal(value, schema["const"])

    def _ok_string(self, value, schema):
        low, high = schema_size(schema, "minLength"), schema_size(schema, "maxLength")
        if (low is not None and len(value) < low) or (high is not None and len(value) > high):
            return False
        if isinstance(schema.get("pattern"), str) and not self.matches(schema["pattern"], value):
            return False
        kind = schema.get("format")
        if not self.asserts_formats or not isinstance(kind, str) or format_holds(kind, value):
            return True
        self.format_failed = True
        return False

    def _ok_number(self, value, schema):
        low, low_open, high, high_open = schema_bounds(schema)
        if low is not None and (value < low or (low_open and value == low)):
            return False
        if high is not None and (value > high or (high_open and value == high)):
            return False
        step = schema_number(schema, "multipleOf")
        return not is_step(step) or is_multiple(value, step)

    def _ok_object(self, value, schema):
        low, high = schema_size(schema, "minProperties"), schema_size(schema, "maxProperties")
        if (low is not None and len(value) < low) or (high is not None and len(value) > high):
            return False
        if any(name not in value for name in schema_strings(schema, "required")):
            return False
        if "propertyNames" in schema and not all(self.ok(name, schema["propertyNames"]) for name in value):
            return False
        for trigger, wanted in self._dependencies(schema):
            if trigger in value:
                if isinstance(wanted, list):
                    if any(name not in value for name in wanted if isinstance(name, str)):
                        return False
                elif not self.ok(value, wanted):
                    return False
        if not ("properties" in schema or "patternProperties" in schema or "additionalProperties" in schema):
            return True
        for name, item in value.items():
            for inner in self.property_schemas(schema, name):
                if not self.ok(item, inner):
                    return False
        return True

    def _dependencies(self, schema):
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            if key in schema:
                for trigger, wanted in schema_dict(schema, key).items():
                    yield trigger, wanted if not isinstance(wanted, str) else [wanted]

    def property_schemas(self, schema, name):
        """What this schema itself, not the ones in place, says about the property `name`: a list of schemas."""
        found = []
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
        if "patternProperties" in schema:
            for pattern, inner in schema_dict(schema, "patternProperties").items():
                if self.matches(pattern, name):
                    found.append(inner)
        if not found and "additionalProperties" in schema:
            found.append(schema["additionalProperties"])
        return found

    def item_schema(self, schema, index):
        """What this schema itself says about the item at `index`: a schema, or None."""
        first = schema.get("prefixItems")
        rest = schema.get("items")
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems")
        if isinstance(first, list) and index < len(first):
            return first[index]
        return rest if is_schema(rest) else None

    def _ok_array(self, value, schema):
        low, high = schema_size(schema, "minItems"), schema_size(schema, "maxItems")
        if (low is not None and len(value) < low) or (high is not None and len(value) > high):
            return False
        if schema.get("uniqueItems") is True:
            self.budget.spend(len(value))
            if len({json_key(item) for item in value}) < len(value):
                return False
        for index, item in enumerate(value):
            inner = self.item_schema(schema, index)
            if inner is not None and not self.ok(item, inner):
                return False
        if is_schema(schema.get("contains")):
            least, most = schema_size(schema, "minContains"), schema_size(schema, "maxContains")
            count = sum(self.ok(item, schema["contains"]) for item in value)
            return count >= (1 if least is None else least) and (most is None or count <= most)
        return True

    def _ok_reference(self, value, schema, kind="$ref"):
        try:
            target = self.document.resolve(schema, kind)[0]
        except LookupError as error:
            raise UnsatisfiableSchema("", str(error.args[0])) from None
        place = (id(target), id(value))     # a value holds none of itself: meeting both again is going in a circle
        if place in self._open:
            raise UnsatisfiableSchema("", "it refers to itself without end")
        self._open.add(place)
        try:
            return self.ok(value, target)
        finally:
            self._open.remove(place)

    def _ok_in_place(self, value, schema):
        for kind in ("$ref", "$dynamicRef", "$recursiveRef"):
            if kind in schema and not self._ok_reference(value, schema, kind):
                return False
        if "allOf" in schema and not all(self.ok(value, inner) for inner in schema_list(schema, "allOf")):
            return False
        if schema_list(schema, "anyOf") and not any(self.ok(value, inner) for inner in schema["anyOf"]):
            return False
        if schema_list(schema, "oneOf") and sum(self.ok(value, inner) for inner in schema["oneOf"]) != 1:
            return False
        for key in ("not", SCHEMA_BARRED):
            if key in schema and is_schema(schema[key]) and self.ok(value, schema[key]):
                return False
        if is_schema(schema.get("if")):
            branch = schema.get("then" if self.ok(value, schema["if"]) else "else")
            return not is_schema(branch) or self.ok(value, branch)
        return True

    def _ok_unevaluated(self, value, schema):
        key = "unevaluatedProperties"
        if key in schema and isinstance(value, dict):
            seen = self.evaluated_names(value, schema, False)
            if not all(self.ok(item, schema[key]) for name, item in value.items() if name not in seen):
                return False
        key = "unevaluatedItems"
        if key in schema and isinstance(value, list):
            seen = self._evaluated_items(value, schema, False)
            return all(self.ok(item, schema[key]) for at, item in enumerate(value) if at not in seen)
        return True

    def _in_place_schemas(self, value, schema):
        """The schemas in place that apply to `value` and hold."""
        for kind in ("$ref", "$dynamicRef", "$recursiveRef"):
            if kind in schema:
                yield self.document.resolve(schema, kind)[0]
        yield from schema_list(schema, "allOf")
        for key in ("anyOf", "oneOf"):
            yield from (inner for inner in schema_list(schema, key) if self.ok(value, inner))
        if is_schema(schema.get("if")):
            held = self.ok(value, schema["if"])
            if held:
                yield schema["if"]
            yield schema.get("then" if held else "else")
        if isinstance(value, dict):
            yield from (wanted for trigger, wanted in self._dependencies(schema)
                        if trigger in value and not isinstance(wanted, list))

    def evaluated_names(self, value, schema, whole=True):
        """The names of an object that holds `schema` which it has looked at. whole: unevaluatedProperties, too."""
        self.budget.spend(1)
        if not isinstance(schema, dict):
            return set()
        if whole and "unevaluatedProperties" in schema:
            return set(value)
        seen = {name for name in value if self.property_schemas(schema, name)}
        for inner in self._in_place_schemas(value, schema):
            seen |= self.evaluated_names(value, inner)
        return seen

    def _evaluated_items(self, value, schema, whole=True):
        self.budget.spend(1)
        if not isinstance(schema, dict):
            return set()
        if whole and "unevaluatedItems" in schema:
            return set(range(len(value)))
        seen = {at for at in range(len(value)) if self.item_schema(schema, at) is not None}
        if is_schema(schema.get("contains")):
            seen |= {at for at, item in enumerate(value) if self.ok(item, schema["contains"])}
        for inner in self._in_place_schemas(value, schema):
            seen |= self._evaluated_items(value, inner)
        return seen


def satisfies(value, schema, root=None, asserts_formats=False):
    """Whether a JSON value satisfies a schema.

    root: the schema whose place the references start from, when `schema` is a part of it.
    Returns a bool. Raises UnsatisfiableSchema when a reference leads out of the document, a pattern cannot
    be read, or the check is more work than one call may take.
    """
    checker = SchemaChecker(SchemaDocument(schema if root is None else root), WorkBudget(SCHEMA_CHECK_WORK),
                            asserts_formats)
    try:
        return checker.ok(value, schema)
    except WorkSpent:
        raise UnsatisfiableSchema("", "checking it takes too much work") from None
    except RecursionError:
        raise UnsatisfiableSchema("", "it is nested too deeply, or refers to itself without end") from None
