"""Checks in the loop: nothing invalid ends well, and every way writes the same text.

Of schemas, of arithmetic, and a user's own.
"""

import json
import pickle
import re
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.engine import ConstraintParams, FinishReason, RunParams, Step, StopParams
from cutaway.engine.constraint.checks import WINDOW
from cutaway.engine.events import neg_log_z
from cutaway.errors import InputError
from cutaway.sampling import Observe, SamplingParams
from support.engine_mock import GREEDY, Finished, MockRequest, make_engine, run_to_end
from support.engine_requests import WAYS
from support.examples import few_or_many
from support.mock_backend import END, noise
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


@few_or_many(30, 150, checked(), st.integers(0, 1000))
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


# -- arithmetic and a user's own check -------------------------------------------------------------


RUNS = [{}, {"speculate": "ngram"}, {"speculate": "jacobi"}, {"kv_cache": False}]


class Even:
    """An own check: as many a as b, two in a row at most, and no other bytes."""

    def allows(self, text, token):
        made = text + token
        if not token:
            return text.count(b"a") == text.count(b"b")
        return bool(re.fullmatch(rb"[ab]*", made)) and b"aaa" not in made and b"bbb" not in made


def write_under(prompt, constraint, seed=0, run=None, max_tokens=30):
    one = MockRequest(
        tuple(prompt), SamplingParams(seed=seed), StopParams(max_tokens=max_tokens),
        RunParams(**(run or {})), constraint=constraint,
    ).finish()  # fmt: skip
    text = bytes(i for i in one.token_ids if i != END)
    return text, one.end.reason, one.end.error, [s.fingerprint for s in one.steps]


@settings(max_examples=20)
@given(
    a=st.integers(0, 99), b=st.integers(0, 99), seed=st.integers(0, 99),
    run=st.sampled_from(RUNS),
)  # fmt: skip
def test_the_prompts_sum_is_continued_by_its_value(a, b, seed, run):
    prompt, arithmetic = f"{a}*{b} =".encode(), ConstraintParams(check="arithmetic")
    text, _, _, fingerprints = write_under(prompt, arithmetic, seed, run, 12)
    assert re.match(rb" {0,2}%d(?!\d|[.,/]\d)" % (a * b), text)
    plain, _, _, expected = write_under(prompt, arithmetic, seed, {}, 12)
    assert (text, fingerprints) == (plain, expected)


def test_a_sum_in_the_text_itself_within_a_grammar():
    constraint = ConstraintParams(regex=r"[1-9]\+[1-9]= ?[0-9]{1,3}", check="arithmetic")
    texts = [write_under(b"So ", constraint, seed) for seed in range(30)]
    for text, reason, error, _ in texts:
        left, right = text.split(b"=")
        assert reason in (FinishReason.CONSTRAINT, FinishReason.END_TOKEN), error
        assert eval(left) == int(right)
    assert len({text for text, *_ in texts}) > 3


@pytest.mark.parametrize("seed", range(5))
def test_an_own_check_decides_about_each_token_and_the_end(seed):
    text, reason, _, _ = write_under((1,), ConstraintParams(check=Even()), seed, max_tokens=60)
    assert re.fullmatch(rb"[ab]*", text) and b"aaa" not in text and b"bbb" not in text
    assert reason == FinishReason.MAX_TOKENS or text.count(b"a") == text.count(b"b")


def test_what_an_own_check_raises_is_the_error_of_its_text():
    class Broken:
        name = "mine"

        def allows(self, text, token):
            return {}[text]

    _, reason, error, _ = write_under((1,), ConstraintParams(check=Broken()))
    assert reason == FinishReason.ERROR and str(error) == "check mine: KeyError: b''"


def test_what_an_own_check_sees():
    seen = set()

    class Sees:
        reads_prompt = True

        def allows(self, text, token):
            seen.add(text)
            return True

        def suspects(self, text):
            return re.compile(b"z")

    text, *_ = write_under(b"ab", ConstraintParams(check=Sees()), max_tokens=3)
    assert seen == {b"ab" + text[:i] for i in range(3)}


@pytest.mark.parametrize("value", ["maths", 5, object(), ["arithmetic"]])
def test_what_is_no_check_is_refused(value):
    with pytest.raises(InputError, match='check must be "arithmetic", or an object with allows'):
        ConstraintParams(check=value)


def test_an_own_check_cannot_be_sent_elsewhere():
    request = MockRequest((1,), constraint=ConstraintParams(check="arithmetic")).asked()
    assert pickle.loads(pickle.dumps(request)) == request
    request = MockRequest((1,), constraint=ConstraintParams(check=Even())).asked()
    with pytest.raises(InputError, match=r"^check: an object of one's own"):
        pickle.dumps(request)


@pytest.mark.parametrize("run", RUNS)
def test_a_step_says_which_check_spoke(run):
    stops, constraint = StopParams(max_tokens=6), ConstraintParams(check="arithmetic")
    request = MockRequest(tuple(b"2+2="), GREEDY, stops, RunParams(**run), constraint=constraint)
    steps = request.finish().steps
    at = [step.token_id for step in steps].index(ord("4"))
    said = [step.refused_by for step in steps]
    assert said[: at + 2] == [("arithmetic",)] * (at + 2)  # no digit may follow it
    assert said[at + 2 :] == [()] * (4 - at)


# -- grammar constraint ----------------------------------------------------------------------------

# A grammar in the loop: the same text in every way it can be computed, and its own end.


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


@pytest.mark.parametrize(("forced", "name"), [(b"ax", "120 'x' at step 1"), (b"a", None)])
def test_a_forced_token_that_the_grammar_forbids_is_refused(forced, name):
    constraint = ConstraintParams(regex="[abc]{5}")
    ids = (*forced, *(() if name else (256,)))
    sequence, _ = steps_under(SamplingParams(seed=1), constraint, forced=ids)
    name = name or "256 '<end>' at step 1"
    assert str(sequence.error) == (
        f"forced: the grammar does not allow token {name}: give another, or leave out the grammar"
    )
