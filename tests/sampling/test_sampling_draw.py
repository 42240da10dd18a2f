"""The draw: a pure function of logits, settings, seed and position; and a token's logprob.

An error belongs to its row. Draws follow softmax and are independent: chi-square on fixed seeds, so
it cannot flicker; each check is also shown data that is wrong, which it must reject.
"""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import CutawayError, InputError
from cutaway.sampling import (
    PRESETS,
    CompiledChain,
    History,
    Observe,
    RowDraw,
    SamplingParams,
    build_chain,
    derive_seed,
    logprob,
    sample,
)
from cutaway.sampling.luck import uniform
from cutaway.sampling.native import TWIN
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


# -- errors ----------------------------------------------------------------------------------------


class Mine(Exception):
    """A user's own."""


MINE = Mine("of the user")


def raising(_, __):
    raise MINE


def lost(_, logits):
    return logits[:-1]


def kept(_, logits):
    return logits


def asked(position, *processors, **settings):
    params = SamplingParams(processors=processors, **settings)
    chain = CompiledChain(build_chain(params), params, ())
    return RowDraw(chain, History(), 11, position, Observe(top=2))


def noise(rows, vocab=50):
    return np.random.default_rng(rows).normal(0, 3, (rows, vocab)).astype(np.float32)


KINDS = ("native", "processor", "not finite", "not finite for a processor", "raises", "misbehaves")


def row_of(kind, position, logits):
    """A draw of this kind, whose row is spoilt where that is the kind."""
    if kind.startswith("not finite"):
        logits[position] = np.nan
    processors = {
        "processor": (kept,), "raises": (raising,), "misbehaves": (lost,),
        "not finite for a processor": (kept,),
    }  # fmt: skip
    return asked(position, *processors.get(kind, ()))


def expected_error(kind, found):
    if kind == "raises":
        return found is MINE
    if kind == "misbehaves":
        return isinstance(found, InputError) and "one logit per token" in str(found)
    return isinstance(found, CutawayError) and "are not finite" in str(found)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=7))
def test_rows_that_fail_leave_the_others_alone(kinds):
    logits = noise(len(kinds))
    draws = [row_of(kind, i, logits) for i, kind in enumerate(kinds)]
    found = sample(logits, draws)
    assert len(found) == len(kinds)
    for i, kind in enumerate(kinds):
        if kind in ("native", "processor"):
            assert found[i] == sample(logits[i : i + 1], [draws[i]])[0]
        else:
            assert isinstance(found[i], Exception)
            assert expected_error(kind, found[i])


def test_an_error_names_the_position_of_its_row():
    logits = noise(2)
    logits[1, 3] = np.inf
    _, error = sample(logits, [asked(5), asked(77)])
    assert str(error) == "the model's logits at position 77 are not finite"


def test_an_interrupt_is_no_error_of_a_row():
    def interrupted(_, __):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(noise(2), [asked(0), asked(1, interrupted)])


# -- statistics ------------------------------------------------------------------------------------


DRAWS = 20_000
BINS = 8
CRITICAL = {3: 21.1075, 7: 29.8775, 49: 94.5967, 63: 113.5050}  # degrees of freedom: p = 1e-4
VALUES = [0.25, -1.0, 1.0, 0.0, 0.5, -0.5, 0.75, -0.25]
LOGITS = row(VALUES)
BEST_FOUR = [2, 6, 4, 0]


def chi_square(counts, expected):
    return math.fsum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))


def softmax(values):
    weights = [math.exp(value) for value in values]
    return [weight / math.fsum(weights) for weight in weights]


def misfit(tokens, shares):
    """Chi-square of token counts against their expected shares; df = len(shares) - 1."""
    counts = [sum(token == wanted for token in tokens) for wanted in shares]
    assert sum(counts) == len(tokens)
    return chi_square(counts, [share * len(tokens) for share in shares.values()])


def dependence(first, second):
    """Chi-square of an 8 x 8 table against the product of its own margins; df = 49."""
    table = np.zeros((BINS, BINS))
    for a, b in zip(first, second, strict=True):
        table[a, b] += 1
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return chi_square(table.ravel().tolist(), expected.ravel().tolist())


