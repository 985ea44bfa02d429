"""What would not satisfy a JSON schema: its opposite, said in schemas.

In: a schema. Out: schemas; a value that satisfies one of them fails the first. Some opposites no keyword can say:
they stand under SCHEMA_BARRED and are only checked. One object serves one call.
"""
from random import Random

from backends.schema_check import (SCHEMA_BARRED, SCHEMA_INTEGER, SCHEMA_NUMBER, SCHEMA_TYPE_BITS, UnsatisfiableSchema,
                                   is_schema, schema_bounds, schema_dict, schema_list, schema_size, schema_strings,
                                   schema_type_bits)


def _names_within(schema, found):
    """Some strings that a schema lists."""
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        if len(found) < 8:
            if isinstance(value, str):
                found.append(value)
            else:
                _names_within(value, found)
    return found


# What a value may be to fail a keyword. Each alternative is a schema; a value that satisfies one of them fails
# the negated schema (a few are only likely to: the generator checks what it made).
class SchemaNegator:
    """Schemas that say the opposite. Keeps what it made: ids of schemas are keys elsewhere."""

    def __init__(self, checker):
        self._checker = checker
        self._made = {}

    def alternatives(self, schema):
        """[schema, ...]: a value fails `schema` if it satisfies one of them. Empty: no value fails it."""
        found = self._made.get(id(schema))
        if found is None:
            found = (schema, self._build(schema))
            self._made[id(schema)] = found
        return found[1]

    def opposite(self, schema):
        """{"not": schema}, the same object each time."""
        key = ("opposite", id(schema))
        if key not in self._made:
            self._made[key] = {"not": schema}
        return self._made[key]

    def _build(self, schema):
        if schema is False:
            return [True]
        if not isinstance(schema, dict):
            return []
        if self._checker.document.refs_alone and "$ref" in schema:
            return self._not_reference(schema, "$ref", schema["$ref"])
        found = []
        for key, value in schema.items():
            method = self._METHODS.get(key)
            if method is not None:
                found.extend(method(self, schema, key, value))
        return found

    def _not_type(self, schema, key, value):
        try:
            bits = schema_type_bits(schema)
        except KeyError:
            return [True]
        others = [name for name, bit in SCHEMA_TYPE_BITS.items() if name not in ("integer", "any") and not bits & bit]
        found = [{"type": others}] if others else []
        if bits & SCHEMA_NUMBER == SCHEMA_INTEGER:
            found.append({"type": "number", SCHEMA_BARRED: {"type": "integer"}})
        return found

    def _not_value(self, schema, key, value):
        return [{SCHEMA_BARRED: {"enum": value if key == "enum" else [value]}}]

    def _not_bound(self, schema, key, value):
        low, low_open, high, high_open = schema_bounds(schema)
        if "inimum" in key and low is not None:
            return [{"type": "number", "maximum" if low_open else "exclusiveMaximum": low}]
        if "aximum" in key and high is not None:
            return [{"type": "number", "minimum" if high_open else "exclusiveMinimum": high}]
        return []

    def _not_size(self, schema, key, value):
        size = schema_size(schema, key)
        kind = {"Length": "string", "Items": "array", "Properties": "object"}[key[3:]]
        if size is None or (size == 0 and key.startswith("min")):
            return []
        if key.startswith("min"):
            return [{"type": kind, "max" + key[3:]: size - 1}]
        return [{"type": kind, "min" + key[3:]: size + 1}]

    def _not_string(self, schema, key, value):
        return [{"type": "string", SCHEMA_BARRED: {key: value}}]

    def _not_multiple(self, schema, key, value):
        return [{"type": "number", SCHEMA_BARRED: {key: value}}]

    def _not_required(self, schema, key, value):
        return [{"type": "object", "properties": {name: False}} for name in schema_strings(schema, key)]

    def _not_properties(self, schema, key, value):
        return [{"type": "object", "required": [name], "properties": {name: {"not": inner}}}
                for name, inner in schema_dict(schema, key).items() if inner not in (True, {})]

    def _not_additional(self, schema, key, value):
        name = "extra"
        while self._checker.property_schemas(dict(schema, additionalProperties=True), name) != [True]:
            name += "a"
            if len(name) > 20:
                return [{SCHEMA_BARRED: schema}]
        return [{"type": "object", "required": [name], "properties": {name: {"not": value}}}]

    def _not_names(self, schema, key, value):
        found = [{"type": "object", "minProperties": 1, "propertyNames": {"not": value}}]
        for name in _names_within(value, []) + ["extra", "a", "", "B1"]:
            if not self._checker.ok(name, value):
                found.append({"type": "object", "required": [name]})
        return found

    def _not_items(self, schema, key, value):
        if isinstance(value, list):
            return [{"type": "array", "minItems": at + 1, "prefixItems": [True] * at + [{"not": inner}]}
                    for at, inner in enumerate(value)]
        first = len(schema_list(schema, "prefixItems"))
        return [{"type": "array", "minItems": first + 1, "prefixItems": [True] * first + [{"not": value}]}]

    def _not_contains(self, schema, key, value):
        return [{"type": "array", "items": {"not": value}}, {"type": "array", SCHEMA_BARRED: schema}]

    def _not_dependent(self, schema, key, value):
        found = []
        for trigger, wanted in schema_dict(schema, key).items():
            if isinstance(wanted, list):
                found.extend({"type": "object", "required": [trigger], "properties": {name: False}}
                             for name in wanted if isinstance(name, str))
            else:
                found.append({"type": "object", "required": [trigger], "not": wanted})
        return found

    def _not_all(self, schema, key, value):
        return [{"not": inner} for inner in schema_list(schema, key)]

    def _not_any(self, schema, key, value):
        nothing = {"allOf": [{"not": inner} for inner in schema_list(schema, key)]}
        return [nothing] if key == "anyOf" else [nothing, {SCHEMA_BARRED: {"oneOf": value}}]

    def _not_not(self, schema, key, value):
        return [value] if is_schema(value) else []

    def _not_if(self, schema, key, value):
        found = []
        if is_schema(schema.get("then")):
            found.append({"allOf": [value, {"not": schema["then"]}]})
        if is_schema(schema.get("else")):
            found.append({"allOf": [{"not": value}, {"not": schema["else"]}]})
        return found

    def _not_reference(self, schema, key, value):
        try:
            return [{"not": self._checker.document.resolve(schema, key)[0]}]
        except LookupError as error:
            raise UnsatisfiableSchema("", str(error.args[0])) from None

    def _not_pattern_properties(self, schema, key, value):
        found = []
        for pattern, inner in schema_dict(schema, key).items():
            if inner not in (True, {}):
                name = self._checker.pattern(pattern).sample(Random(0), 3, False, 0, self._checker.budget)
                found.append({"type": "object", "required": [name], "properties": {name: {"not": inner}}})
        return found + [{"type": "object", "minProperties": 1, SCHEMA_BARRED: schema}]

    def _not_unevaluated(self, schema, key, value):
        if key == "unevaluatedItems":
            return [{"type": "array", "minItems": 1, SCHEMA_BARRED: schema}]
        return [{"type": "object", "required": ["extra"], SCHEMA_BARRED: schema}]

    def _not_additional_items(self, schema, key, value):
        first = len(schema_list(schema, "items"))
        if not first:
            return []
        return [{"type": "array", "minItems": first + 1, "prefixItems": [True] * first + [{"not": value}]}]

    def _not_array(self, schema, key, value):
        return [{"type": "array", "minItems": 2, SCHEMA_BARRED: schema}]

    _METHODS = {
        "type": _not_type, "const": _not_value, "enum": _not_value, "minimum": _not_bound, "maximum": _not_bound,
        "exclusiveMinimum": _not_bound, "exclusiveMaximum": _not_bound, "minLength": _not_size,
        "maxLength": _not_size, "minItems": _not_size, "maxItems": _not_size, "minProperties": _not_size,
        "maxProperties": _not_size, "pattern": _not_string, "format": _not_string, "multipleOf": _not_multiple,
        "required": _not_required, "properties": _not_properties, "additionalProperties": _not_additional,
        "propertyNames": _not_names, "items": _not_items, "prefixItems": _not_items, "contains": _not_contains,
        "dependentRequired": _not_dependent, "dependentSchemas": _not_dependent, "dependencies": _not_dependent,
        "allOf": _not_all, "anyOf": _not_any, "oneOf": _not_any, "not": _not_not, SCHEMA_BARRED: _not_not,
        "if": _not_if, "$ref": _not_reference, "$dynamicRef": _not_reference, "$recursiveRef": _not_reference,
        "patternProperties": _not_pattern_properties, "uniqueItems": _not_array, "unevaluatedItems": _not_unevaluated,
        "unevaluatedProperties": _not_unevaluated, "minContains": _not_array, "maxContains": _not_array,
        "additionalItems": _not_additional_items}
