"""A grammar in the loop: the same text in every way it can be computed, and its own end."""

import json
import re
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import ConstraintParams, FinishReason, RunParams, StopParams
from cutaway.engine.events import neg_log_z
from cutaway.errors import InputError
from cutaway.sampling import Observe, SamplingParams
from support.engine_mock import MockRequest, make_engine, run_to_end
from support.engine_requests import WAYS
from support.examples import few_or_many
from support.mock_backend import END, noise

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
CALLS = 'start: "{\\"call\\": " ("1" | "2" | "33") "}"'
CONSTRAINTS = {
    "JSON": ConstraintParams(json_schema=SCHEMA),
    "compact": ConstraintParams(json_schema=SCHEMA, json_compact=True),
    "or calls": ConstraintParams(json_schema=SCHEMA, calls=CALLS),
}


def finished(way, constraint, seed=0, company=0):
    run, policy = WAYS[way]
    engine = make_engine(noise, context=128, **policy)
    first, *_ = [
        MockRequest(
            (1, 2, 3), SamplingParams(seed=seed + i), StopParams(max_tokens=40), RunParams(**run),
            constraint=constraint,
        ).add_to(engine)
        for i in range(1 + company)
    ]  # fmt: skip
    run_to_end(engine)
    return first


def text_of(sequence) -> bytes:
    return bytes(i for i in sequence.output_token_ids if i < 256)


@pytest.mark.each_choice
@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("way", WAYS)
@few_or_many(4, 10, st.integers(0, 1000), st.integers(0, 2))
def test_the_text_is_the_same_in_every_way(way, name, seed, company):
    constraint = CONSTRAINTS[name]
    expected = finished("plain", constraint, seed)
    got = finished(way, constraint, seed, company)
    assert got.output_token_ids == expected.output_token_ids
    assert got.fingerprint == expected.fingerprint
    if got.finish_reason != FinishReason.MAX_TOKENS:
        keys = {*json.loads(text_of(got))}
        assert keys == {"name", "n"} or (keys == {"call"} and constraint.calls)


def test_a_text_that_is_whole_ends_without_a_step():
    sequence = finished("plain", ConstraintParams(regex="[ab]{3}"))
    assert sequence.finish_reason == FinishReason.CONSTRAINT
    assert re.fullmatch(rb"[ab]{3}", text_of(sequence))
    assert len(sequence.output_token_ids) == 3


def test_what_a_grammar_leaves_no_choice_in_takes_few_steps():
    engine = make_engine(noise)
    constraint = ConstraintParams(choice=["a" * 30])
    MockRequest(
        (1, 2), SamplingParams(seed=1), StopParams(max_tokens=30), constraint=constraint
    ).add_to(engine)
    steps = 0
    while not engine.is_idle:
        engine.step()
        steps += 1
    assert steps < 6  # the prompt, the first token, and the others 15 at a time


def test_a_grammar_that_fails_in_the_midst_ends_its_own_text_alone():
    """After its first letter so much is forced that a step may not look at all of it."""
    hopeless = ConstraintParams(grammar='start: ("a" | "b") many\nmany: "a"{100000}')
    engine = make_engine(noise)
    [failing, *others] = [
        MockRequest((1, 2), SamplingParams(seed=i), StopParams(max_tokens=20),
                constraint=constraint).add_to(engine)
        for i, constraint in enumerate([hopeless, ConstraintParams(regex="[ab]{9}"),
                                        ConstraintParams()])
    ]  # fmt: skip
    run_to_end(engine)
    assert failing.finish_reason == FinishReason.ERROR
    assert "the grammar failed" in str(failing.error)
    assert 0 < len(failing.output_token_ids) < 9
    assert [s.finish_reason for s in others] == [FinishReason.CONSTRAINT, FinishReason.MAX_TOKENS]


@pytest.mark.parametrize(("text", "whole"), [
    (f'start: "a" <[{END}]> "b"', False), (f'start: "a" (<[{END}]> "b")?', True),
    (f'start: "a" <[{END}]>', True),
])  # fmt: skip
def test_a_text_does_not_end_within_its_grammar(text, whole):
    """Where the grammar names the end token itself."""
    sequence = MockRequest((1, 2, 3), constraint=ConstraintParams(grammar=text)).finish().sequence
    assert sequence.finish_reason == (FinishReason.END_TOKEN if whole else FinishReason.ERROR)
    assert whole or "the grammar goes on after an end token" in str(sequence.error)


