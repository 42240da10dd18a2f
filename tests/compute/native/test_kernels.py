"""Attention, norms, what works number by number: against float64; tiers against each other."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
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
from support.attention_by_definition import check, make_tables, random_qkv
from support.native_plans import (
    NO_WEIGHT,
    TIERS,
    add,
    assert_same_bits,
    attention,
    make_plan_with_rows,
    run_apart,
)

BEST = TIERS[0]


@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_every_head_size(head_dim):
    check({"heads": 2, "kv_heads": 1, "head_dim": head_dim, "rope_dim": head_dim}, 40)


@pytest.mark.parametrize("head_dim", [2, 10, 30, 514])
def test_head_sizes_that_no_model_has(head_dim):
    check({"heads": 2, "kv_heads": 2, "head_dim": head_dim, "rope_dim": 2}, 35)


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (9, 3), (7, 1), (8, 8), (14, 2), (13, 1), (16, 2)]
)
def test_grouped_heads(heads, kv_heads):
    check({"heads": heads, "kv_heads": kv_heads, "head_dim": 16, "rope_dim": 8}, 50)


@pytest.mark.parametrize("length", [256, 257, 300, 513, 700])
def test_long_contexts_merge_chunks(length):
    check({"heads": 3, "kv_heads": 1, "head_dim": 8, "rope_dim": 8}, length)


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 256, 257, 300, 1000])
def test_sliding_windows(window):
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 8, "rope_dim": 8, "window": window}
    check(shape, 600, tiers=[BEST])
    check(shape, 70)


@pytest.mark.parametrize("window", [1, 31, 64, 300])
def test_chunks_of_a_text(window):
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 32, "window": window, "chunked": True}
    check(shape, 330, cuts=(130, 1, 500))


@pytest.mark.each_choice
@pytest.mark.parametrize("kv", ["f16", "q8_0", "q5_1,f16", "q4_0"])
@pytest.mark.parametrize(("heads", "dim", "first"), [(1, 32, 16), (5, 48, 16), (16, 96, 32)])
def test_values_that_are_numbers_of_the_keys(heads, dim, first, kv):
    """Latent attention: one key for all heads, and nothing else is stored."""
    shape = {"heads": heads, "kv_heads": 1, "head_dim": dim, "rope_dim": first}
    shape |= {"value_first": first, "value_dim": dim - first}
    for cuts, threads in (((512,), 1), ((270, 1, 7, 500), 3)):
        check(shape, 300, kv=kv, cuts=cuts, threads=threads)
    qkv, stored = random_qkv(shape, 40), []
    attention(TIERS[0], qkv, shape, tables=make_tables(40), cuts=(40,), kv=kv, stored=stored)
    assert stored[0].nbytes == -(-_native.kv_block_bytes(1, dim, 0, kv) // 64) * 64


@pytest.mark.each_choice
@pytest.mark.parametrize("kv", ["f16", "q8_0", "q5_1,q4_0", "q4_0"])
@pytest.mark.parametrize(("dim", "of_value"), [(24, 16), (48, 30), (192, 128), (16, 40)])
def test_values_of_another_width_than_keys(dim, of_value, kv):
    """As MiMo-V2's, also with a window, sinks, and a share of the head that is rotated."""
    shape = {"heads": 6, "kv_heads": 2, "head_dim": dim, "rope_dim": 8}
    shape |= {"value_first": -1, "value_dim": of_value}
    for cuts, threads in (((512,), 1), ((270, 1, 7, 500), 3)):
        check(shape, 300, kv=kv, cuts=cuts, threads=threads)
    check(shape | {"window": 33, "sinks": np.float32([1, 0, -1, 2, 3, 0.5])}, 90, kv=kv)
    qkv, stored = random_qkv(shape, 40), []
    attention(TIERS[0], qkv, shape, tables=make_tables(40), cuts=(40,), kv=kv, stored=stored)
    assert stored[0].nbytes == -(-_native.kv_block_bytes(2, dim, of_value, kv) // 64) * 64


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("cuts", [(136, 1), (136, 500)])
def test_blocks_before_every_window_are_not_read(tier, cuts):
    """A weight of 0 would not hide them: 0 times NaN is NaN."""
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 8, "rope_dim": 8, "window": 40}
    qkv, tables, unread = random_qkv(shape, 400), make_tables(400), 96
    clean = attention(tier, qkv, shape, tables=tables, cuts=(400,))
    qkv[0, :unread] = np.nan
    found = attention(tier, qkv, shape, tables=tables, cuts=cuts, threads=2)
    assert_same_bits(found[:, unread + 40 :], clean[:, unread + 40 :])


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_soft_caps(softcap):
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 16, "rope_dim": 16, "softcap": softcap}
    check(shape, 300)
    check(shape | {"window": 40}, 100)


SINKS = [-3.0, 0.0, 1.5, 60.0, -200.0, 2.5]


