"""Tests of values made for JSON schemas: each keyword, what looks real, the same everywhere, and bounded work.

The checks against `jsonschema`, its test suite, and Pydantic and Zod models are in .ci/check_schema_values.py.
"""
import hashlib
import json
import random
import re
import unittest

from backends.schema_check import UnsatisfiableSchema, satisfies
from backends.schema_formats import draw_format, format_holds
from backends.schema_patterns import SchemaPattern
from backends.schema_regex import PatternError
from backends.schema_values import generate_value
from backends.schema_work import WorkBudget, WorkSpent

SEEDS = range(12)

WEATHER = {
    "type": "object",
    "properties": {
        "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["location", "unit", "days"], "additionalProperties": False}

TREE = {"$ref": "#/$defs/node", "$defs": {"node": {
    "type": "object", "required": ["name", "children"],
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                   "parent": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}}

# name: (schema, what each value must be, said without the product)
KEYWORDS = {
    "type": ({"type": "boolean"}, lambda v: isinstance(v, bool)),
    "type list": ({"type": ["null", "array"]}, lambda v: v is None or isinstance(v, list)),
    "true": (True, lambda v: True),
    "empty": ({}, lambda v: True),
    "enum": ({"enum": [3, "x", None]}, lambda v: v in (3, "x", None)),
    "enum and type": ({"enum": [3, "x", None], "type": "string"}, lambda v: v == "x"),
    "const": ({"const": {"a": [1]}}, lambda v: v == {"a": [1]}),
    "required beyond properties": ({"required": ["a"], "type": "object"}, lambda v: "a" in v),
    "additionalProperties schema": ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
                                    lambda v: len(v) >= 2 and all(isinstance(x, int) for x in v.values())),
    "additionalProperties false": ({"properties": {"a": {}}, "additionalProperties": False, "type": "object"},
                                   lambda v: set(v) <= {"a"}),
    "patternProperties": ({"type": "object", "patternProperties": {"^n_[a-z]{3}$": {"type": "number"}},
                           "additionalProperties": False, "minProperties": 2},
                          lambda v: len(v) >= 2 and all(re.match("n_[a-z]{3}$", k) for k in v)),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^[A-Z]{2}$"}, "minProperties": 3},
                      lambda v: len(v) >= 3 and all(re.match("[A-Z]{2}$", k) for k in v)),
    "maxProperties": ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["c"],
                       "maxProperties": 1}, lambda v: set(v) == {"c"}),
    "dependentRequired": ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"],
                           "dependentRequired": {"a": ["b"]}}, lambda v: {"a", "b"} <= set(v)),
    "dependentSchemas": ({"type": "object", "required": ["a"], "dependentSchemas": {
        "a": {"required": ["b"], "properties": {"b": {"const": 5}}}}}, lambda v: v["b"] == 5),
    "dependencies": ({"type": "object", "required": ["a", "c"], "dependencies": {
        "a": ["b"], "c": {"properties": {"c": {"const": 1}}}}}, lambda v: "b" in v and v["c"] == 1),
    "items": ({"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4},
              lambda v: len(v) == 4 and all(isinstance(x, int) for x in v)),
    "items list": ({"type": "array", "items": [{"const": 1}, {"const": 2}], "additionalItems": False, "minItems": 2},
                   lambda v: v == [1, 2]),
    "prefixItems": ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 2},
                    lambda v: v == [1, 2]),
    "contains": ({"type": "array", "contains": {"const": 7}, "minContains": 2, "maxContains": 2, "minItems": 4},
                 lambda v: v.count(7) == 2 and len(v) >= 4),
    "uniqueItems": ({"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 4},
                    lambda v: sorted(v) == [1, 2, 3, 4]),
    "unevaluatedProperties": ({"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}}],
                               "unevaluatedProperties": False}, lambda v: set(v) <= {"a"}),
    "unevaluatedItems": ({"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": {"const": 2},
                          "minItems": 3}, lambda v: v == [1, 2, 2]),
    "minimum maximum": ({"type": "integer", "minimum": 7, "maximum": 8}, lambda v: v in (7, 8)),
    "exclusive numbers": ({"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 9}, lambda v: v == 8),
    "exclusive booleans": ({"type": "integer", "minimum": 7, "exclusiveMinimum": True, "maximum": 9,
                            "exclusiveMaximum": True}, lambda v: v == 8),
    "narrow number": ({"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.1000001},
                      lambda v: 0.1 < v < 0.1000001),
    "multipleOf": ({"type": "integer", "multipleOf": 7, "minimum": 50, "maximum": 60}, lambda v: v == 56),
    "multipleOf fraction": ({"type": "number", "multipleOf": 0.25, "exclusiveMinimum": 0, "maximum": 1},
                            lambda v: v in (0.25, 0.5, 0.75, 1)),
    "two multipleOf": ({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "minimum": 1,
                        "maximum": 12}, lambda v: v == 12),
    "lengths": ({"type": "string", "minLength": 5, "maxLength": 5}, lambda v: len(v) == 5),
    "pattern": ({"type": "string", "pattern": r"^[A-Z]{3}-\d{4}$"}, lambda v: re.match(r"[A-Z]{3}-\d{4}\Z", v)),
    "pattern and length": ({"type": "string", "pattern": "^a+b*$", "minLength": 40, "maxLength": 40},
                           lambda v: len(v) == 40 and re.match("a+b*$", v)),
    "two patterns": ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}]},
                     lambda v: v[0] == "a" and v[-1] == "z"),
    "nullable": ({"type": "string", "nullable": True, "enum": [None]}, lambda v: v is None),
    "anyOf": ({"anyOf": [{"const": 1}, {"const": 2}]}, lambda v: v in (1, 2)),
    "anyOf with one way": ({"type": "object", "required": ["a"], "properties": {"a": {"const": 9}},
                            "anyOf": [{"properties": {"a": {"const": n}}} for n in range(20)]}, lambda v: v["a"] == 9),
    "oneOf": ({"type": "integer", "minimum": 0, "maximum": 30, "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]},
              lambda v: (v % 3 == 0) != (v % 5 == 0)),
    "allOf": ({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                         {"properties": {"a": {"minimum": 5}}}, {"properties": {"a": {"maximum": 5}}}],
               "type": "object"}, lambda v: v["a"] == 5),
    "not type": ({"not": {"type": ["object", "array", "string", "null", "boolean"]}},
                 lambda v: isinstance(v, (int, float))),
    "not enum": ({"enum": [1, 2, 3], "not": {"enum": [1, 3]}}, lambda v: v == 2),
    "not required": ({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a"]}},
                     lambda v: "a" not in v),
    "not pattern": ({"type": "string", "enum": ["ab", "cd"], "not": {"pattern": "^a"}}, lambda v: v == "cd"),
    "not not": ({"not": {"not": {"const": 4}}}, lambda v: v == 4),
    "if then else": ({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"],
                      "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]},
                      "else": {"required": ["y"]}}, lambda v: ("x" if v["kind"] == "a" else "y") in v),
    "$ref with siblings": ({"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": {"type": "integer", "maximum": 3}}},
                           lambda v: v == 3),
    "$ref to an escaped pointer": ({"$ref": "#/definitions/a~1b%25c", "definitions": {"a/b%c": {"const": 1}}},
                                   lambda v: v == 1),
    "$anchor": ({"$ref": "#here", "$defs": {"n": {"$anchor": "here", "const": 2}}}, lambda v: v == 2),
    "$id": ({"$id": "http://example.com/root", "$ref": "item", "$defs": {"n": {"$id": "item", "const": 3}}},
            lambda v: v == 3),
    "$dynamicRef": ({"$dynamicRef": "#here", "$defs": {"n": {"$dynamicAnchor": "here", "const": 2}}},
                    lambda v: v == 2),
}

