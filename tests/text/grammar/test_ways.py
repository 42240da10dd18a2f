"""A text that keeps to one of two grammars: what it may be is what either of them alone says."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler, accepts
from support.mock_backend import END, Words

COMPILER = GrammarCompiler(Words())
SCHEMAS = [
    {"type": "object"},
    {"enum": ["ab", "a", 12]},
    {"type": "array", "items": {"enum": [1, 12]}, "minItems": 1},
    {"type": "object", "properties": {"a": {"enum": [1, 12, "b"]}}, "required": ["a"],
     "additionalProperties": False},
]  # fmt: skip
CALLS = [
    'start: "<" ("a" | "ab") ">"',
    'start: "{\\"a\\": " ("1" | "123") "}"',
    'start: "[1" ("," "1")* "]" ("!" "?")?',
]
both = given(st.sampled_from(SCHEMAS), st.sampled_from(CALLS), st.data())


def three(schema, calls):
    """Either, the schema alone, the calls alone."""
    text = json.dumps(schema)
    return Grammar("json_schema", text, calls=calls), Grammar("json_schema", text), Grammar(
        "grammar", calls
    )  # fmt: skip


def allowed(grammar, text):
    """What may follow a text under a grammar alone; None where it is not begun under it."""
    matcher = COMPILER.matcher(grammar)
    if matcher.valid([*text]) < len(text):
        return None
    for byte in text:
        matcher.accept(byte)
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return {*np.flatnonzero(bits).tolist()}


@settings(max_examples=60)
@both
def test_masks_are_those_of_the_grammars_that_the_text_keeps_to(schema, calls, data):
    either, *alone = three(schema, calls)
    matcher, text = COMPILER.matcher(either), b""
    for _ in range(12):
        each = [allowed(grammar, text) for grammar in alone]
        expected = set().union(*[one for one in each if one is not None])
        mask = matcher.mask()
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert {*bits.tolist()} == expected
        whole = [one and END in one for one in each]
        assert [*matcher.ends] == whole
        assert matcher.may_end == (END in expected)
        assert matcher.is_over == (expected == {END})
        forced = matcher.forced()
        assert not forced or expected == {forced[0]}
        if expected == {END}:
            break
        token = data.draw(st.sampled_from(sorted(expected - {END})))
        other = matcher.fork()
        matcher.accept(token)
        assert np.array_equal(other.mask(), mask)
        text += bytes([token])


@settings(max_examples=150)
@both
def test_a_text_is_accepted_where_one_of_them_accepts_it(schema, calls, data):
    either, *alone = three(schema, calls)
    parts = ["<", "a", "ab", ">", '{"a": ', "1", "123", "12", "}", "{", "[1", ",1", "]", "!", '"b"']
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=5)))
    found, each = accepts(text, either), [accepts(text, grammar) for grammar in alone]
    assert found.whole == any(each)
    places = [one.at for one in each]
    assert found.at == (None if None in places else max(places))
    matcher, ids = COMPILER.matcher(either), [*text.encode()]
    assert matcher.valid(ids) == max(COMPILER.matcher(one).valid(ids) for one in alone)


def test_a_token_that_neither_allows_is_an_error():
    matcher = COMPILER.matcher(three(SCHEMAS[0], CALLS[0])[0])
    assert not matcher.valid([ord("x")])
    with pytest.raises(CutawayError, match="the grammar failed"):
        matcher.accept(ord("x"))


def test_both_are_recorded_and_refused_by_name():
    either, schema, _ = three(SCHEMAS[0], CALLS[0])
    thought = Grammar("json_schema", schema.text, thought=CALLS[0])
    assert len({one.sha256 for one in (either, schema, thought)}) == 3
    with pytest.raises(InputError, match=r"^grammar: .*other"):
        COMPILER.compile(three(SCHEMAS[0], "start: other")[0])
    with pytest.raises(InputError, match=r"^json_schema: .*iri"):
        COMPILER.compile(three({"type": "string", "format": "iri"}, CALLS[0])[0])
    with pytest.raises(InputError, match=r"^json_schema: uniqueItems would have to be checked"):
        COMPILER.compile(three({"type": "array", "uniqueItems": True}, CALLS[0])[0])


@pytest.mark.parametrize("text", ["<a>", "-<ab>", '{"b": 1}', "-{}"])
def test_a_thought_may_precede_both(text):
    thought = 'start: "-" answer | answer'
    text_or_calls = Grammar("json_schema", '{"type":"object"}', thought=thought, calls=CALLS[0])
    assert accepts(text, text_or_calls)
    assert not accepts(f"--{text}", text_or_calls)
