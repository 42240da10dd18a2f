"""Checked schemas in the loop: nothing invalid ends well, and every way writes the same text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.engine import ConstraintParams, FinishReason, RunParams, Step, StopParams
from cutaway.engine.constraint.checks import WINDOW
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from support.engine_mock import Finished, MockRequest, make_engine, run_to_end
from support.engine_requests import WAYS
from support.examples import few_or_many
from support.mock_backend import noise
from support.schemas import schemas

SHAPES = [
    {"type": "array", "items": {"enum": ["a", "b", "ab", 1, 2]}, "maxItems": 4},
    {
        "type": "object",
        "properties": {k: {"enum": [1, "b", [], {"a": 1}, None]} for k in "abc"},
        "additionalProperties": False,
    },
    {"enum": [1, 12, "a", "ab", True, False, None, [1, 1], {"a": 1}, 0.5]},
    {"type": ["string", "integer"], "maxLength": 3, "minimum": -20, "maximum": 20},
]


@st.composite
def checked(draw):
    """A schema of few texts that masks alone cannot hold them to."""
    rule = draw(schemas())
    return {**draw(st.sampled_from(SHAPES)), "allOf": [rule, {"not": {"const": "a"}}]}


def write(schema, seed, run=None, company=0, stops=None, prompt=(1, 2, 3), **policy):
    """A text as (tokens, fingerprints, text, reason, error); the company writes others."""
    engine = make_engine(noise, context=128, **policy)
    constraint = ConstraintParams(json_schema=schema, json_compact=True)
    sequences = [
        MockRequest(
            prompt, SamplingParams(seed=seed + i, temperature=0.7),
            stops or StopParams(max_tokens=60), RunParams(**(run or {})), constraint=constraint,
        ).add_to(engine)
        for i in range(1 + company)
    ]  # fmt: skip
    one = Finished(sequences[0], run_to_end(engine))
    assert [s.index for s in one.steps] == [*range(one.end.usage.completion_tokens)]
    assert not one.steps or one.end.fingerprint == one.steps[-1].fingerprint
    fingerprints, error = [s.fingerprint for s in one.steps], str(one.end.error or "")
    return one.token_ids, fingerprints, one.text, one.end.reason, error


@few_or_many(60, 150, checked(), st.integers(0, 1000))
def test_what_ends_well_is_valid(schema, seed):
    try:
        _, _, text, reason, error = write(schema, seed)
    except InputError:  # the masks alone show that nothing is allowed, or it is not supported
        return
    if reason == FinishReason.ERROR:
        assert "nothing that may follow passes the check" in error or "no token at" in error
    elif reason != FinishReason.MAX_TOKENS:
        assert Draft202012Validator(schema).is_valid(json.loads(text)), text


UNIQUE = {
    "type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 2, "maxItems": 9,
    "uniqueItems": True,
}  # fmt: skip


LONG = MockRequest(
    (1,), SamplingParams(seed=3), StopParams(max_tokens=120), constraint=ConstraintParams(
        json_schema={"type": "string", "minLength": 100, "maxLength": 110, "not": {"const": ""}}
    ),
)  # fmt: skip


@pytest.mark.parametrize("way", [*WAYS][1:])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), company=st.integers(0, 2))
def test_a_text_that_goes_back_is_the_same_in_every_way(way, seed, company):
    run, policy = WAYS[way]
    expected = write(UNIQUE, seed, prompt=(1, 2, seed % 20))
    assert write(UNIQUE, seed, run, company, prompt=(1, 2, seed % 20), **policy) == expected
    assert len({*json.loads(expected[2])}) >= 2


def test_a_text_goes_back_and_says_nothing_of_what_it_took_back():
    went_back = 0
    for seed in range(20):
        constraint = ConstraintParams(json_schema=UNIQUE, json_compact=True)
        params, stops = SamplingParams(seed=seed, temperature=2), StopParams(max_tokens=40)
        one = MockRequest((1, 2, seed), params, stops, constraint=constraint).finish()
        items = json.loads("".join(step.text for step in one.steps) or "[]")
        assert len({*items}) == len(items)
        assert one.token_ids == one.sequence.output_token_ids
        went_back += one.sequence.backtracker.count
    assert went_back > 5


def test_no_window_is_let_go_of_that_is_seen_once_all_that_is_held_is_taken_back():
    engine = make_engine(noise, context=256, kv_blocks=100, block=4, window=7)
    sequence, blocks = LONG.add_to(engine), engine.blocks
    while not engine.is_idle:
        engine.step()
        left = max(len(sequence) - WINDOW - 1, 0) // 4 * 4  # to be found again
        assert blocks.windows.are_stored(sequence.memory.blocks[blocks.num_out_of_window(left) :])
        outside = blocks.num_out_of_window(left) - 1
        assert engine.is_idle or sequence.memory.num_out_of_window >= outside
    assert sequence.memory.stored > 100


def test_a_dead_end_that_nothing_leads_out_of_is_an_error():
    schema = {"type": "array", "items": {"const": "a"}, "minItems": 2, "uniqueItems": True}
    constraint = ConstraintParams(json_schema=schema, json_compact=True)
    error = MockRequest((1, 2), SamplingParams(seed=1), constraint=constraint).finish().end.error
    assert isinstance(error, InputError), "the schema allows nothing: the request is at fault"
    assert str(error).startswith("json_schema: nothing that may follow passes the check")


def test_steps_are_heard_as_soon_as_they_cannot_be_taken_back():
    engine = make_engine(noise, context=256)
    LONG.add_to(engine)
    heard, drawn = 0, 0
    while not engine.is_idle:
        events = engine.step()
        drawn += 1
        heard += sum(isinstance(event, Step) for event in events)
        assert engine.is_idle or heard == max(drawn - WINDOW, 0)
    assert heard == drawn


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_stop_strings_are_found_in_what_remains(seed):
    tokens, _, text, reason, _ = write(UNIQUE, seed, stops=StopParams(max_tokens=60, stop='"b'))
    if reason == FinishReason.STOP_STRING:
        assert '"b' not in text
        assert bytes(tokens) == text.encode() + b'"b'
    else:
        assert "b" not in text