# schema: part of the path of the refusal
UNSATISFIABLE = [
    (False, ""),
    ({"type": "object", "properties": {"city": {"type": "string", "pattern": "("}}, "required": ["city"]},
     "properties.city.pattern"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "required.a"),
    ({"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "maximum": 4}}, "required": ["n"]},
     "properties.n.m"),
    ({"type": "string", "minLength": 5, "maxLength": 4}, "minLength"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
    ({"enum": []}, "enum"),
    ({"const": 1, "type": "string"}, "const"),
    ({"type": "strnig"}, "type"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allOf.1.type"),
    ({"not": {}}, "not"),
    ({"$ref": "#/$defs/missing"}, "$ref"),
    ({"$ref": "https://example.com/other.json"}, "$ref"),
    ({"$ref": "#"}, ""),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["x"],
                                           "properties": {"x": {"$ref": "#/$defs/a"}}}}}, "$defs.a.properties.x"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 3}, "items"),
    ({"type": "object", "properties": {"a": {"type": "array", "items": False, "minItems": 1}}, "required": ["a"]},
     "properties.a.items"),
    ({"type": "string", "minLength": 10 ** 9}, "minLength"),
    ({"oneOf": [{"type": "string"}, {"type": "string"}]}, ""),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, "pattern"),
    ({"properties": {"a": 5}, "required": ["a"], "type": "object"}, "properties.a"),
]


