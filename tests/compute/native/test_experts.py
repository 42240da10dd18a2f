"""A mixture of experts against float64, in every format kind, and a row's bits in any company."""

from dataclasses import asdict

import numpy as np
import pytest

from cutaway.base import _native
from cutaway.compute.model.mixture import Mixture
from cutaway.files.weights import FORMATS, dequantize
from support.native_plans import (
    FLOATS,
    NO_WEIGHT,
    TIERS,
    assert_same_bits,
    fed,
    pack,
    quantised,
    random_bytes,
    run_apart,
)  # fmt: skip

HIDDEN, INNER, COUNT = 64, 96, 6
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


def run(tier, name, raw, x, scores, mixture, threads=1, bias=None, biases=None):
    """x (M, HIDDEN), scores (M, COUNT) -> (M, HIDDEN)."""
    plan, source, out = fed(np.hstack([x, scores]), tier, threads, width=HIDDEN)
    act = quantised(plan, name, (source, 0), HIDDEN, HIDDEN)
    packed = [[pack(name, one, *shape) for one in raw[role]] for role, shape in SHAPES.items()]
    if mixture.activation == "relu2":
        packed[0] = [None] * COUNT
    how = _native.ExpertsShape(**asdict(mixture), bias=NO_WEIGHT if bias is None else bias)
    places, each = _native.Places((source, 0), act), list(zip(*packed, strict=True))
    more = {} if biases is None else {"biases": [biases[role].tolist() for role in SHAPES]}
    plan.experts(False, places, (source, HIDDEN), how, each, (out, 0), **more)
    return run_apart(plan, len(x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def clamped_swiglu(gate, up, limit):
    gate = np.minimum(gate, limit)
    return gate * sigmoid(1.702 * gate) * (np.clip(up, -limit, limit) + 1)


ACTIVATIONS = {
    "silu_mul": lambda gate, up, _: gate * sigmoid(gate) * up,
    "clamped_swiglu": clamped_swiglu,
    "relu2": lambda _, up, __: np.maximum(up, 0) ** 2,
}


def textbook(numbers, x, scores, mixture, bias=None, biases=None):
    out, none = np.zeros(x.shape), dict.fromkeys(SHAPES, np.zeros(COUNT))
    add = biases or none
    for row, each in enumerate(zip(*mixture.choose(scores, bias), strict=True)):
        for e, weight in zip(*each, strict=True):
            before, after = (weight, 1) if mixture.weighs_input else (1, weight)
            gate, up = (
                numbers[role][e] @ (before * x[row].astype(float)) + add[role][e]
                for role in ("gate", "up")
            )
            inner = ACTIVATIONS[mixture.activation](gate, up, mixture.limit)
            out[row] += after * (numbers["down"][e] @ inner + add["down"][e])
    return out


def inputs(count, seed=1):
    rng = np.random.default_rng(seed)
    x, scores = rng.normal(size=(count, HIDDEN)), rng.normal(size=(count, COUNT)) * 2
    return x.astype(np.float32), scores.astype(np.float32)


def check(name, mixture, **more):
    """The textbook's numbers, and the same bits on every tier and for any threads."""
    raw, numbers = random_experts(name)
    x, scores = inputs(20)
    expected = textbook(numbers, x, scores, mixture, **more)
    first = run(TIERS[0], name, raw, x, scores, mixture, **more)
    near = 1e-5 if name in FLOATS else 0.03  # what reads int8 is only close
    assert np.abs(first - expected).max() < near * np.abs(expected).max()
    for tier in TIERS:
        for threads in (1, 3):
            assert_same_bits(run(tier, name, raw, x, scores, mixture, threads, **more), first)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize(("used", "normed"), [(1, True), (2, True), (2, False), (COUNT, False)])
def test_experts_are_mixed_by_their_scores(name, used, normed):
    check(name, Mixture(used=used, normed=normed))


BIAS = np.float32([0.0, 0.3, -0.2, 0.5, -0.4, 0.1])


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize(
    "mixture",
    [
        Mixture(used=2, gating="sigmoid", scale=2.5),
        Mixture(used=2, gating="sigmoid", normed=False, scale=0.5),
        Mixture(used=2, normed=False),
        Mixture(used=3),
        Mixture(used=2, gating="sigmoid", groups=3, used_groups=1),
        Mixture(used=3, groups=3, used_groups=2, normed=False),
        Mixture(used=1, gating="sigmoid", normed=False, weighs_input=True),
        Mixture(used=2, gating="sparsemixer", normed=False, tolerance=0.5),
        Mixture(used=3, gating="sparsemixer", normed=False, tolerance=0.02, scale=1.5),
    ],
)
def test_every_way_to_choose_and_to_weigh(mixture, bias):
    check("F32", mixture, bias=bias)
    check("Q8_0", mixture, bias=bias)


@pytest.mark.parametrize("name", ["F32", "Q8_0", "MXFP4"])
@pytest.mark.parametrize("weighs_input", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(name, activation, weighs_input):
    rng = np.random.default_rng(5)
    biases = {role: rng.normal(size=(COUNT, shape[0])) for role, shape in SHAPES.items()}
    biases = {role: each.astype(np.float32) for role, each in biases.items()}
    if activation == "relu2":
        biases["gate"] = np.empty((0, 0))
        mixture = Mixture(used=2, activation=activation, weighs_input=weighs_input)
        raw, numbers = random_experts(name)
        x, scores = inputs(20)
        ours = run(TIERS[0], name, raw, x, scores, mixture, biases=biases)
        biases |= {"gate": np.zeros((COUNT, INNER))}
        expected = textbook(numbers, x, scores, mixture, biases=biases)
        near = 1e-5 if name in FLOATS else 0.06  # which is squared
        assert np.abs(ours - expected).max() < near * np.abs(expected).max()
        return
    mixture = Mixture(used=2, activation=activation, limit=1.5, weighs_input=weighs_input)
    check(name, mixture, biases=biases)


def test_a_choice_that_does_not_fit_is_refused():
    raw, _ = random_experts("F32")
    for mixture in (
        Mixture(used=7), Mixture(used=2, groups=4, used_groups=2), Mixture(used=0),
        Mixture(used=3, groups=3, used_groups=1), Mixture(used=1, groups=6, used_groups=2),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="do"):
            run(TIERS[0], "F32", raw, *inputs(2), mixture)
    with pytest.raises(ValueError, match="choice"):
        run(TIERS[0], "F32", raw, *inputs(2), Mixture(used=1), bias=np.zeros(5, np.float32))


@pytest.mark.parametrize("count", [30, 450])  # of 450 rows each expert multiplies whole tiles, too
@pytest.mark.parametrize("name", ["F32", "Q8_0", "IQ4_NL"])
def test_a_row_has_the_same_bits_in_any_company(name, count):
    raw, _ = random_experts(name)
    x, scores = inputs(count)
    for mixture in (Mixture(used=2), Mixture(used=2, gating="sigmoid", weighs_input=True)):
        together = run(TIERS[0], name, raw, x, scores, mixture, threads=2)
        assert_same_bits(run("amx-plain", name, raw, x, scores, mixture), together)
        for rows in ([3], [3, 7], list(range(3, 20))):
            apart = run(TIERS[0], name, raw, x[rows], scores[rows], mixture, threads=2)
            assert_same_bits(apart, together[rows])


def test_ties_go_to_the_lowest_index():
    raw, _ = random_experts("F32")
    x, scores = inputs(4)
    scores[:] = 1.0
    alone = scores.copy()
    alone[:, 0] = 2.0
    one = Mixture(used=1)
    assert_same_bits(
        run(TIERS[0], "F32", raw, x, scores, one), run(TIERS[0], "F32", raw, x, alone, one)
    )


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "sparsemixer"])
@pytest.mark.parametrize("bad", [[np.nan], [np.nan] * COUNT, [np.inf], [np.inf, np.nan, -np.inf]])
def test_scores_that_are_no_numbers_spoil_their_own_row_alone(bad, gating):
    raw, _ = random_experts("Q8_0")
    x, scores = inputs(9)
    mixture = Mixture(used=2, gating=gating)
    good = run(TIERS[0], "Q8_0", raw, x, scores, mixture, threads=2)
    scores[4, : len(bad)] = bad
    spoilt = run(TIERS[0], "Q8_0", raw, x, scores, mixture, threads=2)
    assert np.isnan(spoilt[4]).all()
    rest = np.arange(9) != 4
    assert_same_bits(spoilt[rest], good[rest])


@pytest.mark.parametrize("gating", ["softmax", "sigmoid"])
def test_an_expert_may_be_ruled_out(gating):
    raw, numbers = random_experts("F32")
    x, scores = inputs(9)
    scores[:, 1] = -np.inf
    mixture = Mixture(used=COUNT, gating=gating, normed=False)
    expected = textbook(numbers, x, scores, mixture)
    found = run(TIERS[0], "F32", raw, x, scores, mixture)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
