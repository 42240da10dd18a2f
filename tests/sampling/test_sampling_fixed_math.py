"""exp, log and sums: close to the truth, and the same bits whatever the shape they come in."""

import math
import random
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.sampling.fixed_math import (
    cosine,
    dots,
    exp,
    log,
    log_sum_exp,
    ordered_sum,
    scalar_log,
)
from support.sampling_oracles import e_to, ln

EXPONENTS = st.floats(-700, 0)
NORMALS = st.floats(sys.float_info.min, sys.float_info.max)
NEAR_ONE = st.floats(0.5, 2)
LENGTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 4_097, 49_152]


def ulps(got, truth):
    return float(abs(Decimal(got) - truth) / Decimal(math.ulp(float(truth))))


def numbers(count, seed=0):
    """Numbers of very different sizes, so that any other order of adding shows."""
    rng = random.Random(seed)
    return [rng.uniform(-1, 1) * 10 ** rng.uniform(-8, 8) for _ in range(count)]


def sum_in_documented_order(values):
    """16 interleaved lanes, each added in order; then halves are added until one is left."""
    lanes = [0.0] * 16
    for i, value in enumerate(values):
        lanes[i % 16] += value
    for half in (8, 4, 2, 1):
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return lanes[0]


@given(EXPONENTS)
def test_exp_is_within_2_ulp(x):
    assert ulps(float(exp(np.array([x]))[0]), e_to(x)) <= 2


@given(EXPONENTS)
def test_exp_agrees_with_libm(x):
    assert float(exp(np.array([x]))[0]) == pytest.approx(math.exp(x), rel=1e-15, abs=0)


def test_exp_at_its_ends():
    far = exp(np.array([-700.0, -701.0, -1e300, -np.inf]))
    assert far.tolist() == [far[0]] * 4
    assert 0 < far[0] < 1e-300
    assert exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]


@given(st.one_of(NORMALS, NEAR_ONE))
@example(1.0628253170137965)  # 2.74, the worst of 300,000
def test_log_is_within_3_ulp(x):
    assert ulps(scalar_log(x), ln(x)) <= 3


@given(st.one_of(NORMALS, NEAR_ONE))
def test_log_agrees_with_libm(x):
    assert scalar_log(x) == pytest.approx(math.log(x), rel=1e-15, abs=0)


@pytest.mark.parametrize("at", [1.0, math.sqrt(0.5), 2.0, sys.float_info.min])
def test_log_where_its_pieces_meet(at):
    for x in (math.nextafter(at, 9), at, max(math.nextafter(at, 0), sys.float_info.min)):
        assert x == 1 or ulps(scalar_log(x), ln(x)) <= 3
    assert scalar_log(1.0) == 0.0


@given(st.lists(EXPONENTS, min_size=1, max_size=40))
def test_a_vector_gets_the_bits_of_its_elements(xs):
    """No element may depend on where in a SIMD register it stands, or on its neighbours."""
    alone = [float(exp(np.array([x]))[0]) for x in xs]
    assert exp(np.array(xs)).tolist() == alone
    assert log(np.array(alone)).tolist() == [scalar_log(y) for y in alone]


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (-0.1, "0x1.cf46d99d52b3ap-1"),
        (-1.0, "0x1.78b56362cef38p-2"),
        (-9.75, "0x1.e902d64e003bbp-15"),
        (-123.456, "0x1.da9fb9e4ee720p-179"),
        (-699.9, "0x1.32132bfae6577p-1010"),
    ],
)
def test_bits_of_exp_are_pinned(x, bits):
    assert float(exp(np.array([x]))[0]).hex() == bits


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (2.0**-33, "-0x1.6dfb516f20bbfp+4"),
        (0.3, "-0x1.34378fcbda721p+0"),
        (0.999, "-0x1.064670d979b73p-10"),
        (3.0, "0x1.193ea7aad030bp+0"),
        (22.9, "0x1.90c9182313c70p+1"),
    ],
)
def test_bits_of_log_are_pinned(x, bits):
    assert scalar_log(x).hex() == bits


@pytest.mark.parametrize("length", LENGTHS)
def test_sum_is_the_documented_order_bit_for_bit(length):
    values = numbers(length)
    assert ordered_sum(np.array(values)) == sum_in_documented_order(values)


@given(st.lists(st.floats(-1e300, 1e300), max_size=80))
def test_sum_of_anything_is_the_documented_order(values):
    assert ordered_sum(np.array(values)) == sum_in_documented_order(values)


def test_the_order_of_a_sum_shows():
    """The control of the two tests above: NumPy's own order gives other bits."""
    values = [numbers(1_000, seed) for seed in range(20)]
    assert any(float(np.sum(np.array(v))) != sum_in_documented_order(v) for v in values)


@pytest.mark.parametrize("length", LENGTHS)
def test_sum_does_not_depend_on_memory_layout(length):
    values = np.array(numbers(length))
    strided = np.zeros((length, 3))
    strided[:, 1] = values
    assert ordered_sum(strided[:, 1]) == ordered_sum(values)


@given(st.lists(st.floats(-300, 300), min_size=1, max_size=40))
def test_log_sum_exp_is_the_log_of_the_sum(xs):
    truth = ln(sum((e_to(x) for x in xs), Decimal(0)))
    assert log_sum_exp(np.array(xs)) == pytest.approx(float(truth), rel=1e-14, abs=1e-14)


@pytest.mark.parametrize("xs", [[], [-np.inf], [-np.inf] * 17])
def test_log_sum_exp_of_nothing_is_minus_infinity(xs):
    assert log_sum_exp(np.array(xs)) == -np.inf


def test_log_sum_exp_neither_overflows_nor_counts_the_absent():
    assert log_sum_exp(np.array([1e5])) == 1e5
    assert log_sum_exp(np.array([-1e5, -np.inf])) == -1e5
    assert log_sum_exp(np.array([3e4, 3e4])) == pytest.approx(3e4 + math.log(2), rel=1e-15)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 70))
def test_a_dot_product_adds_in_order_whatever_is_beside_it(seed, rows, width):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(rows, width)).astype(np.float32) for _ in range(2))
    table = dots(a[:, None], b)
    for i, j in ((0, 0), (rows - 1, rows // 2)):
        expected = 0.0
        for x, y in zip(a[i].tolist(), b[j].tolist(), strict=True):
            expected += x * y
        assert table[i, j] == expected == dots(a[i], b[j])
    assert dots(a, b).tolist() == table.diagonal().tolist()


def test_a_cosine_is_that_of_the_angle():
    a, b = np.array([3.0, 4.0]), np.array([4.0, 3.0])
    assert cosine(a, b) == pytest.approx(24 / 25)
    assert cosine(a, 7 * a) == 1
    assert cosine(np.zeros(2), a) == 0
    same = np.random.default_rng(0).normal(size=(20, 384)).astype(np.float32)
    assert cosine(same, same).tolist() == [1.0] * 20
