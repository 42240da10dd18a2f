"""The draw: a pure function of logits, settings, seed and position; and a token's logprob."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.sampling import PRESETS, History, Observe, SamplingParams, build_chain, logprob
from support.sampling_oracles import row, rows, scores_of, snapshots, winner
from support.twin_draw import draw

NOBODY = History()
SEED = st.integers(0, 2**64 - 1)
POSITION = st.integers(0, 2**31 - 1)
FILTERS = st.fixed_dictionaries(
    {
        "top_k": st.integers(0, 14),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 0.9),
        "preset": st.sampled_from(sorted(PRESETS)),
    }
)
TEMPERATURE = st.one_of(st.just(1.0), st.floats(0.2, 5))


def chosen(logits, seed=0, position=0, *, observe=None, **settings):
    params = SamplingParams(**({"temperature": 1, "top_p": 1} | settings))
    return draw(params, logits, NOBODY, seed=seed, position=position, observe=observe)


@given(rows(), SEED, POSITION, FILTERS, TEMPERATURE)
def test_the_token_is_the_argmax_of_processed_logit_plus_luck(
    logits, seed, position, filters, temperature
):
    chain = build_chain(SamplingParams(temperature=temperature, **filters))
    survivors = snapshots(chain, logits, NOBODY)[-1]
    got = chosen(logits, seed, position, temperature=temperature, **filters)
    won = winner(survivors, seed, position)
    assert (got.token_id, got.survivors) == (won, len(survivors))


@given(rows(), SEED, POSITION, FILTERS)
def test_a_draw_repeats_whatever_was_drawn_in_between_and_observed(logits, seed, position, filters):
    first = chosen(logits, seed, position, **filters)
    chosen(logits, seed ^ 1, position + 1)
    again = chosen(logits.copy(), seed, position, observe=Observe(top=3, stages=True), **filters)
    assert (again.token_id, again.survivors) == (first.token_id, first.survivors)


@given(rows(), SEED, POSITION, FILTERS)
def test_a_winner_that_survives_a_filter_stays_the_winner(logits, seed, position, filters):
    free = chosen(logits, seed, position).token_id
    survivors = snapshots(build_chain(SamplingParams(temperature=1, **filters)), logits, NOBODY)[-1]
    assert (chosen(logits, seed, position, **filters).token_id == free) == (free in survivors)


@given(rows(min_size=2), SEED, POSITION)
def test_without_the_winner_the_rest_keep_their_luck(logits, seed, position):
    """Banning winner after winner ranks the tokens by the same scores each time."""
    banned = set()
    while len(banned) < len(logits):
        rest = {t: score for t, score in scores_of(logits).items() if t not in banned}

        def ban(_, scores, gone=banned):
            scores[list(gone)] = -np.inf
            return scores

        got = chosen(logits, seed, position, processors=(ban,))
        assert (got.token_id, got.survivors) == (winner(rest, seed, position), len(rest))
        banned.add(got.token_id)


@given(rows(), SEED, POSITION)
def test_draw_leaves_the_logits_as_they_are(logits, seed, position):
    writable = logits.copy()
    look = Observe(top=2, stages=True, after_chain=True)
    chosen(writable, seed, position, temperature=0.3, top_k=2, logit_bias={0: 1}, observe=look)
    assert writable.tobytes() == logits.tobytes()


@given(rows(), SEED, POSITION, FILTERS)
def test_greedy_is_the_argmax_whatever_the_seed_and_the_filters(logits, seed, position, filters):
    values = logits.tolist()
    got = chosen(logits, seed, position, temperature=0, **filters)
    assert got.token_id == values.index(max(values))


@pytest.mark.parametrize(
    ("values", "token_id"),
    [([1, 3, 3, 3], 1), ([-2, -2], 0), ([0.0, -0.0, 0.0], 0), ([-0.0, 0.0], 0), ([-7], 0)],
)
def test_greedy_ties_go_to_the_lowest_id(values, token_id):
    assert chosen(row(values), temperature=0).token_id == token_id


def test_greedy_sees_bias_and_penalties():
    params = SamplingParams(temperature=0, presence_penalty=2, logit_bias={2: 5})
    logits = row([3, 2.5, -1])
    assert draw(params, logits, NOBODY, seed=0, position=0).token_id == 2
    repeated = History([], [2, 0])
    assert draw(params, logits, repeated, seed=0, position=0).token_id == 1


def test_draws_are_pinned():
    """The same tokens on every machine and in every later version: a seed is a promise."""
    logits = row([0.5 * (i % 7) - 0.01 * i for i in range(1000)])
    tokens = [chosen(logits, 2026, position).token_id for position in range(12)]
    filtered = [chosen(logits, 2026, position, top_p=0.5).token_id for position in range(12)]
    assert tokens == [98, 6, 166, 20, 97, 6, 21, 152, 243, 87, 41, 174]
    assert filtered == [4, 6, 20, 20, 97, 6, 69, 48, 75, 90, 41, 55]


def test_survivors_and_ledger_of_a_draw():
    got = chosen(row([1, 9, 8, 2]), 5, 5, top_k=2, observe=Observe(stages=True))
    assert got.survivors == 2
    assert [report.stage.name for report in got.observed.stages] == ["top_k"]
    got = chosen(row([1, 9, 8, 2]), 5, 5, top_k=2, observe=Observe(top=1))
    assert got.observed.stages == got.observed.after_chain == ()


# --- logprob --------------------------------------------------------------------------------


@given(rows(max_size=40), st.data())
def test_logprob_is_the_log_of_the_softmax(logits, data):
    values = logits.tolist()
    token_id = data.draw(st.integers(0, len(values) - 1))
    top = max(values)
    expected = values[token_id] - top - math.log(math.fsum(math.exp(v - top) for v in values))
    assert logprob(logits, token_id) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(rows(max_size=40))
def test_logprobs_of_a_row_hold_all_the_mass(logits):
    mass = math.fsum(math.exp(logprob(logits, t)) for t in range(len(logits)))
    assert mass == pytest.approx(1, abs=1e-12)


def test_logprob_of_the_only_token_is_zero():
    assert logprob(row([-12.5]), 0) == 0.0


@given(rows(max_size=40))
def test_logprob_bits_do_not_depend_on_memory_layout(logits):
    wide = np.zeros((len(logits), 3), np.float32)
    wide[:, 1] = logits
    assert logprob(wide[:, 1], 0) == logprob(logits, 0)
