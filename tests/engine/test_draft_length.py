"""How many draft tokens are chosen, where their outcomes and their costs are known."""

from itertools import pairwise
from math import prod
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine.speculation.length import (
    FROM_BLOCK,
    FROM_JACOBI,
    FROM_MODEL,
    FROM_NGRAM,
    LOSS,
    MAX_DRAFT,
    PROBE_INTERVAL,
    ROW_COST,
    STAKE,
    DraftLength,
    StepCosts,
)

pytestmark = pytest.mark.usefixtures("measured_drafts")
ALL_PRIORS = [FROM_NGRAM, FROM_JACOBI, FROM_MODEL, FROM_BLOCK]
PRIORS = st.sampled_from(ALL_PRIORS)
COSTS = st.tuples(st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([0.0, 0.05, 0.1, 0.15, 1.0]))
STEPS = st.lists(st.tuples(st.integers(0, 40), st.integers(-1, 40), st.integers(0, 16)))


def costs(row, once=0.0):
    """The costs of 0 … MAX_DRAFT draft tokens: so much a token, and so much for all."""
    return [0.0] + [once + row * k for k in range(1, MAX_DRAFT + 1)]


CHEAP = costs(0.1)


def run(
    drafts: DraftLength, match_lengths: list[int], right: int, room: int = 99, cost=CHEAP
) -> list[int]:
    """Drafts proposed at each step, of which at most the first ``right`` are right."""
    proposed = []
    for match_length in match_lengths:
        proposed.append(drafts.propose(match_length, room, cost))
        accepted = min(right, proposed[-1])
        drafts.learn(match_length, proposed[-1], accepted, cost[proposed[-1]])
    return proposed


@given(PRIORS, COSTS, STEPS)
def test_there_are_never_more_drafts_than_room_or_cap(priors, cost, steps):
    drafts, cost = DraftLength(priors), costs(*cost)
    for match_length, room, right in steps:
        proposed = drafts.propose(match_length, room, cost)
        assert 0 <= proposed <= min(max(room, 0), MAX_DRAFT)
        drafts.learn(match_length, proposed, min(right, proposed), cost[proposed])


@given(PRIORS, COSTS, STEPS)
def test_equal_outcomes_and_costs_give_equal_lengths(priors, cost, steps):
    one, other, cost = DraftLength(priors), DraftLength(priors), costs(*cost)
    for match_length, room, right in steps:
        proposed = one.propose(match_length, room, cost)
        assert other.propose(match_length, room, cost) == proposed
        for drafts in (one, other):
            drafts.learn(match_length, proposed, min(right, proposed), cost[proposed])


@given(PRIORS, st.lists(st.tuples(COSTS, st.integers(0, 40), st.integers(0, 3)), max_size=300))
def test_a_text_never_loses_more_than_its_stake_and_a_share(priors, steps):
    """Whatever costs turn out to be, and whichever drafts are right."""
    drafts, lost, tokens = DraftLength(priors), 0.0, 0
    for cost, match_length, right in steps:
        draft_costs = costs(*cost)
        proposed = drafts.propose(match_length, MAX_DRAFT, draft_costs)
        accepted = min(right, proposed)
        drafts.learn(match_length, proposed, accepted, draft_costs[proposed])
        lost, tokens = lost + draft_costs[proposed] - accepted, tokens + 1 + accepted
        assert lost <= STAKE + LOSS * tokens + 1e-9


@pytest.mark.parametrize("priors", ALL_PRIORS)
@pytest.mark.parametrize("match_lengths", [[2], [40], [2, 40], [2, 3, 5, 9, 13]])
@pytest.mark.parametrize("cost", [(0.05,), (0.1,), (0.15,), (0.1, 0.5), (0.3, 0.3)])
def test_where_nothing_is_right_drafts_cost_under_two_percent(priors, match_lengths, cost):
    steps, draft_costs = (match_lengths * 300)[:300], costs(*cost)
    proposed = run(DraftLength(priors), steps, right=0, cost=draft_costs)
    assert 0 < sum(draft_costs[k] for k in proposed) < 0.02 * len(steps)