def nested(levels, wrap, schema):
    for _ in range(levels):
        schema = wrap(schema)
    return schema


# Schemas made to take for ever; a value or a refusal are both right.
HOSTILE = {
    "deep required": nested(1000, lambda s: {"type": "object", "properties": {"a": s}, "required": ["a"]}, True),
    "deep optional": nested(1000, lambda s: {"type": "object", "properties": {"a": s}}, True),
    "deep items": nested(1000, lambda s: {"type": "array", "items": s}, True),
    "deep allOf": nested(1000, lambda s: {"allOf": [s]}, True),
    "deep not": nested(1000, lambda s: {"not": s}, True),
    "wide anyOf": nested(1000, lambda s: {"anyOf": [s, s]}, True),
    "wide oneOf": nested(20, lambda s: {"oneOf": [s, s]}, {"type": "string"}),
    "hopeless anyOf of allOf": nested(30, lambda s: {"anyOf": [{"allOf": [s, s]}, {"allOf": [s, s]}]},
                                      {"type": "string", "pattern": "^a$", "const": "b"}),
    "tree of 2 to the 30": {"$ref": "#/$defs/n30", "$defs": dict(
        [("n0", {"type": "integer"})]
        + [("n%d" % n, {"type": "object", "required": ["l", "r"], "properties": {
            side: {"$ref": "#/$defs/n%d" % (n - 1)} for side in "lr"}}) for n in range(1, 31)])},
    "array of arrays": nested(3, lambda s: {"type": "array", "minItems": 10000, "items": s}, True),
    "catastrophic pattern": {"type": "string", "minLength": 3000, "allOf": [
        {"pattern": "^(a|aa)+$"}, {"not": {"pattern": "^(a*)*$"}}]},
    "catastrophic back-reference": {"type": "string", "const": "a" * 300, "pattern": "^(a*)*\\1b$"},
    "huge repeats": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    "paradox": {"not": {"$ref": "#"}},
    "endless dependent": {"required": ["a"], "dependentSchemas": {"a": {"$ref": "#"}}},
    "huge numbers": {"type": "number", "minimum": 10 ** 400, "multipleOf": 1e-300},
    "infinite numbers": {"type": "number", "minimum": float("inf")},
    "many patterns": {"type": "object", "properties": {"p%d" % n: True for n in range(2000)},
                      "patternProperties": {"^x%d$" % n: True for n in range(2000)}},
}

