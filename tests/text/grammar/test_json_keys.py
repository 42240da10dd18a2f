"""Keys of objects: each in one spelling, whatever escapes could write it, and each counted once."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler, accepts
from support.mock_backend import Words

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
