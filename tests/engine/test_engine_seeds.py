"""Luck: a seed says which text, and is always told."""

import pytest

from cutaway.engine import Request, StopParams
from cutaway.sampling import SamplingParams
from support.engine_mock import MockRequest, make_engine, run_to_end, written
from support.mock_backend import noise

STOPS = StopParams(max_tokens=12, ignore_eos=True)


def sampled(seed, temperature=1.5):
    params = SamplingParams(temperature=temperature, top_p=1, seed=seed)
    return MockRequest(tuple(b"luck"), params, STOPS)


@pytest.mark.parametrize(("one", "other"), [((11,), (11,)), ((1, 0), (2, 0))])
def test_the_same_seed_or_none_that_is_needed_gives_the_same_text(one, other):
    assert sampled(*one).run_on(make_engine()) == sampled(*other).run_on(make_engine())


@pytest.mark.parametrize("other", [0, 12, 11 + 2**32, 2**64 - 1])
def test_another_seed_gives_another_text(other):
    ours, theirs = (sampled(seed).run_on(make_engine()) for seed in (11, other))
    assert ours.token_ids != theirs.token_ids
    assert ours.fingerprints[0] == theirs.fingerprints[0], "the first logits know no seed"


def test_samples_share_what_was_checked():
    """Each would check as many biases as there are tokens."""
    params = SamplingParams(logit_bias={1: 2.0, 3: 4.0}, seed=5)
    first, second = Request(prompt_token_ids=(1,), sampling=params).samples(2)
    assert first.sampling.seed == 5 != second.sampling.seed
    assert first.sampling.logit_bias is second.sampling.logit_bias is params.logit_bias


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_a_seed_that_was_given_is_told(seed):
    assert sampled(seed).add_to(make_engine()).seed == seed


def test_a_seed_that_was_not_given_is_chosen_told_and_reproduces():
    one = sampled(None).finish()
    assert type(one.sequence.seed) is int
    assert sampled(one.sequence.seed).run_on(make_engine()) == one.written


def test_chosen_seeds_differ():
    engine = make_engine(noise)
    assert len({sampled(None).add_to(engine).seed for _ in range(20)}) == 20


def test_luck_does_not_depend_on_who_else_draws():
    engine = make_engine()
    twins = [sampled(11).add_to(engine) for _ in range(3)]
    steps = run_to_end(engine)
    alone = sampled(11).run_on(make_engine())
    assert [written(twin, steps) for twin in twins] == [alone] * 3


@pytest.mark.parametrize("seed", [None, 0, 2**64 - 1])
def test_who_knows_the_first_sample_of_a_request_knows_what_the_engine_makes_of_it(seed):
    every = sampled(seed).asked().samples(3)
    assert [s.request for s in make_engine().add(every[0], 3)] == every
    assert len({request.sampling.seed for request in every}) == 3
