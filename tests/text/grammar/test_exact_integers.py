"""Integers beyond 2^53 as rules: where no token can be checked, no other integer is written."""

import json
import random
import re
from itertools import product

import pytest
from jsonschema import Draft202012Validator

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import byte_matcher
from cutaway.text.grammar.exact_integers import integers
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.schema_checks import Judge
from cutaway.text.tools import Tool, ToolChoice, grammar
from support.chat_templates import NAMES, dialect
from support.tool_grammars import accepts as accepts_call
from support.tool_grammars import ids

LARGE = [
    2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 10**19,
    -(10**19), 10**30 + 7, 0, 5, -3,
]  # fmt: skip
FLOATS = [1e19, -1e22, 9007199254740994.0]
SIDES = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


@pytest.fixture
def masks_alone(monkeypatch):
    monkeypatch.setattr(Judge, "takes", lambda judge, name, text: True)


def masks_take(schema, text: str) -> bool:
    """Return whether masks take a text after a thought."""
    grammar = Grammar("json_schema", json.dumps(schema), thought="start: answer")
    matcher, data = byte_matcher(grammar), text.encode()
    if matcher.valid([*data]) < len(data):
        return False
    for byte in data:
        matcher.accept(byte)
    return matcher.may_end


def test_a_pattern_has_the_integers_between_its_bounds_and_no_others():
    ends = [None, *range(-21, 22), -130, -100, -99, 99, 100, 130, 999, 1000]
    for least, greatest in product(ends, ends):
        low, high = -1200 if least is None else least, 1200 if greatest is None else greatest
        if least is not None and greatest is not None and least > greatest:
            continue
        pattern = re.compile(integers(least, greatest))
        written = [n for n in range(-1200, 1201) if pattern.fullmatch(str(n))]
        assert written == [*range(low, high + 1)], (least, greatest)


# -- random schemas beside a validator -------------------------------------------------------------


def _near(rng, values=LARGE):
    return rng.choice(values) + rng.choice([0, 0, 0, 1, -1])


def _integer(rng):
    bounds = {rng.choice(names): _near(rng, LARGE + FLOATS)
              for names in SIDES if rng.random() < 0.7}  # fmt: skip
    kind = rng.choice(["integer", "integer", ["integer", "null"], ["boolean", "integer"]])
    return {"type": kind, **bounds}


def _schema(rng, depth=2):
    way = rng.random() * (1 if depth else 0.5)
    if way < 0.25:
        return _integer(rng)
    if way < 0.45:
        n = _near(rng)
        values = [n, "a", None, {"id": [_near(rng)]}, [_near(rng), "é"], _near(rng)]
        some = {"enum": rng.sample(values, 3)}
        return rng.choice([{"const": rng.choice(values)}, some, {**some, "maximum": _near(rng)}])
    if way < 0.5:
        return rng.choice([{"type": "string"}, True, {"$ref": "#/$defs/d"}])
    if way < 0.75:
        keys = rng.sample(["a", 'q"', "é"], rng.randint(1, 3))
        return {
            "type": rng.choice(["object", ["object", "null"]]),
            "properties": {key: _schema(rng, depth - 1) for key in keys},
            "required": [key for key in keys if rng.random() < 0.6],
            "additionalProperties": rng.choice([True, False]),
        }
    if way < 0.9:
        least = rng.randint(0, 2)
        most = {"maxItems": rng.randint(max(least, 1), 3)} if rng.random() < 0.5 else {}
        return {"type": "array", "items": _schema(rng, depth - 1), "minItems": least, **most}
    return {"anyOf": [_schema(rng, depth - 1), _schema(rng, depth - 1)]}


def _value(rng, schema, defs):
    if schema is True:
        return rng.choice([1, "a", None])
    if "$ref" in schema:
        return _value(rng, defs["d"], defs)
    if "anyOf" in schema:
        return _value(rng, rng.choice(schema["anyOf"]), defs)
    if "const" in schema or "enum" in schema:
        value = rng.choice(schema.get("enum", [schema.get("const")]))
        return value + rng.choice([0, 0, 1, -1]) if isinstance(value, int) else value
    kind = schema["type"]
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "integer":
        bounds = [schema[name] for side in SIDES for name in side if name in schema]
        return int(rng.choice([*bounds, *bounds, _near(rng)])) + rng.choice([0, 0, 1, -1])
    if kind == "object":
        return {key: _value(rng, part, defs) for key, part in schema["properties"].items()
                if key in schema["required"] or rng.random() < 0.5}  # fmt: skip
    if kind == "array":
        return [_value(rng, schema["items"], defs) for _ in range(rng.randint(0, 3))]
    return {"string": "x", "boolean": True, "null": None}[kind]


