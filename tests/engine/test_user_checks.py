"""Arithmetic and a user's own check in the loop."""

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import ConstraintParams, FinishReason, RunParams, StopParams
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from support.engine_mock import GREEDY, MockRequest
from support.mock_backend import END

RUNS = [{}, {"speculate": "ngram"}, {"speculate": "jacobi"}, {"kv_cache": False}]


class Even:
    """An own check: as many a as b, two in a row at most, and no other bytes."""

    def allows(self, text, token):
        made = text + token
        if not token:
            return text.count(b"a") == text.count(b"b")
        return bool(re.fullmatch(rb"[ab]*", made)) and b"aaa" not in made and b"bbb" not in made


def write(prompt, constraint, seed=0, run=None, max_tokens=30):
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
    text, _, _, fingerprints = write(prompt, arithmetic, seed, run, 12)
    assert re.match(rb" {0,2}%d(?!\d|[.,/]\d)" % (a * b), text)
    plain, _, _, expected = write(prompt, arithmetic, seed, {}, 12)
    assert (text, fingerprints) == (plain, expected)


def test_a_sum_in_the_text_itself_within_a_grammar():
    constraint = ConstraintParams(regex=r"[1-9]\+[1-9]= ?[0-9]{1,3}", check="arithmetic")
    texts = [write(b"So ", constraint, seed) for seed in range(30)]
    for text, reason, error, _ in texts:
        left, right = text.split(b"=")
        assert reason in (FinishReason.CONSTRAINT, FinishReason.END_TOKEN), error
        assert eval(left) == int(right)
    assert len({text for text, *_ in texts}) > 3


@pytest.mark.parametrize("seed", range(5))
def test_an_own_check_decides_about_each_token_and_the_end(seed):
    text, reason, _, _ = write((1,), ConstraintParams(check=Even()), seed, max_tokens=60)
    assert re.fullmatch(rb"[ab]*", text) and b"aaa" not in text and b"bbb" not in text
    assert reason == FinishReason.MAX_TOKENS or text.count(b"a") == text.count(b"b")


def test_what_an_own_check_raises_is_the_error_of_its_text():
    class Broken:
        name = "mine"

        def allows(self, text, token):
            return {}[text]

    _, reason, error, _ = write((1,), ConstraintParams(check=Broken()))
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

    text, *_ = write(b"ab", ConstraintParams(check=Sees()), max_tokens=3)
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