@pytest.mark.parametrize("priors", ALL_PRIORS)
@pytest.mark.parametrize("match_length", [2, 5, 8, 40])
@pytest.mark.parametrize("cost", [0.05, 0.1])
def test_where_all_is_right_the_cap_is_reached_soon(priors, match_length, cost):
    proposed = run(DraftLength(priors), [match_length] * 30, right=MAX_DRAFT, cost=costs(cost))
    assert proposed[0] > 0
    assert proposed[16:] == [MAX_DRAFT] * 14


def pauses(proposed: list[int]) -> list[int]:
    """Steps between the probes, all of one draft, that follow the first step without drafts."""
    probes = [i for i in range(proposed.index(0), len(proposed)) if proposed[i]]
    assert {proposed[i] for i in probes} == {1}
    return [b - a for a, b in pairwise(probes)]


def test_a_bucket_given_up_is_probed_ever_more_rarely():
    assert pauses(run(DraftLength(), [2] * 400, right=0)) == [16, 32, 64, 64, 64, 64, 64]


def test_a_bucket_given_up_comes_back_once_guesses_are_right():
    drafts = DraftLength()
    run(drafts, [2] * 300, right=0)
    proposed = run(drafts, [2] * 100, right=MAX_DRAFT)
    first = next(i for i, k in enumerate(proposed) if k)
    assert first < 64
    assert proposed[first + 30 :] == [MAX_DRAFT] * (70 - first)
    assert sum(run(drafts, [2] * 300, right=0)[100:]) < 30


def test_a_bucket_is_given_up_even_where_drafts_are_free():
    assert sum(run(DraftLength(), [2] * 300, right=0, cost=costs(0.0))[20:]) < 10


def test_long_matches_are_trusted_when_short_ones_are_not():
    drafts = DraftLength()
    assert drafts.propose(2, 99, CHEAP) < drafts.propose(8, 99, CHEAP)
    run(drafts, [2] * 50, right=0)
    assert drafts.propose(8, 99, CHEAP) > 4


@given(PRIORS, COSTS, st.integers(0, 12), st.integers(1, 30))
def test_the_length_is_the_best_for_what_is_expected(priors, cost, match_length, room):
    draft_costs = costs(*cost)

    def speed(k):
        expected = [priors[max(s for s in priors if s <= match_length + j)] for j in range(k)]
        return sum(prod(expected[:i]) for i in range(k + 1)) / (1 + draft_costs[k])

    best = max(range(min(room, MAX_DRAFT) + 1), key=speed)
    within = [k for k in range(best + 1) if draft_costs[k] <= STAKE]
    assert DraftLength(priors).propose(match_length, room, draft_costs) == within[-1]


def test_a_right_draft_speaks_for_the_longer_matches_that_follow():
    drafts = DraftLength()
    run(drafts, [40] * 100, right=0)
    assert drafts.propose(8, 99, CHEAP) == 0
    drafts.learn(2, MAX_DRAFT, MAX_DRAFT, 1.6)
    assert drafts.propose(8, 99, CHEAP) > 0
    drafts = DraftLength()
    drafts.learn(7, MAX_DRAFT, 0, 0.0)  # those after a wrong one do not
    assert drafts.propose(8, 99, CHEAP) == DraftLength().propose(8, 99, CHEAP)


def test_without_room_or_drafts_nothing_is_learnt_and_drafts_that_cost_a_step_are_not_made():
    assert DraftLength().propose(40, 99, costs(1.0)) == 0
    drafts, fresh = DraftLength(), DraftLength()
    for _ in range(20):
        assert drafts.propose(2, 0, CHEAP) == 0
        drafts.learn(2, 0, 0, 0.0)
    assert run(drafts, [2] * 60, right=0) == run(fresh, [2] * 60, right=0)


def test_waking_is_staked_unless_its_drafts_are_expected_to_pay_it_back():
    drafts = DraftLength(FROM_MODEL)
    assert drafts.propose(0, 9, CHEAP, waking=1.2 * STAKE) == 0
    assert 0 < drafts.propose(0, 9, CHEAP, waking=1.2) < drafts.propose(0, 9, CHEAP)
    assert drafts.propose(0, 9, CHEAP, waking=20, left=30) == 0
    assert drafts.propose(0, 9, CHEAP, waking=20, left=60) > 0
    drafts.learn(0, 1, 0, 20 + CHEAP[1])
    assert drafts.propose(0, 9, CHEAP) > 0  # the stake is what it was, less a draft


