"""A mixture of experts against float64, in every format kind, and a row's bits in any company."""

import numpy as np
import pytest

from cutaway.base import _native
from cutaway.files.weights import FORMATS, dequantize
from support.native_plans import (
    FLOATS,
    TIERS,
    assert_same_bits,
    fed,
    pack,
    quantised,
    random_bytes,
    run_apart,
)  # fmt: skip

HIDDEN, INNER, COUNT = 64, 96, 5
SHAPES = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}


def random_experts(name, seed=0):
    """By role: COUNT matrices, as bytes and as numbers."""
    rng = np.random.default_rng(seed)
    raw = {
        role: [random_bytes(rng, name, *shape) for _ in range(COUNT)]
        for role, shape in SHAPES.items()
    }
    numbers = {
        role: [dequantize(FORMATS[name], one).reshape(shape).astype(float) for one in raw[role]]
        for role, shape in SHAPES.items()
    }
    return raw, numbers


def run(tier, name, raw, x, scores, used, norm_topk_prob, threads=1):
    """x (M, HIDDEN), scores (M, COUNT) -> (M, HIDDEN)."""
    plan, source, out = fed(np.hstack([x, scores]), tier, threads, width=HIDDEN)
    act = quantised(plan, name, (source, 0), HIDDEN, HIDDEN)
    packed = [[pack(name, one, *shape) for one in raw[role]] for role, shape in SHAPES.items()]
    places, each = _native.Places((source, 0), act), list(zip(*packed, strict=True))
    plan.experts(False, places, (source, HIDDEN), used, norm_topk_prob, each, (out, 0))
    return run_apart(plan, len(x))


def textbook(numbers, x, scores, used, norm_topk_prob):
    out = np.zeros(x.shape)
    for row in range(len(x)):
        share = np.exp(scores[row].astype(float) - scores[row].max())
        share /= share.sum()
        chosen = sorted(range(COUNT), key=lambda e: (-scores[row, e], e))[:used]
        total = share[chosen].sum() if norm_topk_prob else 1
        for e in chosen:
            gate, up = numbers["gate"][e] @ x[row], numbers["up"][e] @ x[row]
            out[row] += share[e] / total * (numbers["down"][e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def inputs(count, seed=1):
    rng = np.random.default_rng(seed)
    x, scores = rng.normal(size=(count, HIDDEN)), rng.normal(size=(count, COUNT)) * 2
    return x.astype(np.float32), scores.astype(np.float32)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize(
    ("used", "norm_topk_prob"), [(1, True), (2, True), (2, False), (COUNT, False)]
)
def test_experts_are_mixed_by_their_scores(name, used, norm_topk_prob):
    raw, numbers = random_experts(name)
    x, scores = inputs(20)
    expected = textbook(numbers, x, scores, used, norm_topk_prob)
    first = run(TIERS[0], name, raw, x, scores, used, norm_topk_prob)
    near = 1e-5 if name in FLOATS else 0.03  # what reads int8 is only close
    assert np.abs(first - expected).max() < near * np.abs(expected).max()
    for tier in TIERS:
        for threads in (1, 3):
            again = run(tier, name, raw, x, scores, used, norm_topk_prob, threads)
            assert_same_bits(again, first)


def test_a_row_has_the_same_bits_in_any_company():
    raw, _ = random_experts("Q8_0")
    x, scores = inputs(30)
    together = run(TIERS[0], "Q8_0", raw, x, scores, 2, True, threads=2)
    for rows in ([3], [3, 7], list(range(3, 20))):
        apart = run(TIERS[0], "Q8_0", raw, x[rows], scores[rows], 2, True, threads=2)
        assert_same_bits(apart, together[rows])


def test_ties_go_to_the_lowest_index():
    raw, _ = random_experts("F32")
    x, scores = inputs(4)
    scores[:] = 1.0
    alone = scores.copy()
    alone[:, 0] = 2.0
    assert_same_bits(
        run(TIERS[0], "F32", raw, x, scores, 1, True), run(TIERS[0], "F32", raw, x, alone, 1, True)
    )


@pytest.mark.parametrize("bad", [[np.nan], [np.nan] * COUNT, [np.inf], [np.inf, np.nan, -np.inf]])
def test_scores_that_are_no_numbers_spoil_their_own_row_alone(bad):
    raw, _ = random_experts("Q8_0")
    x, scores = inputs(9)
    good = run(TIERS[0], "Q8_0", raw, x, scores, 2, True, threads=2)
    scores[4, : len(bad)] = bad
    spoilt = run(TIERS[0], "Q8_0", raw, x, scores, 2, True, threads=2)
    assert np.isnan(spoilt[4]).all()
    rest = np.arange(9) != 4
    assert_same_bits(spoilt[rest], good[rest])


def test_an_expert_may_be_ruled_out():
    raw, numbers = random_experts("F32")
    x, scores = inputs(9)
    scores[:, 1] = -np.inf
    expected = textbook(numbers, x, scores, COUNT, False)
    np.testing.assert_allclose(
        run(TIERS[0], "F32", raw, x, scores, COUNT, False), expected, rtol=1e-4, atol=1e-4
    )
