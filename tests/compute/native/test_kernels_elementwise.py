"""Norms and what works number by number: against float64, and tiers against each other."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.base import _native
from cutaway.compute.backends.reference.ops import OPS
from cutaway.compute.model import Graph
from support.native_plans import NO_WEIGHT, NOWHERE, TIERS, assert_same_bits, fed, run_apart


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    return x * np.vectorize(math.erfc)(-x / np.sqrt(2)) / 2


MAPS = {
    "add": lambda a, b, _: a + b,
    "mul": lambda a, b, _: a * b,
    "silu_mul": lambda a, b, _: a * sigmoid(a) * b,
    "gelu_mul": lambda a, b, _: gelu(a) * b,
    "gelu_exact_mul": lambda a, b, _: gelu_exact(a) * b,
    "clamped_swiglu": lambda a, b, limit: (
        np.minimum(a, limit)
        * sigmoid(1.702 * np.minimum(a, limit))
        * (np.clip(b, -limit, limit) + 1)
    ),
    "sigmoid_mul": lambda a, b, _: sigmoid(a) * b,
    "silu": lambda a, _, __: a * sigmoid(a),
    "gelu": lambda a, _, __: gelu(a),
    "relu": lambda a, _, __: np.maximum(a, 0),
    "relu2": lambda a, _, __: np.maximum(a, 0) ** 2,
    "elu_less_x": lambda a, _, __: np.expm1(np.minimum(a, 0)) - np.minimum(a, 0),
    "gelu_exact": lambda a, _, __: gelu_exact(a),
    "scale": lambda a, _, number: a * number,
    "softcap": lambda a, _, number: number * np.tanh(a / number),
}
TWO = ("add", "mul", "clamped_swiglu", "sigmoid_mul", *_native.GATES)


def test_every_op_has_a_definition_and_a_method():
    assert {*_native.ELEMENTWISE} == {*MAPS} <= {*OPS}
    assert all(hasattr(Graph, kind) for kind in _native.ELEMENTWISE)
    assert {*_native.GATES} < {*_native.ELEMENTWISE}


def run_map(tier, kind, a, b, number, threads=1, in_place=False):
    """Rows a, b (M, n) through one op: (M, n)."""
    count, n = a.shape
    plan, source, out = fed(np.hstack([a, b]), tier, threads, width=n)
    second = (source, n) if kind in TWO else NOWHERE
    if in_place:
        plan.map(False, kind, (source, 0), second, number, n, (source, 0))
        plan.map(False, "scale", (source, 0), NOWHERE, 1.0, n, (out, 0))
    else:
        plan.map(False, kind, (source, 0), second, number, n, (out, 0))
    return run_apart(plan, count)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("n", [1, 16, 37, 2500])
def test_every_kind(kind, n):
    rng = np.random.default_rng(n)
    a, b = (rng.normal(size=(3, n)).astype(np.float32) * 4 for _ in range(2))
    expected = MAPS[kind](a.astype(float), b.astype(float), 1.75)
    first = run_map(TIERS[0], kind, a, b, 1.75)
    np.testing.assert_allclose(first, expected, rtol=3e-6, atol=4e-6)
    for tier in TIERS:
        for threads, in_place in ((1, True), (3, False)):
            assert_same_bits(run_map(tier, kind, a, b, 1.75, threads, in_place), first)


NOT_HELD = {"add", "mul", "sigmoid_mul", "relu2", "elu_less_x", "scale"}  # these end otherwise


@pytest.mark.parametrize("kind", sorted({*MAPS} - NOT_HELD))
def test_far_from_zero(kind):
    """Neither overflow nor NaN: the gates end in 0 and in the number itself."""
    a = np.float32([[-1e30, -3000, -90, -30, 0, 30, 90, 3000, 1e30]])
    ours = run_map(TIERS[0], kind, a, np.ones_like(a), 30.0)[0]
    expected = {
        "softcap": 30 * np.tanh(a[0] / 30),
        "sigmoid_mul": np.where(a[0] == 0, 0.5, a[0] > 0),  # of ones
        "clamped_swiglu": 2 * np.clip(a[0], 0, 30),
    }.get(kind, np.maximum(a[0], 0))
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-4)


EACH_NUMBER = [*((kind, 0) for kind in MAPS), *((kind, 1) for kind in TWO)]


@pytest.mark.parametrize(("kind", "place"), EACH_NUMBER)
def test_nan_stays_nan(kind, place):
    """A greatest or least of NaN and a limit would be the limit, and a broken model would write."""
    pair = [np.full((1, 19), 2, np.float32) for _ in range(2)]
    pair[place][:] = np.nan
    for tier in TIERS:
        assert np.isnan(run_map(tier, kind, *pair, 1.75)).all(), tier


@pytest.mark.parametrize("n", [1, 37, 2500])
def test_one_number_for_all_of_a_row(n):
    rng = np.random.default_rng(n)
    gate, x = (rng.normal(size=(3, wide)).astype(np.float32) for wide in (1, n))
    for tier in TIERS:
        plan, source, out = fed(np.hstack([gate, x]), tier, 2, width=n)
        plan.map(False, "sigmoid_mul", (source, 0), (source, 1), 0.0, n, (out, 0), spread=True)
        ours = run_apart(plan, 3)
        wide = np.repeat(gate, n, axis=1)
        assert_same_bits(ours, run_map(tier, "sigmoid_mul", wide, x, 0.0))


def run_norm(tier, x, weight, bias, eps, group, threads=1):
    count, n = x.shape
    plan, source, out = fed(x, tier, threads)
    norm = _native.Norm(weight, bias, eps, group)
    plan.normalise(False, (source, 0), n, norm, _native.Places((out, 0)))
    return run_apart(plan, count)


@given(st.data())
def test_norms(data):
    group, groups = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 5))
    layer = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.normal(size=(4, group * groups)) * 3 + 1).astype(np.float32)
    weight, bias = rng.normal(size=(2, group)).astype(np.float32)
    each = x.astype(float).reshape(4, groups, group)
    centred = each - each.mean(-1, keepdims=True) if layer else each
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * weight
    expected = (normed + bias if layer else normed).reshape(x.shape)
    bias = bias if layer else NO_WEIGHT
    first = run_norm(TIERS[0], x, weight, bias, 1e-3, group)
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-4)
    for tier in TIERS:
        assert_same_bits(run_norm(tier, x, weight, bias, 1e-3, group, threads=2), first)