# -- what draft tokens cost ------------------------------------------------------------------------


class Drafter:
    """A drafter of blocks, or of a token a pass."""

    def __init__(self, cost, *, blocks):
        self.name, self.cost, self._blocks = f"drafter {blocks}", cost, blocks

    def passes(self, count):
        return min(count, 1) if self._blocks else count


def measured(seconds):
    """Costs after three steps of each number of rows, seconds by rows."""
    step_costs = StepCosts()
    for rows, s in seconds.items():
        for _ in range(3):
            step_costs.learn_step(rows, s)
    return step_costs


def test_costs_are_guessed_until_steps_have_been_measured():
    guess = costs(ROW_COST)
    assert StepCosts().draft_costs(1, 1) == pytest.approx(guess)
    step_costs = StepCosts()
    for _ in range(2):
        step_costs.learn_step(1, 0.01)
    assert step_costs.draft_costs(1, 1) == pytest.approx(guess)
    assert measured({1: 1e-5, 2: 9e-5}).draft_costs(1, 1) == pytest.approx(guess)  # all is overhead


def test_costs_are_those_of_measured_steps():
    draft_costs = measured({1: 0.010, 5: 0.011, 9: 0.020}).draft_costs(1, 1)
    assert draft_costs[4] == pytest.approx(0.1)
    assert draft_costs[8] == pytest.approx(1.0)
    assert draft_costs[6] == pytest.approx(0.1 + 0.9 / 2)  # between, evenly
    assert draft_costs[16] > draft_costs[8] * 1.5  # beyond, as guessed
    assert measured({1: 0.010, 5: 0.009}).draft_costs(1, 1)[4] == 0  # a step gets no faster by rows


def test_one_slow_step_changes_no_cost():
    step_costs = measured({1: 0.010, 2: 0.011})
    before = step_costs.draft_costs(1, 1)
    step_costs.learn_step(1, 5.0)
    for _ in range(40):
        step_costs.learn_step(3, 0.012)
    assert step_costs.draft_costs(1, 1)[1] == pytest.approx(before[1])


def test_a_cost_in_company_is_what_all_wait_for():
    """Four texts, of which two draft two tokens each: rows 4 → 8, and each writes one a step."""
    step_costs = measured({4: 0.010, 8: 0.015})
    assert step_costs.draft_costs(4, 2)[2] == pytest.approx(0.5 * 4 / 2)


@pytest.mark.parametrize(("blocks", "passes"), [(False, 3), (True, 1)])
def test_the_passes_of_a_drafter_cost_as_much_as_was_measured(blocks, passes):
    drafter, step_costs = Drafter(0.25, blocks=blocks), measured({1: 0.010, 4: 0.012})
    assert step_costs.draft_costs(1, 1, drafter)[3] == pytest.approx(0.2 + 0.25 * passes)
    for seconds in (0.004, 0.004, 0.9):
        step_costs.learn_passes(drafter, 1, seconds)
    for _ in range(32):
        step_costs.learn_step(1, 0.010)
    assert step_costs.draft_costs(1, 1, drafter)[3] == pytest.approx(0.2 + 0.4 * passes)
    assert step_costs.draft_costs(1, 1, drafter)[0] == 0


def follow(step_costs, name, seconds):
    """Measure three steps of each number of rows that a head follows."""
    for rows, s in seconds.items():
        for _ in range(3):
            step_costs.learn_step(rows, s, name)
    return step_costs


def test_a_head_is_charged_with_what_it_costs_to_follow():
    head = Drafter(0.25, blocks=True)
    step_costs = follow(measured({1: 0.010, 9: 0.014}), head.name, {1: 0.012, 9: 0.017})
    draft_costs = step_costs.draft_costs(1, 1, head)
    assert draft_costs[0] == pytest.approx(0.2)
    assert draft_costs[8] == pytest.approx(0.7 + 0.25)
    assert step_costs.draft_costs(1, 1)[8] == pytest.approx(0.4)  # of drafts from the text
    assert (
        step_costs.draft_costs(1, 1, Drafter(0.25, blocks=False))[0] == 0
    )  # which follows nothing


