"""Schemas that Hypothesis makes up: each value satisfies its schema, says `jsonschema`; none with a value is refused.

Skipped without hypothesis and jsonschema. A refusal stands if a search through small values finds none, nor, in
a long run and for the drafts that it knows, hypothesis-jsonschema. More than CI's examples, and new ones each time:

    SCHEMA_EXAMPLES=20000 python -m unittest tests.test_schema_hypothesis
"""
import itertools
import json
import os
import random
import unittest

from backends.schema_check import UnsatisfiableSchema, satisfies
from backends.schema_values import generate_value

try:
    import hypothesis
    import jsonschema
    from hypothesis import strategies
except ImportError:
    hypothesis = jsonschema = strategies = None
try:
    import hypothesis_jsonschema
except ImportError:
    hypothesis_jsonschema = None

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "0"))
CI_EXAMPLES = 200                   # of each test: some 15 s together
SEEDS = (0, 1)                      # values made of each schema

NAMES = ("a", "b", "ab", "n1", "x_")
STRINGS = ("", "a", "b", "ab", "n1", "x_", "abc", "12", "A-1", "2026-05-04", "a@b.co", "zzzzzz")
PATTERNS = ("^a", "b$", "^[a-z]{2,4}$", r"^\d+$", "^(a|b)*$", "^$", ".", "^x_", r"^[A-Z]-\d$", "[^a]", "a|b", r"^\w+@\w+\.\w+$",
            r"\bb", "^(?!a)", "^[aA][bB]$", "^.{3}$")
FORMATS = ("date", "email", "uuid", "ipv4", "uri", "date-time", "hostname", "time", "made-up")
TYPES = ("null", "boolean", "object", "array", "string", "integer", "number")

if hypothesis is not None:
    DRAFTS = {"2020-12": jsonschema.Draft202012Validator, "2019-09": jsonschema.Draft201909Validator,
              "7": jsonschema.Draft7Validator, "6": jsonschema.Draft6Validator, "4": jsonschema.Draft4Validator}


SCALARS = (None, True, False, 0, 1, 2, -1, 7, 1.5, -0.5, 10, 100)


