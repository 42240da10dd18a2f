"""DraftLength on streams whose outcome is known: all right, none right, one after the other."""

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine.speculation import (
    FROM_JACOBI,
    FROM_MODEL,
    FROM_NGRAM,
    MAX_DRAFT,
    DraftLength,
)

PRIORS = st.sampled_from([FROM_NGRAM, FROM_JACOBI, FROM_MODEL])
COSTS = st.sampled_from([0.0, 0.05, 0.1, 0.15, 1.0])
STEPS = st.lists(st.tuples(st.integers(0, 40), st.integers(-1, 40), st.integers(0, 16)))


def run(drafts: DraftLength, match_lengths: list[int], right: int, room: int = 99) -> list[int]:
    """Drafts proposed at each step, of which at most the first ``right`` are right."""
    proposed = []
    for match_length in match_lengths:
        proposed.append(drafts.propose(match_length, room))
        drafts.learn(match_length, proposed[-1], min(right, proposed[-1]))
    return proposed


@given(PRIORS, COSTS, STEPS)
def test_there_are_never_more_drafts_than_room_or_cap(priors, cost, steps):
    drafts = DraftLength(cost, priors)
    for match_length, room, right in steps:
        proposed = drafts.propose(match_length, room)
        assert 0 <= proposed <= min(max(room, 0), MAX_DRAFT)
        drafts.learn(match_length, proposed, min(right, proposed))


@given(PRIORS, COSTS, STEPS)
def test_equal_outcomes_give_equal_lengths(priors, cost, steps):
    one, other = DraftLength(cost, priors), DraftLength(cost, priors)
    for match_length, room, right in steps:
        proposed = one.propose(match_length, room)
        assert other.propose(match_length, room) == proposed
        one.learn(match_length, proposed, min(right, proposed))
        other.learn(match_length, proposed, min(right, proposed))


@pytest.mark.parametrize("priors", [FROM_NGRAM, FROM_JACOBI, FROM_MODEL])
@pytest.mark.parametrize("match_length", [2, 5, 8, 40])
@pytest.mark.parametrize("cost", [0.05, 0.1])
def test_where_all_is_right_the_cap_is_reached_within_ten_steps(priors, match_length, cost):
    proposed = run(DraftLength(cost, priors), [match_length] * 30, right=MAX_DRAFT)
    assert proposed[0] > 0
    assert proposed[10:] == [MAX_DRAFT] * 20


@pytest.mark.parametrize("priors", [FROM_NGRAM, FROM_JACOBI, FROM_MODEL])
@pytest.mark.parametrize("match_lengths", [[2], [40], [2, 40], [2, 3, 5, 9, 13]])
@pytest.mark.parametrize("cost", [0.05, 0.1, 0.15])
def test_where_nothing_is_right_drafts_cost_under_three_percent(priors, match_lengths, cost):
    steps = (match_lengths * 300)[:300]
    proposed = run(DraftLength(cost, priors), steps, right=0)
    assert 0 < cost * sum(proposed) < 0.03 * len(steps)


def pauses(proposed: list[int]) -> list[int]:
    """Steps between the probes, all of one draft, that follow the first step without drafts."""
    probes = [i for i in range(proposed.index(0), len(proposed)) if proposed[i]]
    assert {proposed[i] for i in probes} == {1}
    return [b - a for a, b in pairwise(probes)]


def test_a_bucket_given_up_is_probed_ever_more_rarely():
    assert pauses(run(DraftLength(0.1), [2] * 400, right=0)) == [16, 32, 64, 64, 64, 64, 64]


def test_a_bucket_given_up_comes_back_once_guesses_are_right():
    drafts = DraftLength(0.1)
    run(drafts, [2] * 300, right=0)
    proposed = run(drafts, [2] * 100, right=MAX_DRAFT)
    first = next(i for i, k in enumerate(proposed) if k)
    assert first < 64
    assert proposed[first + 30 :] == [MAX_DRAFT] * (70 - first)
    assert pauses(run(drafts, [2] * 100, right=0))[:2] == [16, 32]


def test_a_bucket_is_given_up_even_where_drafts_are_free():
    assert sum(run(DraftLength(0.0), [2] * 300, right=0)[20:]) < 10


def test_long_matches_are_trusted_when_short_ones_are_not():
    drafts = DraftLength(0.1)
    assert drafts.propose(2, 99) < drafts.propose(8, 99)
    run(drafts, [2] * 50, right=0)
    assert drafts.propose(8, 99) > 8


@given(PRIORS, st.integers(0, 12), st.integers(1, 30))
def test_the_length_is_the_best_for_what_is_expected(priors, match_length, room):
    def speed(k):
        expected = [priors[max(s for s in priors if s <= match_length + j)] for j in range(k)]
        return sum(prod(expected[:i]) for i in range(k + 1)) / (1 + 0.1 * k)

    best = max(range(min(room, MAX_DRAFT) + 1), key=speed)
    assert DraftLength(0.1, priors).propose(match_length, room) == best


def test_a_right_draft_speaks_for_the_longer_matches_that_follow():
    drafts = DraftLength(0.1)
    run(drafts, [40] * 100, right=0)
    assert drafts.propose(8, 99) == 0
    drafts.learn(2, MAX_DRAFT, MAX_DRAFT)
    assert drafts.propose(8, 99) > 0
    drafts = DraftLength(0.1)
    drafts.learn(7, MAX_DRAFT, 0)  # those after a wrong one do not
    assert drafts.propose(8, 99) == DraftLength(0.1).propose(8, 99)


def test_without_room_or_drafts_nothing_is_learnt_and_drafts_that_cost_a_step_are_not_made():
    assert DraftLength(1.0).propose(40, 99) == 0
    drafts, fresh = DraftLength(0.1), DraftLength(0.1)
    for _ in range(20):
        assert drafts.propose(2, 0) == 0
        drafts.learn(2, 0, 0)
    assert run(drafts, [2] * 60, right=0) == run(fresh, [2] * 60, right=0)