def drawn(seeds, positions, top_k=0):
    """The tokens of as many draws; the first hundred are the NumPy definitions', too."""
    params = SamplingParams(temperature=1, top_p=1, top_k=top_k)
    chain, nobody = CompiledChain(build_chain(params), params, ()), History()
    draws = [RowDraw(chain, nobody, *place) for place in zip(seeds, positions, strict=True)]
    logits = np.broadcast_to(LOGITS, (len(draws), len(VALUES)))
    tokens = tuple(one.token_id for one in sample(logits, draws))
    assert tokens[:100] == tuple(
        one.token_id for one in sample(logits[:100], draws[:100], tier=TWIN)
    )
    return tokens


@cache
def over_positions():
    return drawn([1234] * DRAWS, range(DRAWS))


@cache
def over_seeds():
    return drawn(range(DRAWS), [77] * DRAWS)


@pytest.mark.parametrize("tokens", [over_positions, over_seeds])
def test_draws_follow_softmax(tokens):
    assert misfit(tokens(), dict(enumerate(softmax(VALUES)))) < CRITICAL[7]


def test_draws_follow_softmax_renormalised_after_top_k():
    shares = softmax([VALUES[t] for t in BEST_FOUR])
    tokens = drawn([99] * DRAWS, range(DRAWS), top_k=4)
    assert misfit(tokens, dict(zip(BEST_FOUR, shares, strict=True))) < CRITICAL[3]


@pytest.mark.parametrize(
    "wrong", [softmax([value * 1.1 for value in VALUES]), [1 / 8] * 8, softmax(sorted(VALUES))]
)
def test_a_wrong_distribution_is_rejected(wrong):
    assert misfit(over_positions(), dict(enumerate(wrong))) > CRITICAL[7]


@pytest.mark.parametrize("tokens", [over_positions, over_seeds])
@pytest.mark.parametrize("lag", [1, 2, 4])
def test_neighbouring_draws_are_independent(tokens, lag):
    sequence = tokens()
    assert dependence(sequence[:-lag], sequence[lag:]) < CRITICAL[49]


def test_draws_over_seeds_and_over_positions_are_independent_of_each_other():
    assert dependence(over_positions(), over_seeds()) < CRITICAL[49]


def test_a_dependence_is_rejected():
    """One draw in twenty copies its neighbour."""
    tokens = over_positions()
    copied = [tokens[i - 1] if i % 20 == 0 else token for i, token in enumerate(tokens)]
    assert dependence(copied[:-1], copied[1:]) > CRITICAL[49]


IDS = np.arange(40_000)


def joint_misfit(first, second):
    """Chi-square of pairs of uniforms on an 8 x 8 grid of equal cells; df = 63."""
    cells = (first * BINS).astype(int) * BINS + (second * BINS).astype(int)
    counts = np.bincount(cells, minlength=BINS * BINS)
    return chi_square(counts.tolist(), [len(first) / BINS**2] * BINS**2)


@pytest.mark.parametrize(
    ("seed", "position", "shift"),
    [
        (7, 100, 1),  # the next token id, often of the same Philox call
        (7, 100, 4),  # the next Philox call
        (7, 101, 0),
        (8, 100, 0),
        (7 + 2**32, 100, 0),
        (100, 7, 0),  # seed and position swapped
        (derive_seed(7, 1), 100, 0),
    ],
)
def test_luck_is_uniform_and_independent_of_its_neighbours(seed, position, shift):
    assert joint_misfit(uniform(7, 100, IDS), uniform(seed, position, IDS + shift)) < CRITICAL[63]


def test_samples_of_one_request_are_independent():
    lucks = [uniform(derive_seed(7, n), 100, IDS) for n in range(4)]
    pairs = [(a, b) for i, a in enumerate(lucks) for b in lucks[:i]]
    assert max(joint_misfit(a, b) for a, b in pairs) < CRITICAL[63]


def test_dependent_or_lopsided_luck_is_rejected():
    luck = uniform(7, 100, IDS)
    other = uniform(7, 101, IDS)
    assert joint_misfit(luck, np.where(IDS % 20 == 0, luck, other)) > CRITICAL[63]
    assert joint_misfit(luck, other**1.1) > CRITICAL[63]