@pytest.mark.parametrize("window", [0, 40])
def test_sinks(window):
    """From scores that take nearly all of the weight to those that take none."""
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 16, "rope_dim": 16, "window": window}
    check(shape | {"sinks": SINKS}, 300)
    without = shape | {"sinks": [-1e30] * 6}
    qkv, tables = random_qkv(shape, 300), make_tables(300)
    for cuts in ((300,), (299, 1)):
        assert_same_bits(
            attention(BEST, qkv, without, tables=tables, cuts=cuts),
            attention(BEST, qkv, shape, tables=tables, cuts=cuts),
        )


CUTS = [(1,), (2,), (3,), (7,), (8,), (33,), (257,), (600,), (255, 2, 1, 300), (31, 1, 32, 256)]


@pytest.mark.parametrize("sinks", [[], SINKS])
@pytest.mark.parametrize("window", [0, 40, 280])
@pytest.mark.parametrize("threads", [1, 3])
def test_cuts_and_threads_change_no_bit(threads, window, sinks):
    """Few rows with a long history split over chunks; many rows do not: the bits are the same."""
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 8, "rope_dim": 8, "window": window}
    shape |= {"sinks": sinks}
    qkv, tables = random_qkv(shape, 560), make_tables(560)
    whole = attention(BEST, qkv, shape, tables=tables, cuts=(560,))
    for cuts in CUTS:
        assert_same_bits(
            attention(BEST, qkv, shape, tables=tables, cuts=cuts, threads=threads), whole
        )


@pytest.mark.parametrize("tier", TIERS)
def test_a_late_row_alone_on_every_tier(tier):
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 24, "rope_dim": 12}
    qkv, tables = random_qkv(shape, 540), make_tables(540)
    whole = attention(tier, qkv, shape, tables=tables, cuts=(540,))
    assert_same_bits(attention(tier, qkv, shape, tables=tables, cuts=(539, 1), threads=5), whole)


def test_neighbours_and_the_order_of_blocks_change_no_bit():
    shape = {"heads": 4, "kv_heads": 1, "head_dim": 16, "rope_dim": 16}
    qkv = random_qkv(shape, 290, sequences=3)
    scrambled = np.random.default_rng(1).permutation(30).reshape(3, 10)
    together = attention(BEST, qkv, shape, tables=scrambled, cuts=(19,), threads=2)
    for s in range(3):
        alone = attention(BEST, qkv[s : s + 1], shape, tables=make_tables(290), cuts=(290,))
        assert_same_bits(together[s : s + 1], alone)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("where", [slice(8, 16), slice(16, 24)], ids=["key", "value"])
def test_a_number_too_large_for_float16_reaches_no_earlier_row(where, tier):
    """Its weight there is 0, and 0 · infinity would be NaN; so it is stored as the largest."""
    shape = {"heads": 1, "kv_heads": 1, "head_dim": 8}
    qkv, tables = random_qkv(shape, 40), make_tables(40)
    qkv[0, 20, where] = 1e6
    together = attention(tier, qkv, shape, tables=tables, cuts=(40,))
    assert np.isfinite(together).all()
    assert_same_bits(attention(tier, qkv, shape, tables=tables, cuts=(1,)), together)
    qkv[0, 20, where] = 65504
    assert_same_bits(attention(tier, qkv, shape, tables=tables, cuts=(40,)), together)


def test_negative_control_a_changed_value_is_seen():
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 8, "rope_dim": 8}
    qkv = random_qkv(shape, 40)
    before = attention(BEST, qkv, shape, tables=make_tables(40), cuts=(40,))
    qkv[0, 20, -1] += 1 / 16
    after = attention(BEST, qkv, shape, tables=make_tables(40), cuts=(40,))
    assert_same_bits(after[:, :20], before[:, :20])
    assert not np.array_equal(after[:, 20:], before[:, 20:])


@settings(max_examples=25)
@given(data=st.data())
def test_any_shape(data):
    draw = data.draw
    kv_heads = draw(st.integers(1, 3))
    head_dim = draw(st.integers(1, 20)) * 2
    shape = {
        "heads": kv_heads * draw(st.integers(1, 9)), "kv_heads": kv_heads, "head_dim": head_dim,
        "rope_dim": draw(st.integers(0, head_dim // 2)) * 2,
        "softcap": draw(st.sampled_from([0.0, 2.0])), "window": draw(st.sampled_from([0, 1, 17])),
        "rotate_half": draw(st.booleans()), "attention_factor": draw(st.sampled_from([1.0, 1.25])),
        "scale": draw(st.sampled_from([None, 0.3])) or head_dim**-0.5,
    }  # fmt: skip
    cuts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    check(shape, draw(st.integers(1, 80)), cuts=cuts, threads=draw(st.integers(1, 3)))


# -- norms and what works number by number ---------------------------------------------------------


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
