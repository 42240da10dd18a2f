"""A grammar in the loop: the same text in every way it can be computed, and its own end."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import ConstraintParams, FinishReason, RunParams, StopParams
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from support.engine_mock import Request, make_engine, narrow, noise, run_to_end

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
WAYS = {
    "plain": ({}, {}),
    "n-gram": ({"speculate": "ngram"}, {}),
    "draft model": ({"speculate": "draft"}, {"draft": narrow}),
    "no KV cache": ({"kv_cache": False}, {}),
    "a row at a time": ({}, {"rows": 1}),
    "few blocks": ({}, {"kv_blocks": 3}),
}


def written(way, constraint, seed=0, company=0):
    run, policy = WAYS[way]
    engine = make_engine(noise, **policy)
    sequences = [
        Request(
            (1, 2, 3), SamplingParams(seed=seed + i), StopParams(max_tokens=40), RunParams(**run),
            constraint=constraint,
        ).add_to(engine)
        for i in range(1 + company)
    ]  # fmt: skip
    run_to_end(engine)
    return sequences[0]


def text_of(sequence) -> bytes:
    return bytes(i for i in sequence.output_token_ids if i < 256)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), company=st.integers(0, 2))
def test_the_text_is_the_same_in_every_way(way, compact, seed, company):
    constraint = ConstraintParams(json_schema=SCHEMA, json_compact=compact)
    expected, got = written("plain", constraint, seed), written(way, constraint, seed, company)
    assert got.output_token_ids == expected.output_token_ids
    assert got.fingerprint == expected.fingerprint
    if got.finish_reason != FinishReason.MAX_TOKENS:
        assert {*json.loads(text_of(got))} == {"name", "n"}


def test_a_text_that_is_whole_ends_without_a_step():
    sequence = written("plain", ConstraintParams(regex="[ab]{3}"))
    assert sequence.finish_reason == FinishReason.CONSTRAINT
    assert re.fullmatch(rb"[ab]{3}", text_of(sequence))
    assert len(sequence.output_token_ids) == 3


def test_what_a_grammar_leaves_no_choice_in_takes_few_steps():
    engine = make_engine(noise)
    constraint = ConstraintParams(choice=["a" * 30])
    Request(
        (1, 2), SamplingParams(seed=1), StopParams(max_tokens=30), constraint=constraint
    ).add_to(engine)
    steps = 0
    while not engine.is_idle:
        engine.step()
        steps += 1
    assert steps < 6  # the prompt, the first token, and the others 15 at a time


def test_a_grammar_with_ignore_eos_is_refused():
    engine = make_engine(noise)
    with pytest.raises(InputError, match="ignore_eos"):
        stops = StopParams(ignore_eos=True)
        Request((1,), stops=stops, constraint=ConstraintParams(regex="a")).add_to(engine)


def test_two_grammars_exclude_each_other():
    with pytest.raises(InputError, match="json_schema and regex exclude each other"):
        ConstraintParams(json_schema=True, regex="a")
