"""Whether a text could have been written under a grammar, and where not."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import Accepted, accepts

EXPRESSION = "(é|ab)+c?"
SCHEMA = {
    "type": "object", "properties": {"a": {"enum": ["é", 1]}, "b": {"type": "boolean"}},
    "required": ["a"], "additionalProperties": False,
}  # fmt: skip


def test_the_place_is_a_character_and_not_a_byte():
    grammar = Grammar("regex", "ééa?")
    assert accepts("éé", grammar) == Accepted(True, None) and accepts("éé", grammar)
    assert accepts("é", grammar) == Accepted(False, None) and not accepts("é", grammar)
    assert accepts("ééb", grammar) == Accepted(False, 2)
    assert accepts("éè", grammar) == Accepted(False, 1)  # whose first byte is the same
    assert accepts("ééaa", grammar) == Accepted(False, 3)


@given(st.text("éabc", max_size=6))
def test_it_is_what_python_says_of_an_expression(text):
    def can_begin(part):
        return any(re.fullmatch(EXPRESSION, part + more) for more in ("", "b", "ab", "c"))

    found = accepts(text, Grammar("regex", EXPRESSION))
    good = max(n for n in range(len(text) + 1) if can_begin(text[:n]))
    assert found.whole == bool(re.fullmatch(EXPRESSION, text))
    assert found.at == (None if good == len(text) else good)


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["é", 1, True, 2]), max_size=3),
    st.integers(0, 30),
)
def test_it_is_what_a_validator_says_of_a_schema(value, length):
    text = json.dumps(dict(sorted(value.items())), ensure_ascii=False)
    found = accepts(text, Grammar("json_schema", json.dumps(SCHEMA)))
    assert found.whole == Draft202012Validator(SCHEMA).is_valid(value)
    if found:
        part = text[:length]
        assert accepts(part, Grammar("json_schema", json.dumps(SCHEMA))).at is None


def test_keywords_that_are_checked_count():
    grammar = Grammar(
        "json_schema", '{"type":"array","items":{"type":"integer"},"uniqueItems":true}'
    )
    assert accepts("[1, 12]", grammar)
    assert accepts("[1, 1]", grammar).at == 5
    assert accepts("[1, 1", grammar) == Accepted(False, None)


@pytest.mark.parametrize("text", [b"a", 5, None])
def test_only_text_can_be_asked_about(text):
    with pytest.raises(InputError, match="text must be a string"):
        accepts(text, Grammar("regex", "a"))


def test_an_object_may_have_many_properties_that_may_be_left_out():
    """Whose keys are all looked at in one step."""
    properties = {f"p{i}": {"type": "string"} for i in range(1500)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    grammar = Grammar("json_schema", json.dumps(schema))
    assert accepts('{"p1": "a", "p977": "b"}', grammar)
    assert accepts('{"p1": "a", "q', grammar).at == 13
