"""Attention against float64; tiers, cuts and threads against each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.base import _native
from support.attention_by_definition import check, make_tables, random_qkv
from support.native_plans import (
    TIERS,
    assert_same_bits,
    attention,
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