class SchemaMaker:
    """Draws schemas of one draft. Its methods draw one keyword's value each.

    source: a random.Random, which Hypothesis may stand behind. draft: of DRAFTS.
    """

    def __init__(self, source, draft):
        self.source = source
        self.draft = draft
        self.is_old = draft in ("4", "6", "7")
        self.defs = "definitions" if self.is_old else "$defs"

    def pick(self, *choices):
        return choices[self.source.randrange(len(choices))]

    def count(self, most=3):
        return self.source.randrange(most + 1)

    def several(self, choices, least, most):
        """Some of the choices, each once."""
        found = []
        for _ in range(least + self.count(most - least)):
            found += [choice for choice in (self.pick(*choices),) if choice not in found]
        return found

    def value(self):
        """A JSON value."""
        kind = self.count(7)
        if kind == 0:
            return [self.scalar() for _ in range(self.count(2))]
        if kind == 1:
            return {name: self.scalar() for name in self.several(NAMES, 0, 2)}
        return self.scalar()

    def scalar(self):
        return self.pick(*SCALARS) if self.count(1) else self.pick(*STRINGS)

    def number(self):
        return self.pick(-3, -1, 0, 1, 2, 3, 5, 7, 10, 0.5, 1.5, -2.5, 100)

    def root(self):
        """A whole schema."""
        schema = self.schema(3)
        if schema.__class__ is bool:
            return schema if self.draft != "4" else {}
        key = jsonschema_key(self.draft)
        schema["$schema"] = DRAFTS[self.draft].META_SCHEMA[key]
        if "#/" in json.dumps(schema):
            schema[self.defs] = {"x": self.schema(2, leafy=True), "y": self.schema(2)}
        return schema

    def schema(self, depth, leafy=False):
        """A schema with `depth` levels below it at most."""
        kind = self.pick(*("simple", "simple", "object", "array", "combined", "mixed", "mixed") if depth > 0 else ("simple",))
        if kind == "simple" or leafy and depth <= 0:
            return self.simple()
        if kind == "object":
            return self.some(OBJECT_WORDS, depth, {"type": "object"})
        if kind == "array":
            return self.some(ARRAY_WORDS, depth, {"type": "array"})
        if kind == "combined":
            return self.some(COMBINING_WORDS, depth, {"type": self.pick(*TYPES)} if self.count(1) else {})
        return self.some(ALL_WORDS, depth, {}, most=6)

    def simple(self):
        kind = self.pick("type", "types", "string", "string", "number", "number", "enum", "const", "any", "ref", "never")
        if kind == "type":
            return {"type": self.pick(*TYPES)}
        if kind == "types":
            return {"type": self.several(TYPES, 1, 3)}
        if kind == "string":
            return self.some(STRING_WORDS, 0, {"type": "string"})
        if kind == "number":
            return self.some(NUMBER_WORDS, 0, {"type": self.pick("number", "integer")})
        if kind == "enum":
            return {"enum": [self.value() for _ in range(1 + self.count(3))]}
        if kind == "const":
            value = self.value()
            return {"enum": [value]} if self.draft == "4" else {"const": value}
        if kind == "ref":
            return {"$ref": "#/%s/%s" % (self.defs, self.pick("x", "x", "y"))}
        if self.draft == "4":
            return {} if kind == "any" else {"not": {}}
        return self.pick(True, {}) if kind == "any" else False

    def some(self, words, depth, schema, most=4):
        """`schema` with some of the keywords."""
        for word in self.several(words, 0, most):
            if word not in NOT_IN.get(self.draft, ()):
                made = getattr(self, "make_" + word)(depth - 1)
                schema.update(made)
        return schema

    # strings
    def make_minLength(self, depth):
        return {"minLength": self.count(6)}

    def make_maxLength(self, depth):
        return {"maxLength": self.count(12)}

    def make_pattern(self, depth):
        return {"pattern": self.pick(*PATTERNS)}

    def make_format(self, depth):
        return {"format": self.pick(*FORMATS)}

    # numbers
    def make_minimum(self, depth):
        return {"minimum": self.number()}

    def make_maximum(self, depth):
        return {"maximum": self.number()}

    def make_exclusiveMinimum(self, depth):
        return {"minimum": self.number(), "exclusiveMinimum": True} if self.draft == "4" else {"exclusiveMinimum": self.number()}

    def make_exclusiveMaximum(self, depth):
        return {"maximum": self.number(), "exclusiveMaximum": True} if self.draft == "4" else {"exclusiveMaximum": self.number()}

    def make_multipleOf(self, depth):
        return {"multipleOf": self.pick(1, 2, 3, 0.5, 0.25, 0.1, 7)}

    # objects
    def names(self, least=0):
        return self.several(NAMES, least, 3)

    def make_properties(self, depth):
        return {"properties": {name: self.schema(depth) for name in self.names()}}

    def make_required(self, depth):
        return {"required": self.names(1)}

    def make_additionalProperties(self, depth):
        return {"additionalProperties": False if self.count(1) else self.schema(depth)}

    def make_patternProperties(self, depth):
        return {"patternProperties": {pattern: self.schema(depth) for pattern in self.several(
            ("^a", "b$", "^n\\d$", "_", "^[a-z]$"), 0, 2)}}

    def make_propertyNames(self, depth):
        return {"propertyNames": self.pick({"pattern": "^[a-z]"}, {"maxLength": 2}, {"enum": ["a", "b", "q"]}, {"not": {"const": "a"}},
                                           {"minLength": 2})}

    def make_minProperties(self, depth):
        return {"minProperties": self.count(3)}

    def make_maxProperties(self, depth):
        return {"maxProperties": self.count(4)}

    def make_dependentRequired(self, depth):
        return {"dependentRequired": {self.pick(*NAMES): self.names()}}

    def make_dependentSchemas(self, depth):
        return {"dependentSchemas": {self.pick(*NAMES): self.schema(depth)}}

    def make_dependencies(self, depth):
        return {"dependencies": {self.pick(*NAMES): self.names(1) if self.count(1) else self.schema(depth)}}

    def make_unevaluatedProperties(self, depth):
        return {"unevaluatedProperties": False if self.count(2) else self.schema(depth)}

    # arrays
    def make_items(self, depth):
        schema = self.schema(depth)
        if self.draft != "2020-12" and schema.__class__ is bool:
            schema = {} if schema else {"not": {}}      # jsonschema 4.26 fails at a boolean beside additionalItems
        return {"items": schema}

    def make_prefixItems(self, depth):
        made = [self.schema(depth) for _ in range(1 + self.count(2))]
        if self.draft == "2020-12":
            return {"prefixItems": made}
        return {"items": made, "additionalItems": False if self.count(1) else self.schema(depth)}

    def make_contains(self, depth):
        return {"contains": self.schema(depth)}

    def make_minContains(self, depth):
        return {"contains": self.schema(depth), "minContains": self.count(2)}

    def make_maxContains(self, depth):
        return {"contains": self.schema(depth), "maxContains": self.count(2)}

    def make_minItems(self, depth):
        return {"minItems": self.count(3)}

    def make_maxItems(self, depth):
        return {"maxItems": self.count(4)}

    def make_uniqueItems(self, depth):
        return {"uniqueItems": bool(self.count(3))}

    def make_unevaluatedItems(self, depth):
        return {"unevaluatedItems": False if self.count(2) else self.schema(depth)}

    # combinators
    def branches(self, depth):
        return [self.schema(depth) for _ in range(1 + self.count(2))]

    def make_allOf(self, depth):
        return {"allOf": self.branches(depth)}

    def make_anyOf(self, depth):
        return {"anyOf": self.branches(depth)}

    def make_oneOf(self, depth):
        return {"oneOf": self.branches(depth)}

    def make_not(self, depth):
        return {"not": self.schema(depth)}

    def make_if(self, depth):
        made = {"if": self.schema(depth)}
        if self.count(2):
            made["then"] = self.schema(depth)
        if self.count(1):
            made["else"] = self.schema(depth)
        return made

    def make_type(self, depth):
        return {"type": self.pick(*TYPES)}

    def make_enum(self, depth):
        return {"enum": [self.value() for _ in range(1 + self.count(4))]}

    def make_ref(self, depth):
        # an old draft passes over what stands beside it
        return {"$ref": self.pick("#", "#/%s/x" % self.defs, "#/%s/y" % self.defs)}