def test_a_grammar_with_ignore_eos_is_refused():
    stops, constraint = StopParams(ignore_eos=True), ConstraintParams(regex="a")
    with pytest.raises(InputError, match="ignore_eos"):
        MockRequest((1,), stops=stops, constraint=constraint).add_to(make_engine())


def test_two_grammars_exclude_each_other():
    with pytest.raises(InputError, match="json_schema and regex exclude each other"):
        ConstraintParams(json_schema=True, regex="a")


def steps_under(params, constraint, way="plain", **observe_and_run):
    run, policy = WAYS[way]
    engine = make_engine(noise, **policy)
    forced = observe_and_run.pop("forced", ())
    request = MockRequest(
        (1, 2, 3), params, StopParams(max_tokens=20), RunParams(**run, forced=forced),
        Observe(stages=True), constraint,
    )  # fmt: skip
    made = request.finish(engine)
    return made.sequence, made.steps


@pytest.mark.parametrize("way", WAYS)
@few_or_many(5, 10, st.integers(0, 1000), st.sampled_from([0, 0.7, 1]))
def test_what_was_wanted_is_what_is_drawn_after_the_same_tokens_without_a_grammar(
    way, seed, temperature
):
    params = SamplingParams(seed=seed, temperature=temperature, top_k=30)
    constraint = ConstraintParams(regex="[a-f]{2}xyz[0-9]{1,6}")
    _, steps = steps_under(params, constraint, way)
    ids = tuple(step.token_id for step in steps)
    _, free = steps_under(params, ConstraintParams(), forced=ids)
    assert [step.unconstrained_id for step in steps] == [
        step.sampled_id for step in free[: len(ids)]
    ]
    assert {step.unconstrained_id for step in free} == {None}


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_neg_log_z_is_that_of_the_mass_that_the_grammar_leaves(seed):
    allowed = [*b"abc"]
    constraint = ConstraintParams(regex="[abc]{5}")
    _, steps = steps_under(SamplingParams(seed=seed), constraint)
    tokens = (1, 2, 3)
    for step in steps:
        row = noise(tokens).astype(np.float64)
        left = np.exp(row[allowed]).sum() / np.exp(row).sum()
        assert step.neg_log_z == pytest.approx(-np.log(left), rel=1e-12)
        tokens = (*tokens, step.token_id)
    assert neg_log_z(steps) == fsum(step.neg_log_z for step in steps)


def test_neg_log_z_is_exact_where_almost_all_was_removed():
    """1 - removed_mass has no digit left there."""

    def model(tokens):
        logits = np.full(257, -100, np.float32)
        logits[ord("a")], logits[ord("z")] = -50, 30
        return logits

    request = MockRequest(
        (1,), SamplingParams(seed=0), observe=Observe(stages=True),
        constraint=ConstraintParams(regex="a"),
    )  # fmt: skip
    [step] = request.finish(make_engine(model)).steps
    assert step.observed.stages[0].removed_mass == 1.0
    assert step.neg_log_z == pytest.approx(80, rel=1e-12)


def test_a_forced_token_has_no_weight():
    constraint = ConstraintParams(regex="[abc]{5}")
    _, steps = steps_under(SamplingParams(seed=1), constraint, forced=(*b"ab",))
    assert [step.neg_log_z is None for step in steps] == [True, True, False, False, False]


@pytest.mark.parametrize(("forced", "name"), [(b"ax", "120 'x' at step 2"), (b"a", None)])
def test_a_forced_token_that_the_grammar_forbids_is_refused(forced, name):
    constraint = ConstraintParams(regex="[abc]{5}")
    ids = (*forced, *(() if name else (256,)))
    sequence, _ = steps_under(SamplingParams(seed=1), constraint, forced=ids)
    name = name or "256 '<end>' at step 2"
    assert str(sequence.error) == (
        f"forced: the grammar does not allow token {name}: give another, or leave out the grammar"
    )
