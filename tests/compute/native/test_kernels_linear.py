"""A matrix times quantised rows, against the definition; and every tier against every other."""

import numpy as np
import pytest

from cutaway.files.weights import FORMATS, dequantize
from random_blocks import set_scales
from support.native_plans import (
    FLOATS,
    QUANTISED,
    TIERS,
    assert_same_bits,
    linear,
    linear_plan,
    random_bytes,
    run_apart,
)

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
            x = np.full((3, cols), value, np.float32)
            expected, size = x @ weights.T, np.abs(x) @ np.abs(weights).T + 1
            assert (np.abs(linear(tier, name, raw, ROWS, x) - expected) / size).max() < 1e-6


CUT = ["F32", "F16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "NVFP4", "IQ2_S", "Q1_0"]
"""One of each kind: how rows and panels are cut does not depend on the format."""
COUNTS = {*range(1, 70), *range(70, 600, 41), 127, 128, 129, 255, 256, 257, 511, 512, 513, 600}


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
    with pytest.raises(ValueError, match="prefetch 'fast' is not one of none, near, far"):
        linear_plan(TIERS[0], "Q4_1", raw, 16, x, prefetch="fast")


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
