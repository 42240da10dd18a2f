"""Keywords that llguidance lacks, written by others: held against jsonschema, by masks alone."""

import json
import random
from itertools import product
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import byte_matcher
from cutaway.text.grammar.rewriting import rewrite
from cutaway.text.grammar.schema_checks import Judge

ANSWER = 'start: "<" answer'
"""A text before the JSON: what must be checked token by token is then refused."""


@pytest.fixture(autouse=True)
def masks_alone(monkeypatch):
    monkeypatch.setattr(Judge, "takes", lambda judge, name, text: True)


def begun(schema):
    return byte_matcher(Grammar("json_schema", json.dumps(schema), thought=ANSWER))


def takes(matcher, value: Any) -> bool:
    matcher, data = matcher.fork(), f"<{json.dumps(value)}".encode()
    if matcher.valid([*data]) < len(data):
        return False
    for byte in data:
        matcher.accept(byte)
    return matcher.may_end


SCALARS = [None, True, False, 0, 1, 2, -3, 0.5, "", "a", "b", "ab", "abc"]
LISTS = [[], ["a"], ["a", "a"], ["a", "b"], ["b", "a"], [1], ["a", "b", "a"], ["b", "a", "c"],
         [True, False], [True, True], ["a", True], [1, "a"], ["b"] * 3, ["a"] * 4]  # fmt: skip
_KEYS = ("a", "b", "c", "ab")
OBJECTS = [
    dict(zip(names, values, strict=True))
    for count in range(4)
    for names in [[n for i, n in enumerate(_KEYS) if bits >> i & 1] for bits in range(16)]
    if len(names) == count
    for values in product([1, "a"], repeat=count)
]
VALUES = [*SCALARS, *LISTS, *OBJECTS]

OPEN = {"a": {}, "b": {}, "c": {}}
CLOSED = {"type": "object", "properties": OPEN, "additionalProperties": False}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
CASES = [
    {"not": {"enum": ["a", None, True]}}, {"not": {"const": None}},
    {"type": "string", "not": {"const": "a"}},
    {"not": {"type": ["string", "number"]}}, {"not": {"minLength": 2}}, {"not": {"maxLength": 1}},
    {"not": {"pattern": "^a"}}, {"not": {"pattern": "b"}}, {"not": {"not": {"type": "string"}}},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
    {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 1},
    {"type": "array", "uniqueItems": False, "items": {"type": "string"}},
    {"type": "array", "contains": {"const": "a"}, "maxItems": 3},
    {"type": "array", "items": {"enum": ["a", "b"]}, "contains": {"const": "b"}, "maxItems": 3},
    {"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxItems": 3},
    {"type": "array", "contains": {"const": "a"}, "maxContains": 1, "maxItems": 3},
    {"type": "array", "contains": {"const": "a"}, "minContains": 0, "maxContains": 0},
    {"type": "array", "contains": {"const": "a"}, "minContains": 0},
    {"type": "array", "prefixItems": [{"enum": ["a", 1]}], "contains": {"type": "boolean"},
     "maxItems": 2},
    {"contains": {"const": "a"}, "maxItems": 2},
    {"type": ["array", "null"], "contains": True, "maxItems": 2, "minContains": 10**9},
    *({"type": "array", "items": {"enum": ["a", "b", True]}, "contains": {"const": "a"},
       "maxItems": 3, "$schema": draft}
      for draft in ("http://json-schema.org/draft-06/schema#",
                    "http://json-schema.org/draft-07/schema#",
                    "https://json-schema.org/draft/2019-09/schema",
                    "https://json-schema.org/draft/2020-12/schema")),
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {**TEXTS, "propertyNames": {"maxLength": 1}},
    {"type": "object", "propertyNames": {"enum": ["a", "c"]},
     "properties": {"a": {"type": "string"}}},
    {**TEXTS, "propertyNames": {"type": "string"}},
    {**CLOSED, "propertyNames": {"pattern": "^a"}},
    {**CLOSED, "minProperties": 2},
    {**CLOSED, "maxProperties": 1},
    {**CLOSED, "required": ["b"],
     "minProperties": 2, "maxProperties": 2},
    {**CLOSED, "dependentRequired": {"a": ["b", "c"]}},
    {**CLOSED, "dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}}},
    {**CLOSED, "dependencies": {"a": ["b"], "c": {"required": ["b"]}},
     "$schema": "http://json-schema.org/draft-07/schema#"},
    {**CLOSED, "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]},
    {**CLOSED, "oneOf": [{"required": ["a", "c"]}, {"required": ["a", "b"]}]},
    {**CLOSED, "not": {"required": ["a", "b"]}},
    {**CLOSED, "if": {"properties": {"a": {"const": "a"}}, "required": ["a"]},
     "then": {"required": ["b"]}, "else": {"required": ["c"]}},
    {**CLOSED, "properties": {**OPEN, "a": {"enum": [1, "a"]}},
     "allOf": [{"if": {"properties": {"a": {"const": "a"}}},
                "then": {"properties": {"b": {"type": "string"}}}}]},
    {**CLOSED, "required": ["a"], "not": {"properties": {"a": {"type": "string"}}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", CASES, ids=json.dumps)
def test_the_same_values_are_allowed(schema):
    validator, matcher = validator_for(schema, Draft202012Validator)(schema), begun(schema)
    assert validator.is_valid(next(v for v in VALUES if takes(matcher, v)))
    for value in VALUES:
        assert takes(matcher, value) is validator.is_valid(value), value


def test_a_schema_without_such_keywords_is_left_as_it_is():
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1]}}}}
    assert rewrite(schema) == schema


