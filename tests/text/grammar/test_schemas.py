"""Schemas: values of keywords that mean nothing, wherever they stand; keys of objects."""

import json
from fractions import Fraction
from time import process_time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler, accepts
from cutaway.text.grammar.json_values import is_multiple, is_whole, number
from support.mock_backend import Words


def takes(schema, text: str) -> bool:
    return accepts(text, Grammar("json_schema", json.dumps(schema))).whole


WRONG = [
    ({"multipleOf": 0}, "multipleOf must be a number above 0, not 0"),
    ({"minimum": "a"}, "minimum must be a number, not 'a'"),
    ({"exclusiveMaximum": None}, "exclusiveMaximum must be a number, not None"),
    ({"minLength": "3"}, "minLength must be a whole number, 0 or more, not '3'"),
    ({"maxItems": -1}, "maxItems must be a whole number, 0 or more, not -1"),
    ({"minContains": 0.5, "contains": {}}, "minContains must be a whole number"),
    ({"items": 5}, "items must be a schema, an object, not 5"),
    ({"items": [5]}, r"items\[0\] must be a schema, an object, not 5"),
    ({"$ref": 5}, r"\$ref must be a text, not 5"),
    ({"if": 5}, "if must be a schema, an object, not 5"),
    ({"enum": 5}, "enum must be a list of values, not 5"),
    ({"allOf": [5]}, "allOf must be a list of schemas"),
    ({"anyOf": {}}, "anyOf must be a list of schemas"),
    ({"type": 5}, "type must be the name of a type or a list of names, not 5"),
    ({"type": "text"}, "type is 'text', which JSON does not have"),
    ({"properties": []}, "properties must be an object whose values are schemas"),
    ({"properties": {"a": 5}}, "properties must be an object whose values are schemas"),
    ({"patternProperties": {"a": 5}}, "patternProperties must be an object whose values"),
    ({"required": "a"}, "required must be a list of names, not 'a'"),
    ({"required": [1]}, r"required must be a list of names, not \[1\]"),
    ({"dependentRequired": {"a": "b"}}, "dependentRequired must be an object whose values"),
    ({"dependentSchemas": {"a": ["b"]}}, "dependentSchemas must be an object whose values"),
    ({"dependencies": {"a": 5}}, "dependencies must be an object whose values"),
    ({"uniqueItems": "x"}, "uniqueItems must be true or false, not 'x'"),
    ({"pattern": 5}, "pattern must be a text, not 5"),
    ({"format": 5}, "format must be a text, not 5"),
    ({"propertyNames": 5}, "propertyNames must be a schema"),
]
AROUND = [
    lambda wrong: wrong,
    lambda wrong: {"not": wrong},
    lambda wrong: {"oneOf": [wrong, {"type": "null"}]},
    lambda wrong: {"if": wrong, "then": {"type": "null"}},
    lambda wrong: {"contains": wrong},
    lambda wrong: {"items": {"not": {"additionalProperties": wrong}}},
    lambda wrong: {"not": {"$ref": "#/$defs/w"}, "$defs": {"w": wrong}},
    lambda wrong: {"not": {"$ref": "#/x/w"}, "x": {"w": wrong}},
]


@pytest.mark.parametrize("around", AROUND, ids=range(len(AROUND)))
@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_a_value_that_means_nothing_is_refused_with_its_place(wrong, said, around):
    with pytest.raises(InputError, match=said) as raised:
        takes(around(wrong), "5")
    assert str(raised.value).startswith("json_schema: ") and "\n" not in str(raised.value)


def test_a_reference_names_a_schema():
    with pytest.raises(InputError, match="#/title: it must be a schema, an object, not 5"):
        takes({"not": {"$ref": "#/title"}, "title": 5}, "5")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "minimum": 1, "exclusiveMinimum": True},
        {"not": {"minimum": 9, "exclusiveMinimum": True}},
        {"not": {"type": "object", "dependencies": {"a": ["b"], "c": {"type": "object"}}}},
        {"not": {"type": "array", "items": [{}], "additionalItems": False}},
        {"type": "number", "allOf": [], "$defs": {"unused": {}}, "default": "x", "title": "a"},
        {"type": "number", "not": {"minLength": 3.0, "type": "string"}},
    ],
)
def test_what_any_draft_allows_is_taken(schema):
    assert takes(schema, "5")


@pytest.mark.parametrize("text", ["1e999", "-1e999999999", "1E+99999999999999999999", "1e-99999"])
@pytest.mark.parametrize(
    "rule",
    [
        {"multipleOf": 3}, {"multipleOf": 0.7}, {"type": "integer"}, {"minimum": 7, "maximum": 9},
        {"const": 3}, {"enum": [1e300, 5]},
    ],
)  # fmt: skip
def test_a_number_of_any_size_is_judged_in_no_time(text, rule):
    begun = process_time()
    whole = text.startswith("1") and "-9" not in text
    expected = not (whole or text.startswith("-")) if rule == {"type": "integer"} else True
    assert takes({"type": "number", "not": rule}, text) is expected
    assert process_time() - begun < 1