# Keywords of a wrong shape, and values that JSON has not.
MALFORMED = [
    {"type": 5}, {"enum": 5}, {"enum": float("nan")}, {"required": "a"}, {"properties": []}, {"items": 5}, {"minimum": "1"},
    {"pattern": 5}, {"allOf": {}}, {"anyOf": []}, {"oneOf": [5]}, {"not": 5}, {"if": 5, "then": 5}, {"$ref": 5}, {"minLength": -1},
    {"maxLength": True}, {"multipleOf": 0}, {"multipleOf": -1}, {"minItems": 1e400}, {"dependentRequired": 5},
    {"dependencies": {"a": 5}, "required": ["a"]}, {"format": 5}, {"examples": [float("nan")]}, {"default": float("inf")},
    {"type": [{}]}, {"type": []}, {"$id": 5, "$ref": "#"}, {"patternProperties": {"(": True}, "type": "object"}, {"const": None},
    {"propertyNames": 5, "type": "object", "minProperties": 1}, {"contains": 5, "type": "array"}, {"title": 5},
    {"description": ["x"], "type": "string"}, {"$defs": 5, "$ref": "#/$defs/a"}, {"prefixItems": {}, "type": "array"},
]

PATTERNS = [
    r"^[A-Z]{3}-\d{4}$", r"^\w+@\w+\.(com|org)$", r"^\S+$", r"^[^\s@]+@[^\s@]+$", r"^#?([a-f0-9]{6}|[a-f0-9]{3})$",
    r"^(?!abc)\w{3,}$", r"^\d{1,3}(\.\d{1,3}){3}$", r"(?i)^abc$", r"^.*$", r"[\]\-a]", r"^(?P<y>\d{4})-(?P=y)$", r"(\w)\1",
    r"x(?<=x)y", r"^[\u4e00-\u9fa5]+$", r"\x41\t", r"^(foo|bar|)$", r"^[^a-z]{2}$", r"^\/api\/v\d+$", r"^$", "",
    r"\bfoo\b", r"a{2,3}?b*", r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[@$!%*?&])[A-Za-z\d@$!%*?&]{8,}$", r"^a{,3}$", r"a{x}",
]


