"""Draws follow softmax and are independent: chi-square on fixed seeds, so it cannot flicker.

Each check is also shown data that is wrong, which it must reject.
"""

import math
from functools import cache

import numpy as np
import pytest

from cutaway.sampling import (
    CompiledChain,
    History,
    RowDraw,
    SamplingParams,
    build_chain,
    derive_seed,
    sample,
)
from cutaway.sampling.luck import uniform
from cutaway.sampling.native import TWIN
from support.sampling_oracles import row

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