def _compare(seed: int, schemas: int) -> dict[str, int]:
    """Return the number of texts by verdict; fail where masks and validator differ."""
    rng, counts = random.Random(seed), {"valid": 0, "invalid": 0, "refused": 0}
    for _ in range(schemas):
        node = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/d"}}]}
        link = {"type": "object", "properties": {"n": _integer(rng), "next": node},
                "required": ["n"], "additionalProperties": False}  # fmt: skip
        defs = {"d": rng.choice([{"type": "string"}, _integer(rng), link])}
        schema = {"type": "object", "properties": {"x": _schema(rng)}, "required": ["x"],
                  "additionalProperties": False, "$defs": defs}  # fmt: skip
        try:
            has_rules = nested_json(schema).startswith("%lark")
        except InputError:
            has_rules = False  # a part that no value satisfies
        if not has_rules:
            continue
        has_ways = "anyOf" in json.dumps(schema["properties"])  # whose keys have other orders
        validator = Draft202012Validator(schema)
        style = rng.choice([{}, {"indent": 1}, {"separators": (",", ":")}])
        for _ in range(6):
            value = _value(rng, {**schema, "$defs": {}}, defs)
            text = json.dumps(value, ensure_ascii=False, **style)
            is_valid = validator.is_valid(json.loads(text))
            try:
                may_come = masks_take(schema, text)
            except InputError:  # as above, but llguidance finds it
                counts["refused"] += 1
                break
            assert may_come <= is_valid, (schema, text)
            assert may_come == is_valid or has_ways, (schema, text)
            counts["valid" if is_valid else "invalid"] += 1
    return counts


@pytest.mark.usefixtures("masks_alone")
def test_masks_and_a_validator_agree_on_large_integers():
    counts = _compare(1, 60)
    assert counts["valid"] > 100
    assert counts["invalid"] > 50
    assert counts["refused"] < 10


@pytest.mark.slow
@pytest.mark.usefixtures("masks_alone")
def test_they_agree_on_many():
    print(_compare(2, 2000))


def test_other_keys_follow_and_no_key_is_there_twice():
    schema = {"type": "object", "properties": {"id": {"const": 2**53 + 1}, "a": {"type": "null"}}}
    written = '{"id": 9007199254740993'
    assert masks_take(schema, written + ', "a": null, "b": [1], "c": {"id": 2}}')
    assert masks_take(schema, '{"other": 1, "more": 2}')
    assert masks_take(schema, "{}")
    assert not masks_take(schema, written + ', "b": 1, "b": 1}')
    assert not masks_take(schema, written + ', "id": 1}')
    assert not masks_take(schema, written + r', "\u0061": 1}')
    assert not masks_take(schema, '{"b": 1, "a": 1}')


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_arguments_of_calls_have_integers_as_they_are(name):
    form, n = dialect(name, False), 2**53 + 1
    part = {"type": "object", "properties": {"id": {"enum": [n, 7]}}, "required": ["id"]}
    parameters = {
        "type": "object",
        "properties": {
            "id": {"const": n},
            "count": {"type": "integer", "minimum": n, "maximum": 2**64 - 1},
            "parts": {"type": "array", "items": part | {"additionalProperties": False}},
        },
        "required": ["id", "count", "parts"],
        "additionalProperties": False,
    }
    lark = grammar(form, [Tool("order", "", parameters)], ToolChoice("required"))

    def may_call(identity, count, of_part):
        arguments = {"id": identity, "count": count, "parts": [{"id": of_part}]}
        text = form.write([("order", json.dumps(arguments), "abcdefgh1")])
        return accepts_call(lark, ids(text, form))

    assert all(may_call(n, count, n) for count in (n, 2**63 + 1, 2**64 - 1))
    assert may_call(n, n, 7)
    assert not any(may_call(n, count, n) for count in (n - 1, 2**64, 2**65))
    assert not any(may_call(other, n, n) for other in (n - 1, n + 1))
    assert not any(may_call(n, n, other) for other in (n - 1, n + 1, 8))


@pytest.mark.parametrize("around", [
    {"allOf": [{"type": "integer"}, {"const": 2**53 + 1}]},
    {"type": "object", "additionalProperties": {"const": 2**53 + 1}},
    {"type": "array", "prefixItems": [{"const": 2**53 + 1}]},
])  # fmt: skip
def test_what_no_rules_say_is_refused_by_name(around):
    with pytest.raises(InputError, match=f"is {2**53 + 1}, a number that masks do not know"):
        nested_json(around)
