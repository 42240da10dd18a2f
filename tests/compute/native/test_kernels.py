"""Norms and what works number by number: against float64; tiers against each other."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.base import _native
from cutaway.compute.calls import (
    NOWHERE,
    Elementwise,
    MagnitudeCall,
    Norm,
    Normalise,
    OwnValueCall,
    Places,
    SoftmaxCall,
    WeighCall,
)
from cutaway.compute.model import Graph
from cutaway.compute.model.ops.numbers import Number
from support.native_plans import (
    NO_WEIGHT,
    TIERS,
    add,
    assert_same_bits,
    make_plan_with_rows,
    run_apart,
)


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
    "capped_swiglu": lambda a, b, cap: (
        cap * np.tanh(a / cap) * sigmoid(a) * 6.25 * cap * np.tanh(b / (6.25 * cap))
    ),
    "sigmoid_mul": lambda a, b, _: sigmoid(a) * b,
    "softplus_mul": lambda a, b, _: np.logaddexp(a, 0) * b,
    "silu": lambda a, _, __: a * sigmoid(a),
    "gelu": lambda a, _, __: gelu(a),
    "relu": lambda a, _, __: np.maximum(a, 0),
    "relu2": lambda a, _, __: np.maximum(a, 0) ** 2,
    "relu_above": lambda a, _, number: np.maximum(a - number, 0),
    "sigmoid": lambda a, _, __: sigmoid(a),
    "decay": lambda a, _, number: np.exp(-number * sigmoid(a)),
    "elu_less_x": lambda a, _, __: np.expm1(np.minimum(a, 0)) - np.minimum(a, 0),
    "gelu_exact": lambda a, _, __: gelu_exact(a),
    "scale": lambda a, _, number: a * number,
    "softcap": lambda a, _, number: number * np.tanh(a / number),
}
TWO = (
    "add",
    "mul",
    "clamped_swiglu",
    "capped_swiglu",
    "sigmoid_mul",
    "softplus_mul",
    *_native.GATES,
)


def test_every_op_has_a_definition_and_a_method():
    assert {*_native.ELEMENTWISE} == {*MAPS} <= {*Number.BY_KIND}
    assert all(hasattr(Graph, kind) for kind in _native.ELEMENTWISE)
    assert {*_native.GATES} < {*_native.ELEMENTWISE}


def run_map(tier, kind, a, b, number, threads=1, in_place=False):
    """Rows a, b (M, n) through one op: (M, n)."""
    count, n = a.shape
    plan, source, out = make_plan_with_rows(np.hstack([a, b]), tier, threads, width=n)
    x, y, second = (source, 0), (out, 0), (source, n) if kind in TWO else NOWHERE
    if in_place:
        copied = Elementwise(False, "scale", x, NOWHERE, 1.0, n, y)
        add(plan, Elementwise(False, kind, x, second, number, n, x), copied)
    else:
        add(plan, Elementwise(False, kind, x, second, number, n, y))
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
        "relu_above": np.maximum(a[0] - 30, 0),
        "sigmoid": np.where(a[0] == 0, 0.5, a[0] > 0),
        "decay": np.where(a[0] < 0, 1, 0),  # e^-15 of 0
        "sigmoid_mul": np.where(a[0] == 0, 0.5, a[0] > 0),  # of ones
        "clamped_swiglu": 2 * np.clip(a[0], 0, 30),
        "capped_swiglu": 30 * np.tanh(np.maximum(a[0], 0) / 30) * 187.5 * np.tanh(1 / 187.5),
        "softplus_mul": np.logaddexp(a[0], 0),
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
        plan, source, out = make_plan_with_rows(np.hstack([gate, x]), tier, 2, width=n)
        a, b = (source, 0), (source, 1)
        add(plan, Elementwise(False, "sigmoid_mul", a, b, 0.0, n, (out, 0), spread=True))
        ours = run_apart(plan, 3)
        wide = np.repeat(gate, n, axis=1)
        assert_same_bits(ours, run_map(tier, "sigmoid_mul", wide, x, 0.0))


def run_norm(tier, x, weight, bias, eps, group, threads=1, limit=0.0):
    count, n = x.shape
    plan, source, out = make_plan_with_rows(x, tier, threads)
    norm = Norm(weight, bias, eps, group, limit)
    add(plan, Normalise(False, (source, 0), n, norm, Places((out, 0))))
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


@pytest.mark.parametrize("size", [1, 37, 64])
def test_each_number_has_a_weight_and_heads_their_own_value(size):
    rng, width = np.random.default_rng(size), 3 * size
    x, weight = rng.normal(size=(4, 4, width)).astype(np.float32), rng.normal(size=width)
    weight = weight.astype(np.float32)
    a, b, v, y = x.transpose(1, 0, 2).reshape(4, 4, 3, size).astype(float)
    expected = [
        x[:, 0].astype(float) * weight,
        (v * (a * b).sum(-1, keepdims=True) + y).reshape(4, width),
    ]
    results = []
    for tier in TIERS:
        ours = []
        for call in (
            lambda source, out: WeighCall(False, (source, 0), weight, (out, 0)),
            lambda source, out: OwnValueCall(
                False, *((source, i * width) for i in range(4)), width, size, (out, 0)
            ),
        ):
            plan, source, out = make_plan_with_rows(x.reshape(4, -1), tier, 2, width=width)
            add(plan, call(source, out))
            ours.append(run_apart(plan, 4))
        results.append(ours)
        assert_same_bits(np.array(ours), np.array(results[0]))
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)


@given(st.data())
def test_numbers_that_are_too_long_together_are_made_shorter(data):
    group, groups = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.normal(size=(4, group * groups)) * rng.choice([0, 0.01, 3], (4, 1))).astype(np.float32)
    weight = rng.normal(size=data.draw(st.sampled_from([group, group * groups]))).astype(np.float32)
    each = (x * np.resize(weight, group * groups)).astype(float).reshape(4, groups, group)
    length = np.sqrt((each**2).sum(-1, keepdims=True))
    expected = (each * np.minimum(1, 2.0 / (length + 1e-6))).reshape(x.shape)
    first = run_norm(TIERS[0], x, weight, NO_WEIGHT, 0.0, group, limit=2.0)
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-6)
    for tier in TIERS:
        assert_same_bits(
            run_norm(tier, x, weight, NO_WEIGHT, 0.0, group, threads=2, limit=2.0), first
        )


def run_softmax(tier, x, group, threads=1):
    plan, source, out = make_plan_with_rows(x, tier, threads)
    add(plan, SoftmaxCall(False, (source, 0), x.shape[1], group, (out, 0)))
    return run_apart(plan, len(x))


@given(st.data())
def test_softmax(data):
    group, groups = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.normal(size=(4, group * groups)) * rng.choice([1, 30, 1000], (4, 1))).astype(
        np.float32
    )
    each = x.astype(float).reshape(4, groups, group)
    shares = np.exp(each - each.max(-1, keepdims=True))
    expected = (shares / shares.sum(-1, keepdims=True)).reshape(x.shape)
    first = run_softmax(TIERS[0], x, group)
    np.testing.assert_allclose(first, expected, rtol=3e-6, atol=1e-7)
    for tier in TIERS:
        assert_same_bits(run_softmax(tier, x, group, threads=2), first)
    x[1, 0] = np.nan
    assert np.isnan(run_softmax(TIERS[0], x, group)[1, :group]).all()


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("n", [1, 37, 2500])
def test_the_magnitude_of_a_row(n, is_centred):
    x = (np.random.default_rng(n).normal(size=(4, n)) * 3 + 1).astype(np.float32)
    centred = x.astype(float) - (x.astype(float).mean(1, keepdims=True) if is_centred else 0)
    results = []
    for tier in TIERS:
        plan, source, out = make_plan_with_rows(x, tier, 2, width=1)
        add(plan, MagnitudeCall(False, (source, 0), n, is_centred, (out, 0)))
        results.append(run_apart(plan, 4))
        assert_same_bits(results[-1], results[0])
    expected = np.sqrt((centred**2).mean(1, keepdims=True))
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e-38, 1e-36, 1e-30, 1.0, 1e30])
def test_activations_are_rounded_to_whole_multiples_of_a_step(size):
    x = (np.random.default_rng(0).standard_normal((3, 96)) * size).astype(np.float32)
    blocks = x.reshape(-1, 32)
    peaks = np.abs(blocks).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(peaks > np.float32(1e-36), np.float32(127) / peaks, np.float32(0))
    rounded = np.rint(blocks * inverse) * (peaks / np.float32(127)) + np.float32(0)  # 0 has no sign
    assert_same_bits(_native.round_activations(x), rounded.reshape(x.shape))
    with pytest.raises(ValueError, match="no whole number of 32"):
        _native.round_activations(x[:, :40])