@pytest.mark.parametrize("schema", [
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    {"type": "array", "items": {"enum": [*range(7)]}, "uniqueItems": True},
    {"type": "array", "contains": {"const": "a"}},
    {"type": "array", "contains": {"const": "a"}, "maxItems": 65},
    {"type": "array", "contains": {"const": "a"}, "maxItems": 12, "minContains": 6},
    {"type": "array", "contains": {"minimum": 1}, "maxContains": 1, "maxItems": 3},
    {"not": {"items": {"type": "string"}}},
    {"type": "object", "minProperties": 2},
    {"type": "object", "propertyNames": {"pattern": "a"}, "patternProperties": {"b": {}}},
    {"type": "object", "properties": {str(i): {} for i in range(20)}, "minProperties": 10,
     "additionalProperties": False},
    {"not": {"type": "integer"}}, {"not": {"const": [1]}}, {"not": {"const": 1}},
    {"not": {"minimum": 1}},
])  # fmt: skip
def test_what_has_no_small_equivalent_stays(schema):
    assert rewrite(schema) == schema
    with pytest.raises(InputError):
        begun(schema)


def _draw(rng: random.Random, depth: int) -> Any:
    """Return a random schema of these keywords."""
    leaves: list[Any] = [
        {"type": rng.choice(["string", "number", "array", "object", "null"])},
        {"enum": rng.sample(SCALARS, rng.randint(1, 3))}, {"const": rng.choice(SCALARS)},
        {"pattern": rng.choice(["^a", "b$", "^ab?$"])}, {"minLength": rng.randint(0, 2)},
        {"required": rng.sample(_KEYS, rng.randint(1, 2))}, {"maximum": 1}, {"exclusiveMinimum": 0},
    ]  # fmt: skip
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)
    inner = [_draw(rng, depth - 1) for _ in range(3)]
    return rng.choice([
        {"not": inner[0]}, {"anyOf": inner[:2]}, {"allOf": inner[:2]},
        {"if": inner[0], "then": inner[1], "else": inner[2]}, {"if": inner[0], "then": inner[1]},
        {"properties": {"a": inner[0], "b": inner[1]}}, {"not": {"properties": {"a": inner[0]}}},
        {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"c": inner[0]}},
        {"contains": inner[0], "maxItems": 3},
        {"contains": inner[0], "maxContains": 1, "maxItems": 2},
    ])  # fmt: skip


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_random_schemas_allow_no_more_values(count):
    rng, compiled, same, fewer = random.Random(count), 0, 0, 0
    while compiled < count:
        schema = _draw(rng, 3)
        try:
            matcher = begun(schema)
        except InputError:
            continue
        compiled += 1
        validator = Draft202012Validator(schema)
        for value in rng.sample(VALUES, 30):
            taken, valid = takes(matcher, value), validator.is_valid(value)
            assert valid or not taken, (schema, value)
            same, fewer = same + (taken is valid), fewer + (valid and not taken)
    assert fewer < same / 10  # keys of an object have an order


def _nest(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for i in range(depth):
        schema = {"if": schema, "then": {"minLength": i}, "else": {"type": "null"}}
    return schema


def _names_within_names(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"propertyNames": {"enum": [*"abcdefgh"]}, "additionalProperties": schema}
    return schema


@pytest.mark.parametrize("nested", [_nest, _names_within_names])
@pytest.mark.parametrize("depth", [12, 60])
def test_nested_keywords_do_not_multiply_a_schemas_length(nested, depth):
    """Each condition is written twice, and each rule of any name once for each of the names."""
    written = json.dumps(rewrite(nested(depth)))
    assert len(written) < 500_000
    assert json.dumps(rewrite(nested(2))) != json.dumps(nested(2))
    assert ("if" if nested is _nest else "propertyNames") in written


def test_the_parts_of_a_schema_share_what_may_be_written():
    many = {"anyOf": [_nest(8)] * 200}
    assert len(json.dumps(rewrite(many))) < len(json.dumps(many)) + 500_000