class KeywordTest(unittest.TestCase):

    def test_values_satisfy_each_keyword(self):
        for name, (schema, is_right) in KEYWORDS.items():
            for seed in SEEDS:
                with self.subTest(keyword=name, seed=seed):
                    value = generate_value(schema, random.Random(seed))
                    self.assertTrue(is_right(value), value)
                    self.assertTrue(satisfies(value, schema), value)

    def test_formats_give_values_that_have_them(self):
        known = ("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "ipv4", "ipv6", "uri",
                 "uri-reference", "iri", "uuid", "json-pointer", "regex", "byte", "binary")
        for kind in known:
            for seed in SEEDS:
                with self.subTest(format=kind, seed=seed):
                    value = generate_value({"type": "string", "format": kind}, random.Random(seed))
                    self.assertIsNotNone(draw_format(kind, random.Random(seed)))
                    self.assertTrue(format_holds(kind, value), value)

    def test_format_checks_tell_right_from_wrong(self):
        table = {"date": ("2024-02-29", "2023-02-29"), "time": ("10:20:30Z", "25:00:00Z"), "uuid": ("0" * 8 + "-0000-0000-0000-" + "0" * 12, "x"),
                 "date-time": ("2024-01-02T03:04:05+02:00", "2024-01-02 03:04"), "email": ("a.b@example.com", "a..b@example.com"),
                 "ipv4": ("192.0.2.1", "192.0.2.256"), "ipv6": ("2001:db8::1", "2001:db8:::1"), "uri": ("https://example.com/a", "/a"),
                 "hostname": ("a.example.com", "-a.example.com"), "duration": ("P1DT2H", "P"), "json-pointer": ("/a~0", "a"),
                 "regex": ("^a$", "("), "byte": ("YWI=", "Y")}
        for kind, (right, wrong) in table.items():
            with self.subTest(format=kind):
                self.assertTrue(format_holds(kind, right))
                self.assertFalse(format_holds(kind, wrong))

    def test_a_format_that_contradicts_another_keyword_is_only_a_note(self):
        schema = {"type": "string", "format": "email", "enum": ["nobody"]}
        self.assertEqual(generate_value(schema, random.Random(1)), "nobody")

    def test_old_drafts_pass_over_what_stands_beside_a_reference(self):
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"n": {"const": 1}},
                  "type": "object", "required": ["a"],
                  "properties": {"a": {"$ref": "#/definitions/n", "type": "string"}}}
        self.assertEqual(generate_value(schema, random.Random(1)), {"a": 1})

    def test_recursion_stays_small(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                value = generate_value(TREE, random.Random(seed))
                self.assertTrue(satisfies(value, TREE))
                self.assertLess(len(json.dumps(value)), 4000)

    def test_optional_properties_are_mostly_there(self):
        schema = {"type": "object", "properties": {"p%d" % n: {"type": "boolean"} for n in range(10)}}
        counts = [len(generate_value(schema, random.Random(seed))) for seed in range(50)]
        self.assertGreater(sum(counts), 350)
        self.assertLess(sum(counts), 500)

    def test_lists_without_bounds_have_one_to_three_items(self):
        lengths = {len(generate_value({"type": "array"}, random.Random(seed))) for seed in range(50)}
        self.assertEqual(lengths, {1, 2, 3})

    def test_bounds_of_ten_thousand_are_honoured(self):
        self.assertEqual(len(generate_value({"type": "string", "minLength": 10000}, random.Random(1))), 10000)
        numbers = generate_value({"type": "array", "items": {"type": "integer"}, "uniqueItems": True,
                                  "minItems": 10000}, random.Random(1))
        self.assertEqual(len(set(numbers)), 10000)
        names = ["p%d" % n for n in range(10000)]
        self.assertEqual(len(generate_value({"type": "object", "required": names}, random.Random(1))), 10000)


class SatisfiesTest(unittest.TestCase):

    def test_values_that_fail_a_keyword_are_told(self):
        table = [(1, {"type": "string"}), (True, {"type": "integer"}), (1.5, {"type": "integer"}), (2, {"enum": [1]}),
                 (True, {"const": 1}), ({}, {"required": ["a"]}), ({"a": 1}, {"properties": {"a": {"type": "string"}}}),
                 ({"b": 1}, {"properties": {"a": True}, "additionalProperties": False}),
                 ([1, 1.0], {"uniqueItems": True}), ([1], {"contains": {"const": 2}}), ([1, 2], {"prefixItems": [True], "items": False}),
                 (3, {"not": {"type": "integer"}}), (4, {"oneOf": [{"multipleOf": 2}, {"multipleOf": 4}]}),
                 (5, {"exclusiveMaximum": 5}), (5, {"maximum": 5, "exclusiveMaximum": True}), ("ab", {"maxLength": 1}),
                 ("b", {"pattern": "^a"}), (0.0076, {"multipleOf": 0.0025}), (3, {"if": {"minimum": 2}, "then": {"minimum": 4}}),
                 ({"a": 1}, {"dependentRequired": {"a": ["b"]}}), ({"ab": 1}, {"propertyNames": {"maxLength": 1}}),
                 ({"b": 1}, {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}), (1, False)]
        for value, schema in table:
            with self.subTest(value=value, schema=schema):
                self.assertIs(satisfies(value, schema), False)

    def test_values_that_hold_are_told(self):
        table = [(1.0, {"type": "integer"}), (1.0, {"const": 1}), (0.0075, {"multipleOf": 0.0025}), (None, {"type": "string", "nullable": True}),
                 ({"a": 1}, {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}), ([1, True], {"uniqueItems": True}),
                 ("x", {"format": "email"}), (1, True), ({}, {"properties": {"a": False}}), ("a\u00e9", {"maxLength": 2})]
        for value, schema in table:
            with self.subTest(value=value, schema=schema):
                self.assertIs(satisfies(value, schema), True)

    def test_references_start_from_the_root_that_is_given(self):
        root = {"$defs": {"n": {"const": 1}}}
        self.assertTrue(satisfies(1, {"$ref": "#/$defs/n"}, root))
        self.assertFalse(satisfies(2, {"$ref": "#/$defs/n"}, root))

    def test_formats_count_when_asked_for(self):
        self.assertFalse(satisfies("x", {"format": "email"}, asserts_formats=True))


class SparseTest(unittest.TestCase):
    """As a model calls a tool: what is required, and the rest only where nothing is."""

    def test_optional_properties_are_left_out_where_some_are_required(self):
        schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
        for seed in range(20):
            self.assertEqual(list(generate_value(schema, random.Random(seed), sparse=True)), ["a"])

    def test_they_are_there_where_none_is(self):
        for more in ({}, {"required": []}):         # instructor sends the empty list
            schema = dict({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}, **more)
            found = [generate_value(schema, random.Random(seed), sparse=True) for seed in range(20)]
            self.assertGreater(sum(len(value) for value in found), 20)


class Draft4Test(unittest.TestCase):

    def test_an_id_below_the_root_names_a_schema(self):
        schema = {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x/root",
                  "allOf": [{"$ref": "n.json"}], "definitions": {"A": {"id": "n.json", "type": "integer"}}}
        self.assertIsInstance(generate_value(schema, random.Random(0)), int)


class UnsatisfiableTest(unittest.TestCase):

    def test_the_place_is_named(self):
        for schema, path in UNSATISFIABLE:
            with self.subTest(schema=schema):
                with self.assertRaises(UnsatisfiableSchema) as caught:
                    generate_value(schema, random.Random(1))
                self.assertIn(path, caught.exception.path)
                self.assertTrue(caught.exception.reason)

    def test_an_optional_property_that_cannot_be_is_left_out(self):
        schema = {"type": "object", "properties": {"a": False, "b": {"type": "string", "pattern": "^a$", "minLength": 9},
                                                   "c": {"const": 1}}, "required": ["c"]}
        self.assertEqual(generate_value(schema, random.Random(1)), {"c": 1})

    def test_hostile_schemas_end_in_a_value_or_a_refusal(self):
        for name, schema in HOSTILE.items():
            with self.subTest(schema=name):
                try:
                    value = generate_value(schema, random.Random(1))
                except UnsatisfiableSchema as problem:
                    self.assertTrue(problem.reason)
                    self.assertLess(len(problem.path), 6000)
                else:
                    json.dumps(value, allow_nan=False)

    def test_malformed_schemas_end_in_a_value_or_a_refusal(self):
        for schema in MALFORMED:
            for wanted in (schema, {"type": "object", "properties": {"a": schema}, "required": ["a"]}, {"not": schema}):
                with self.subTest(schema=wanted):
                    try:
                        value = generate_value(wanted, random.Random(1))
                    except UnsatisfiableSchema as problem:
                        self.assertTrue(problem.reason)
                    else:
                        json.dumps(value, allow_nan=False)

    def test_random_schemas_give_values_that_satisfy_them_or_a_refusal(self):
        source = random.Random(7)
        values = 0
        for number in range(150):
            schema = random_schema(source, 3)
            try:
                value = generate_value(schema, random.Random(number))
            except UnsatisfiableSchema:
                continue
            values += 1
            self.assertTrue(satisfies(value, schema, asserts_formats=True) or satisfies(value, schema), schema)
        self.assertGreater(values, 90)


def random_schema(source, depth):
    """A schema of drawn keywords."""
    if depth == 0:
        return source.choice([True, {"type": "string"}, {"type": "integer"}, {"const": 1}, {"type": "null"}])
    schema = {}
    for _ in range(source.randrange(1, 4)):
        key = source.choice(["type", "properties", "required", "items", "anyOf", "oneOf", "allOf", "not", "if", "enum",
                             "minimum", "maxLength", "pattern", "minItems", "uniqueItems", "format", "$ref"])
        schema[key] = {
            "type": lambda: source.choice(["object", "array", "string", "integer", ["string", "null"]]),
            "properties": lambda: {name: random_schema(source, depth - 1) for name in "ab"},
            "required": lambda: ["a"], "items": lambda: random_schema(source, depth - 1),
            "anyOf": lambda: [random_schema(source, depth - 1) for _ in range(2)],
            "oneOf": lambda: [random_schema(source, depth - 1) for _ in range(2)],
            "allOf": lambda: [random_schema(source, depth - 1) for _ in range(2)],
            "not": lambda: random_schema(source, depth - 1), "if": lambda: random_schema(source, depth - 1),
            "enum": lambda: [1, "a", None, {"a": 1}], "minimum": lambda: 3, "maxLength": lambda: 2,
            "pattern": lambda: "^a", "minItems": lambda: 2, "uniqueItems": lambda: True, "format": lambda: "date",
            "$ref": lambda: "#"}[key]()
    return schema


class PatternTest(unittest.TestCase):

    def test_drawn_texts_match_by_pythons_own_re(self):
        for pattern in PATTERNS:
            for seed in SEEDS:
                with self.subTest(pattern=pattern, seed=seed):
                    value = generate_value({"type": "string", "pattern": pattern}, random.Random(seed))
                    self.assertIsNotNone(re.search(pattern, value), value)

    def test_search_agrees_with_pythons_own_re(self):
        source = random.Random(5)
        for pattern in PATTERNS:
            ours = SchemaPattern(pattern)
            for _ in range(60):
                text = "".join(source.choice("aAbfox12-.@# /v\u4e2d") for _ in range(source.randrange(9)))
                with self.subTest(pattern=pattern, text=text):
                    self.assertEqual(ours.search(text, WorkBudget(100000)), bool(re.search(pattern, text, re.ASCII)))

    def test_properties_of_characters(self):
        for pattern, right, wrong in ((r"^\p{L}+$", "a\u00e9\u4e2d", "1"), (r"^\p{Lu}$", "\u00c9", "a"), (r"^\P{L}$", "1", "a"),
                                      (r"^[\p{N}_]$", "\u0663", "a"), (r"^\p{Script=Greek}$", "\u03b1", "a")):
            with self.subTest(pattern=pattern):
                ours = SchemaPattern(pattern)
                self.assertTrue(ours.search(right, WorkBudget(1000)))
                self.assertFalse(ours.search(wrong, WorkBudget(1000)))
                self.assertTrue(ours.search(generate_value({"type": "string", "pattern": pattern}, random.Random(1)),
                                            WorkBudget(1000)))

    def test_the_end_is_the_end_and_not_before_a_newline(self):
        self.assertFalse(SchemaPattern("^a$").search("a\n", WorkBudget(100)))

    def test_patterns_that_cannot_be_read_are_refused(self):
        for pattern in ("(", ")", "[", "a{2,1}", "*", "\\", "(?<n", "\\p{Nope1}", "[b-a]", "\\xzz", "(?z)", "(" * 60 + ")" * 60):
            with self.subTest(pattern=pattern), self.assertRaises(PatternError):
                SchemaPattern(pattern)

    def test_a_catastrophic_pattern_takes_linear_work(self):
        budget = WorkBudget(100000)
        self.assertFalse(SchemaPattern("^(a+)+$").search("a" * 5000 + "b", budget))

    def test_back_references_end_with_the_budget(self):
        with self.assertRaises(WorkSpent):
            SchemaPattern(r"^(a*)*\1b$").search("a" * 300, WorkBudget(5000))


class RealTest(unittest.TestCase):

    def test_the_city_that_the_user_names_is_used(self):
        for hint in ("What is the weather in Oslo?", "What's it like in Oslo today", "Hello. Is Oslo warm?"):
            with self.subTest(hint=hint):
                self.assertEqual(generate_value(WEATHER, random.Random(1), hint)["location"], "Oslo")

    def test_names_of_several_words_and_several_places(self):
        schema = {"type": "object", "properties": {"origin": {"type": "string"}, "destination": {"type": "string"}},
                  "required": ["origin", "destination"]}
        value = generate_value(schema, random.Random(1), "Book a flight from New York to Oslo.")
        self.assertEqual(value, {"origin": "New York", "destination": "Oslo"})

    def test_the_first_word_of_a_sentence_is_no_name(self):
        value = generate_value(WEATHER, random.Random(1), "Bring me tea. Hurry up")
        self.assertNotIn(value["location"], ("Bring", "Hurry"))

    def test_a_listed_value_that_the_user_says_is_taken(self):
        for seed in SEEDS:
            self.assertEqual(generate_value(WEATHER, random.Random(seed), "in fahrenheit please")["unit"], "fahrenheit")

    def test_described_examples_are_taken(self):
        self.assertEqual(generate_value(WEATHER, random.Random(1))["location"], "San Francisco, CA")

    def test_examples_are_taken_and_wrong_ones_are_not(self):
        schema = {"type": "integer", "examples": ["x", 400], "maximum": 500}
        self.assertEqual({generate_value(schema, random.Random(seed)) == 400 for seed in SEEDS} - {False}, {True})
        self.assertIsInstance(generate_value({"type": "integer", "examples": ["x"]}, random.Random(1)), int)

    def test_properties_get_what_their_names_say(self):
        table = {"email": r"[a-z.]+@example\.(com|org)\Z", "contactEmail": r".+@example\.(com|org)\Z", "website": r"https://example\.com/",
                 "start_date": r"\d{4}-\d\d-\d\d\Z", "createdAt": r"\d{4}-\d\d-\d\dT", "phone_number": r"\+1-555-01\d\d\Z",
                 "currency": r"[A-Z]{3}\Z", "language": r"[a-z]{2}\Z", "user_id": r"[A-H]-\d{4}\Z", "name": r"[A-Z][a-z]+ [A-Z][a-z]+\Z",
                 "time": r"\d\d:\d\d\Z", "expression": r"\d+ \+ \d+\Z"}
        for name, pattern in table.items():
            with self.subTest(name=name):
                schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
                self.assertRegex(generate_value(schema, random.Random(3))[name], pattern)

    def test_numbers_are_of_a_likely_size(self):
        table = {"age": (18, 80), "latitude": (-90, 90), "year": (2000, 2030), "hour": (0, 23), "confidence": (0, 1)}
        for name, (low, high) in table.items():
            with self.subTest(name=name):
                schema = {"type": "object", "properties": {name: {"type": "number"}}, "required": [name]}
                for seed in SEEDS:
                    value = generate_value(schema, random.Random(seed))[name]
                    self.assertTrue(low <= value <= high, value)

    def test_commands_and_code_are_harmless_whatever_the_examples_say(self):
        for name in ("command", "cmd", "script", "code", "shell_command", "sourceCode"):
            with self.subTest(name=name):
                schema = {"type": "object", "required": [name], "properties": {
                    name: {"type": "string", "examples": ["rm -rf /"], "description": "e.g. reboot now"}}}
                self.assertEqual(generate_value(schema, random.Random(1), "run Reboot")[name], "echo hello")

    def test_strings_hold_no_shell_syntax(self):
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in (
            "a", "text", "path", "query", "input", "prompt", "value", "argument", "file", "data")}}
        for seed in SEEDS:
            for value in generate_value(schema, random.Random(seed), "Please $(reboot); in `Rome` | now").values():
                self.assertNotRegex(value, r"[$`;|&<>\\]")


class SameTest(unittest.TestCase):

    def test_the_same_seed_gives_the_same_value(self):
        for name, (schema, _) in KEYWORDS.items():
            with self.subTest(keyword=name):
                values = {json.dumps(generate_value(schema, random.Random(5))) for _ in range(3)}
                self.assertEqual(len(values), 1)

    def test_seeds_differ(self):
        values = {json.dumps(generate_value(TREE, random.Random(seed))) for seed in range(10)}
        self.assertGreater(len(values), 8)

    def test_values_are_the_same_on_every_python_and_in_every_process(self):
        schemas = [WEATHER, TREE] + [schema for schema, _ in KEYWORDS.values()] + [
            {"type": "string", "pattern": pattern} for pattern in PATTERNS]
        texts = [json.dumps(generate_value(schema, random.Random(seed), "From Rome to Oslo"))
                 for schema in schemas for seed in range(4)]
        self.assertEqual(hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16], "23e47825c279ad6e")

    def test_the_schema_is_not_changed(self):
        before = json.dumps(TREE)
        generate_value(TREE, random.Random(1))
        self.assertEqual(json.dumps(TREE), before)


if __name__ == "__main__":
    unittest.main()
