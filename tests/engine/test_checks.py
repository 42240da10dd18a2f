"""Checks in the loop: nothing invalid ends well, and every way writes the same text.

Of schemas, of arithmetic, and a user's own.
"""

import json
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.engine import ConstraintParams, FinishReason, RunParams, Step, StopParams
from cutaway.engine.constraint.checks import WINDOW
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
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


UNIQUE = {  # of values that a pattern has, so that no mask can hold it
    "type": "array", "items": {"type": "string", "pattern": "^[abc]$"}, "minItems": 2,
    "maxItems": 9, "uniqueItems": True,
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
    request = MockRequest((1,), constraint=ConstraintParams(check="arithmetic")).to_request()
    assert pickle.loads(pickle.dumps(request)) == request
    request = MockRequest((1,), constraint=ConstraintParams(check=Even())).to_request()
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