@given(
    st.integers(-10**25, 10**25), st.integers(-30, 30),
    st.integers(1, 10**9), st.integers(-5, 5),
)  # fmt: skip
def test_multiples_are_those_of_fractions(digits, exponent, step, step_exponent):
    value, of = number(f"{digits}e{exponent}"), number(f"{step}e{step_exponent}")
    exact = Fraction(digits) * Fraction(10) ** exponent
    assert is_multiple(value, of) is ((exact / (Fraction(step) * Fraction(10) ** step_exponent))
                                      .denominator == 1)  # fmt: skip
    assert is_whole(value) is (exact.denominator == 1)


# -- keys: each in one spelling, and counted once ----------------------------------------------

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def takes_text(schema, text: str) -> bool:
    return accepts(text, Grammar("json_schema", json.dumps(schema), compact=True)).whole


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": INTEGER}, "required": ["a"]}, r'{"a":1,"\u0061":"x"}'),
        ({"properties": {"é": INTEGER}}, r'{"\u00e9":"x"}'),
        ({"properties": {"é": INTEGER}}, r'{"\u00E9":"x"}'),
        ({"properties": {"\n": INTEGER}}, r'{"\u000a":"x"}'),
        ({"properties": {"\t": INTEGER}}, r'{"\u0009":"x"}'),
        ({"properties": {"\\": INTEGER}}, r'{"\u005c":"x"}'),
        ({"properties": {"\x1f": INTEGER}}, r'{"\u001F":"x"}'),
        ({"properties": {"\x7f": INTEGER}}, r'{"\u007f":"x"}'),
        ({"properties": {"a": INTEGER}, "additionalProperties": TEXT}, r'{"\u0061":"x"}'),
        ({"properties": {"a": INTEGER}, "additionalProperties": {}}, r'{"\u0061":"x"}'),
        ({"patternProperties": {"^a": INTEGER}}, r'{"\u0061b":"x"}'),
        ({"anyOf": [{"properties": {"a": INTEGER}}, INTEGER]}, r'{"\u0061":"x"}'),
        ({"allOf": [{"properties": {"a": INTEGER}}, {"required": ["b"]}]}, r'{"b":1,"\u0061":"x"}'),
        ({"properties": {"a": INTEGER}, "minProperties": 1}, r'{"b":1,"\u0061":"x"}'),
        ({"$ref": "#/$defs/o", "$defs": {"o": {"properties": {"a": INTEGER}}}}, r'{"\u0061":"x"}'),
    ],
)
def test_a_key_that_the_schema_names_cannot_be_written_with_an_escape(schema, text):
    schema = {"type": "object", **schema} if "anyOf" not in schema else schema
    assert not Draft202012Validator(schema).is_valid(json.loads(text))
    assert not takes_text(schema, text)


@pytest.mark.parametrize("key", ["", "b", "é", "\n", "\\", '"', "\x00", "\x1b", "\x7f", "😀", "/"])
def test_any_other_key_can_be_written(key):
    schema = {"type": "object", "properties": {"a": INTEGER}}
    written = json.dumps(key, ensure_ascii=False).replace("\x7f", r"\u007f")
    assert takes_text(schema, f'{{"a":1,{written}:"\\u001b[0m"}}')


_KEYS = st.text('ab\n\x1fé"', min_size=1, max_size=2)
_VALUES = st.sampled_from([1, "x"])


def _spelt(data, key: str) -> str:
    """A key as JSON, each character as it is or by its code."""
    written = [
        f"\\u{ord(c):04x}" if data.draw(st.booleans()) else json.dumps(c, ensure_ascii=False)[1:-1]
        for c in key
    ]
    return f'"{"".join(written)}"'


@given(
    st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(_KEYS, st.sampled_from([INTEGER, TEXT]), max_size=2),
            "patternProperties": st.just({"^a": INTEGER}),
            "additionalProperties": st.sampled_from([True, False, TEXT, INTEGER]),
            "minProperties": st.integers(0, 2),
        },
    ),
    st.lists(st.tuples(_KEYS, _VALUES), max_size=3),
    st.data(),
)
def test_what_is_taken_is_valid_as_a_parser_reads_it(schema, members, data):
    text = ",".join(f"{_spelt(data, key)}:{json.dumps(value)}" for key, value in members)
    text = f"{{{text}}}"
    assume(takes_text(schema, text))
    assert Draft202012Validator(schema).is_valid(json.loads(text))


def test_a_key_that_is_written_twice_counts_once():
    schema = {"type": "object", "minProperties": 2}
    assert not takes_text(schema, '{"z":1,"z":2}')
    assert takes_text(schema, '{"z":1,"y":2}')
    closed = {**schema, "properties": {"a": True, "b": True}, "required": ["a", "b"]}
    closed["additionalProperties"] = False
    GrammarCompiler(Words()).compile(
        Grammar("json_schema", json.dumps(closed), thought="start: answer")
    )
    with pytest.raises(InputError, match="minProperties above 1 must be checked token by token"):
        GrammarCompiler(Words()).compile(
            Grammar("json_schema", json.dumps(schema), thought="start: answer")
        )
