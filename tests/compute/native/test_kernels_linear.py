"""A matrix, or a mixture of them, times quantised rows: against definitions, in any company."""

from dataclasses import asdict

import numpy as np
import pytest

from cutaway.compute import calls
from cutaway.compute.backends import Batch
from cutaway.compute.model.mixture import Mixture
from cutaway.files.weights import FORMATS, dequantize
from random_blocks import set_scales
from support.native_plans import (
    FLOATS,
    NO_WEIGHT,
    QUANTISED,
    TIERS,
    add,
    assert_same_bits,
    linear,
    linear_plan,
    make_plan_with_rows,
    pack,
    quantise_if_needed,
    random_bytes,
    run_apart,
)  # fmt: skip

ROWS = 37  # two panels and a ragged one


def activations(x):
    """The kernels' own rounding: 32 numbers share a float32 scale, peak / 127, ties to even."""
    groups = x.reshape(len(x), -1, 32)  # (M, blocks, 32)
    peak = np.abs(groups).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > 0, np.float32(127) / peak, np.float32(0))
    q = np.rint(groups * inverse)  # whole numbers in float32
    return (q.astype(np.float64) * (peak / np.float32(127))).reshape(x.shape)


def random_rows(seed, count, cols):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, cols)) * np.exp(rng.normal(size=(count, cols)))
    x[0] = 0
    x[-1, :32] = 0  # a quant block of zeros
    return x.astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_close_to_float64_on_every_tier_and_equal_between_them(name):
    cols = 768
    raw = random_bytes(np.random.default_rng(5), name, ROWS, cols)
    weights = dequantize(FORMATS[name], raw).reshape(ROWS, cols).astype(np.float64)
    x = random_rows(6, 63, cols)  # many rows, and tiles of 16, 8, 4, 2 and 1
    x64 = activations(x) if name in QUANTISED else x.astype(np.float64)
    size = np.abs(x64) @ np.abs(weights).T + 1e-30  # what the rounding errors are relative to
    results = {tier: linear(tier, name, raw, ROWS, x) for tier in TIERS}
    for tier, ours in results.items():
        assert (np.abs(ours - x64 @ weights.T) / size).max() < 1e-6, tier
        assert_same_bits(ours, results["generic"])


@pytest.mark.parametrize("name", [n for n in QUANTISED if FORMATS[n].quant_block_elements == 32])
@pytest.mark.parametrize("blocks", (1, 3, 16, 19))
def test_many_rows_of_any_number_of_quant_blocks(name, blocks):
    """Matrix units take two at a time, and unpack some at a time."""
    raw = random_bytes(np.random.default_rng(blocks), name, ROWS, 32 * blocks)
    x = random_rows(blocks, 48, 32 * blocks)
    results = {tier: linear(tier, name, raw, ROWS, x) for tier in TIERS}
    for ours in results.values():
        assert_same_bits(ours, results["generic"])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FORMATS)