def test_following_costs_nothing_until_it_is_measured_and_steps_alone_are_guessed_until_they_are():
    head = Drafter(0.25, blocks=True)
    draft_costs = follow(measured({1: 0.010}), head.name, {9: 0.017}).draft_costs(1, 1, head)
    assert (draft_costs[0], draft_costs[8]) == (0, pytest.approx(0.7 + 0.25))
    draft_costs = follow(StepCosts(), head.name, {9: 0.018}).draft_costs(1, 1, head)
    assert (draft_costs[0], draft_costs[8]) == (0, pytest.approx(8 * ROW_COST + 0.25))
    step_costs = follow(measured({1: 0.010}), head.name, {1: 0.009})  # noise
    assert step_costs.draft_costs(1, 1, head)[0] == 0


def test_steps_that_nobody_follows_are_measured_after_three():
    step_costs = follow(StepCosts(), "head", {1: 0.012})
    assert not step_costs.is_measured(1)
    for _ in range(3):
        assert not step_costs.is_measured(1)
        step_costs.learn_step(1, 0.010)
    assert step_costs.is_measured(1)
    assert not step_costs.is_measured(2)


def test_tokens_that_are_read_late_cost_what_was_measured():
    drafter, step_costs = Drafter(0.25, blocks=False), measured({1: 0.010})
    assert step_costs.reading_cost(1, 1, drafter, 20) == pytest.approx(20 * ROW_COST * 0.25)
    for tokens in (10, 20, 30):
        step_costs.learn_reading(drafter, tokens, 2, 0.0002 * tokens + 2 * 0.0025)
    assert step_costs.reading_cost(1, 1, drafter, 20) == pytest.approx(0.4)
    assert step_costs.reading_cost(1, 1, Drafter(0.25, blocks=True), 20) == pytest.approx(0.5)


@given(st.lists(st.sampled_from([1e-4, 0.005, 0.03, 0.5]), max_size=8))
def test_a_drafter_that_always_drafts_is_compared_with_steps_of_now(first):
    """Whatever the first steps took, of which slow ones made drafts look free."""
    step_costs, probes, wanted = StepCosts(), 0, [1, 4, 16] * 250
    for seconds in first:
        step_costs.learn_step(1, seconds)
    for most in wanted:
        count = 0 if step_costs.probes(1) else most
        probes += count == 0
        step_costs.learn_step(1 + count, 0.010 * (1 + 0.05 * count))
    assert 0 < probes <= len(wanted) / 100
    draft_costs = step_costs.draft_costs(1, 1)
    assert (draft_costs[4], draft_costs[16]) == (pytest.approx(0.2), pytest.approx(0.8))


class Head(NamedTuple):
    """A drafter whose passes are said to cost next to nothing."""

    name: str = "head"
    cost: float = 0.01

    def passes(self, count):
        return count


def test_what_a_pass_takes_counts_where_a_head_follows_every_step():
    step_costs, head = StepCosts(), Head()
    for _ in range(600):
        step_costs.learn_step(1, 0.010, head.name)
        step_costs.learn_step(2, 0.011, head.name)
        step_costs.learn_passes(head, 1, 0.009)
    assert step_costs.draft_costs(1, 1, head)[:2] == (0, pytest.approx(0.1 + 0.9))


def test_steps_that_nobody_followed_are_measured_only_if_they_were_lately():
    step_costs, head = StepCosts(), Head()
    for _ in range(3):
        assert not step_costs.is_measured(1)
        step_costs.learn_step(1, 0.010)
    assert step_costs.is_measured(1)
    for _ in range(600):
        step_costs.learn_step(1, 0.0115, head.name)
    assert not step_costs.is_measured(1)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=900))
def test_probes_are_at_most_one_percent_of_the_steps(steps):
    """Also where the number of texts changes, or the step of a probe is not measured."""
    step_costs, probes = StepCosts(), 0
    for rows, is_measured in steps:
        probes += step_costs.probes(rows)
        if is_measured:
            step_costs.learn_step(rows + 5, 0.01)
    assert probes <= len(steps) / 100


def test_steps_without_drafts_make_probes_needless():
    step_costs = StepCosts()
    for _ in range(10):
        for step in range(PROBE_INTERVAL):
            assert not step_costs.probes(1)
            step_costs.learn_step(1 if step == 0 else 5, 0.01)