STRING_WORDS = ("minLength", "maxLength", "pattern", "format")
NUMBER_WORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
OBJECT_WORDS = ("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
                "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties")
ARRAY_WORDS = ("items", "prefixItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems",
               "unevaluatedItems")
COMBINING_WORDS = ("allOf", "anyOf", "oneOf", "not", "if", "ref", "enum")
ALL_WORDS = STRING_WORDS + NUMBER_WORDS + OBJECT_WORDS + ARRAY_WORDS + COMBINING_WORDS + ("type",)
_SINCE_2019 = ("dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "minContains", "maxContains")
# In 2019-09 jsonschema 4.26 takes the schema under additionalProperties for names of properties when it looks for
# unevaluated ones, and fails at boolean items.
NOT_IN = {"2020-12": ("dependencies",), "2019-09": ("dependencies", "unevaluatedProperties", "unevaluatedItems"), "7": _SINCE_2019, "6": _SINCE_2019 + ("if",),
          "4": _SINCE_2019 + ("if", "contains", "propertyNames")}


def jsonschema_key(draft):
    return "id" if draft == "4" else "$id"


# ---- is there a value at all? -----------------------------------------------------------------

def words_of(schema, found):
    """The values that a schema lists, and those of its bounds."""
    if schema.__class__ is dict:
        for key, value in schema.items():
            if key == "enum":
                found.extend(value)
            elif key == "const":
                found.append(value)
            elif value.__class__ in (int, float):
                found += [value, value + 1, value - 1, value + 0.5]
            else:
                words_of(value, found)
    elif schema.__class__ is list:
        for each in schema:
            words_of(each, found)
    return found


def small_values(schema):
    """Candidates: scalars, what the schema lists, and arrays and objects of these."""
    near = words_of(schema, [])
    scalars = [None, True, False, 0, 1, 2, 3, -1, 5, 0.5, 1.5, 6, 10, 12, 21, 42, -10] + list(STRINGS) + ["abcd", "b1", "cc", "aab"]
    base = []
    for value in near + scalars:
        if not any(value == other and value.__class__ is other.__class__ for other in base):
            base.append(value)
    yield from base
    yield from ([], {})
    few = base[:14] + ["a", "b", "ab", 0, 1, 7]
    for size in (1, 2, 3, 4):
        for value in few:
            yield [value] * size
    for pair in itertools.permutations(few, 2):
        yield list(pair)
        yield list(pair) + [few[-1]]
    for size in (1, 2, 3):
        for names in itertools.combinations(NAMES + ("q", "zz"), size):
            for value in few[:10] + [{}, []]:
                yield dict.fromkeys(names, value)
            for values in itertools.islice(itertools.product(few[:6], repeat=size), 12):
                yield dict(zip(names, values))


def find_value(schema, validator, draft):
    """(value,) that satisfies the schema, or None."""
    judge = validator(schema)
    for value in small_values(schema):
        if draft == "4" and value.__class__ is float and value.is_integer():
            continue                    # no integer there
        if judge.is_valid(value):
            return (value,)
    if hypothesis_jsonschema is None or draft not in ("4", "6", "7") or not EXAMPLES:
        return None
    found = []

    @hypothesis.settings(max_examples=60, database=None, deadline=None, phases=[hypothesis.Phase.generate],
                         verbosity=hypothesis.Verbosity.quiet, print_blob=False,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(hypothesis_jsonschema.from_schema(json.loads(json.dumps(schema))))    # it changes what it reads
    def look(value):
        if judge.is_valid(value):
            found.append(value)
    try:
        look()
    except Exception:
        return None                 # it gives up, or knows a keyword less
    return (found[0],) if found else None


def check_schema(schema, draft):
    """Make values for a schema: (values made, refusals). AssertionError for a wrong value, or a wrong refusal."""
    validator, before = DRAFTS[draft], json.dumps(schema)
    if schema.__class__ is dict and goes_in_circles(schema):
        try:
            satisfies(generate_value(schema, random.Random(0)), schema)
        except UnsatisfiableSchema:
            pass                        # the specification leaves it open; that it ends is all
        return 0, 0
    values = 0
    for seed in SEEDS:
        try:
            value = generate_value(schema, random.Random(seed))
        except UnsatisfiableSchema as problem:
            found = find_value(schema, validator, draft)
            if found is not None:
                raise AssertionError("refused (%s), though %s satisfies %s" % (problem, json.dumps(found[0]), before))
            return values, 1
        values += 1
        text = json.dumps(value, allow_nan=False)
        if not validator(schema).is_valid(value) and not (
                "format" in before and satisfies(value, schema, asserts_formats=True) and find_value(schema, validator, draft) is None):
            raise AssertionError("%s does not satisfy %s" % (text, before))     # not even where formats are demands
        elif not satisfies(value, schema) and "format" not in before:
            raise AssertionError("the own checker refuses %s for %s" % (text, before))
    if json.dumps(schema) != before:
        raise AssertionError("the schema was changed: %s" % before)
    return values, 0


@unittest.skipIf(hypothesis is None, "hypothesis and jsonschema are not installed")
class HypothesisTest(unittest.TestCase):

    def check(self, draft):
        met = {"values": 0, "refusals": 0}

        @hypothesis.settings(max_examples=EXAMPLES or CI_EXAMPLES, deadline=None, database=None, derandomize=not EXAMPLES,
                             phases=[hypothesis.Phase.generate],        # making them smaller takes minutes
                             report_multiple_bugs=False, suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(strategies.randoms(use_true_random=False))
        def each(source):
            schema = SchemaMaker(source, draft).root()
            values, refusals = check_schema(schema, draft)
            met["values"] += values
            met["refusals"] += refusals
        each()
        self.assertGreater(met["values"], met["refusals"] // 2, met)


IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")


def goes_in_circles(root):
    """Whether a schema applies to a value only if it applies to the value: jsonschema does not end there, or panics."""
    defs = root.get("$defs") or root.get("definitions") or {}
    whole = {"#": root}
    whole.update(("#/%s/%s" % (key, name), schema) for name, schema in defs.items() for key in ("$defs", "definitions"))

    def circles(schema, path):
        if schema.__class__ is list:
            return any([circles(each, path) for each in schema])
        if schema.__class__ is not dict:
            return False
        if id(schema) in path:
            return True
        path = path | {id(schema)}
        if "$ref" in schema:
            if circles(whole[schema["$ref"]], path):
                return True
        for key in IN_PLACE:
            inner = schema.get(key)
            if key.startswith("dependen") and inner.__class__ is dict:
                inner = [each for each in inner.values() if each.__class__ is dict]
            if circles(inner, path):
                return True
        return False

    def anywhere(schema):
        if schema.__class__ is list:
            return any([anywhere(each) for each in schema])
        return schema.__class__ is dict and (circles(schema, frozenset()) or any([anywhere(each) for each in schema.values()]))
    return anywhere(root)


def _add_tests():
    for draft in ("2020-12", "2019-09", "7", "6", "4"):
        def test(self, draft=draft):
            self.check(draft)
        name = "test_values_satisfy_schemas_of_draft_" + draft.replace("-", "_")
        test.__name__ = name
        setattr(HypothesisTest, name, test)


_add_tests()


if __name__ == "__main__":
    unittest.main()