def test_no_number_is_made_of_what_is_not_finite(name, odd):
    """The greatest of 32 numbers may pass over NaN; the product of their rows must not."""
    cols = 256
    raw = random_bytes(np.random.default_rng(7), name, ROWS, cols)
    x = random_rows(8, 33, cols)[1:]  # without the row of zeros
    for row, place in zip(x, range(0, cols, 7), strict=False):
        row[place] = odd
        row[place ^ 16] = np.nan if place % 3 else 1e30  # beside it, in either half
    for tier in TIERS:
        assert not np.isfinite(linear(tier, name, raw, ROWS, x)).any(), tier


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", QUANTISED)
def test_exact_where_float32_is_exact(name, tier):
    """Scales that are powers of two and activations that are whole: no rounding anywhere."""
    raw, cols = random_bytes(np.random.default_rng(1), name, ROWS, 256), 256
    set_scales(name, raw, d=0.5, m=-4, dmin=0.25)
    weights = dequantize(FORMATS[name], raw).reshape(ROWS, cols).astype(np.float64)
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, (11, cols)).astype(np.float32)
    x[:, ::32] = rng.choice([-127, 127], (11, cols // 32))
    assert np.array_equal(activations(x), x)
    assert np.array_equal(linear(tier, name, raw, ROWS, x), x @ weights.T)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", QUANTISED)
def test_extreme_codes_do_not_saturate(name, tier):
    """All codes the largest, or the smallest, under activations of ±127: 16-bit sums overflow."""
    cols = 256
    for fill in (0x00, 0xFF, 0x80, 0x7F):
        raw = np.full(ROWS * FORMATS[name].nbytes(cols), fill, np.uint8)
        set_scales(name, raw, d=1, m=1, dmin=1)
        weights = dequantize(FORMATS[name], raw).reshape(ROWS, cols).astype(np.float64)
        for value in (127, -127):
            x = np.full((63, cols), value, np.float32)  # tiles of every height
            expected, size = x @ weights.T, np.abs(x) @ np.abs(weights).T + 1
            assert (np.abs(linear(tier, name, raw, ROWS, x) - expected) / size).max() < 1e-6


CUT = ["F32", "F16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "NVFP4", "IQ2_S", "Q1_0"]
"""One of each kind: how rows and panels are cut does not depend on the format."""
COUNTS = {*range(1, 70), *range(70, 600, 41), 127, 128, 129, 255, 256, 257, 511, 512, 513, 600}


@pytest.mark.each_choice
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("finish", ["store", "silu_mul"])
@pytest.mark.parametrize("name", CUT)
def test_every_number_of_rows_ends_with_the_bits_of_a_row_alone(name, finish, threads):
    """However rows and panels are cut into tiles and dealt to threads, none is lost or waits."""
    rows, cols = 16 * threads + 37, 512 if FORMATS[name].quant_block_elements > 32 else 416
    raw = random_bytes(np.random.default_rng(3), name, rows, cols)
    x = random_rows(4, max(COUNTS), cols)
    prefetch = ("", "none", "near", "far")[threads - 1]
    plan = linear_plan(TIERS[threads % 2], name, raw, rows, x, threads, finish, prefetch)
    alone = np.concatenate([run_apart(plan, 1, first) for first in range(len(x))])
    for count in COUNTS:
        assert_same_bits(run_apart(plan, count), alone[:count])


def test_the_fastest_prefetch_is_found_in_some_steps_or_named():
    raw, x = random_bytes(np.random.default_rng(3), "Q4_1", 16, 32), random_rows(4, 4, 32)
    plan = linear_plan(TIERS[0], "Q4_1", raw, 16, x)
    assert plan.prefetch == "not known yet, not known yet, not known yet"
    for _ in range(27):
        run_apart(plan, 1), run_apart(plan, 3)  # not alike: neither is timed
    assert plan.prefetch == "not known yet, not known yet, not known yet"
    for count in (1, 3):
        for _ in range(27):
            run_apart(plan, count)
    found = plan.prefetch.split(", ")
    assert found[1] == "not known yet"
    assert {found[0], found[2]} <= {"none", "near", "far"}
    named = linear_plan(TIERS[0], "Q4_1", raw, 16, x, prefetch="near")
    assert named.prefetch == "near, near, near"
    assert named.beside().prefetch == "near, near, near"
    assert plan.beside().prefetch == "not known yet, not known yet, not known yet"  # its own trial
    with pytest.raises(ValueError, match="prefetch 'fast' is not one of none, near, far"):
        linear_plan(TIERS[0], "Q4_1", raw, 16, x, prefetch="fast")


def test_pieces_of_a_step_are_not_timed():
    raw, x = random_bytes(np.random.default_rng(3), "Q4_1", 16, 32), random_rows(4, 4, 32)
    plan, zeros = linear_plan(TIERS[0], "Q4_1", raw, 16, x), np.zeros(1, np.int32)
    batch = Batch(zeros, zeros, zeros, np.zeros((1, 1), np.int32), zeros)
    for _ in range(60):
        plan.run(batch, 0, 1), plan.run(batch, 1, 2)
    assert plan.prefetch == "not known yet, not known yet, not known yet"


@pytest.mark.parametrize("tier", TIERS)
def test_ties_round_to_even(tier):
    """An identity matrix of Q8_0 shows the activations' own codes."""
    x = np.zeros((1, 32), np.float32)
    x[0, :9] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5, -126.5]
    identity = np.zeros((32, 34), np.uint8)
    identity[:, :2] = np.float16(1).tobytes()[0], np.float16(1).tobytes()[1]
    identity[np.arange(32), 2 + np.arange(32)] = 1
    codes = linear(tier, "Q8_0", identity.ravel(), 32, x)[0, :9]
    assert codes.tolist() == [127, 0, 2, 2, 0, -2, -2, 64, -126]


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-38, 3e-37, 1e-30, 1e30])
def test_tiny_and_huge_activations(name, size):
    """As on paper at every size: no overflow of 127 / peak, and no difference between tiers."""
    raw = random_bytes(np.random.default_rng(8), name, ROWS, 64)
    x = (random_rows(9, 5, 64) * np.float64(size)).astype(np.float32)
    results = {tier: linear(tier, name, raw, ROWS, x) for tier in TIERS}
    for ours in results.values():
        assert np.isfinite(ours).all()
        assert_same_bits(ours, results["generic"])


@pytest.mark.parametrize("cols", [1, 5, 30, 100])
@pytest.mark.parametrize("name", FLOATS)
def test_float_matrices_of_any_width(name, cols):
    raw = random_bytes(np.random.default_rng(5), name, 19, cols)
    weights = dequantize(FORMATS[name], raw).reshape(19, cols).astype(np.float64)
    x = np.random.default_rng(6).normal(size=(9, cols)).astype(np.float32)
    results = {tier: linear(tier, name, raw, 19, x) for tier in TIERS}
    for ours in results.values():
        assert np.abs(ours - x @ weights.T).max() < 1e-5
        assert_same_bits(ours, results["generic"])


# -- experts against float64, in every format kind -------------------------------------------------


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
    plan, source, out = make_plan_with_rows(np.hstack([x, scores]), tier, threads, width=HIDDEN)
    act = quantise_if_needed(plan, name, (source, 0), HIDDEN, HIDDEN)
    packed = [pack(name, one, *shape) for role, shape in SHAPES.items() for one in raw[role]]

    def matrices(first, role):
        added = [NO_WEIGHT] * COUNT if biases is None else biases[role]
        return [calls.Biased(first + i, each) for i, each in enumerate(added)]

    gates = [()] * COUNT
    if mixture.activation != "relu2":
        gates = [(gate,) for gate in matrices(0, "gate")]
    up, down = matrices(COUNT, "up"), matrices(2 * COUNT, "down")
    choice = calls.ExpertsChoice(**asdict(mixture), bias=NO_WEIGHT if bias is None else bias)
    places, scores = calls.Places((source, 0), act), (source, HIDDEN)
    how = calls.ExpertsArguments(False, places, scores, choice, (out, 0))
    every = [calls.Expert(*each) for each in zip(gates, up, down, strict=True)]
    add(plan, calls.ExpertsCall(how, every), matrices=packed)
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
