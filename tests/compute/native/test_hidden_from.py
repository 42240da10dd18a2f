"""Attention knock-out (``Batch.hidden_from``): attention over the other positions, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.attention_by_definition import check, random_qkv
from support.native_plans import TIERS, assert_same_bits, attention

BEST = TIERS[0]
SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 8, "rope_dim": 8}


def some_hidden(rng, length, share=0.3):
    """Of each position the first behind it whose rows do not see it; of most: none."""
    hidden = rng.random(length) < share
    first = np.arange(length) + 1 + rng.integers(0, 2, length) * rng.integers(0, length, length)
    return np.where(hidden, first, np.inf)


@pytest.mark.parametrize("window", [0, 5, 280])
@pytest.mark.parametrize("kv", ["f16", "q8_0", "q5_1,q4_0"])
def test_by_the_definition_on_every_tier(window, kv):
    shape, length = SHAPE | {"window": window}, 600
    first = some_hidden(np.random.default_rng(window), length)
    first[290:300], first[256:288] = np.arange(291, 301), np.arange(257, 289)
    first[:250] = 250  # of what comes later, almost a whole chunk
    check(shape, length, cuts=(7, 1, 300), hidden_from=first, threads=2, kv=kv)


def test_calls_threads_neighbours_and_what_is_hidden_change_no_bit():
    rng, length = np.random.default_rng(3), 560
    qkv, tables = random_qkv(SHAPE, length, sequences=3), rng.permutation(54).reshape(3, 18)
    first = np.stack([some_hidden(rng, length), np.full(length, np.inf), some_hidden(rng, length)])
    whole = attention(BEST, qkv, SHAPE, tables=tables, cuts=(560,), hidden_from=first)
    again = attention(
        BEST, qkv, SHAPE, tables=tables, cuts=(5, 1, 34), hidden_from=first, threads=3
    )
    assert_same_bits(again, whole)
    plain = attention(BEST, qkv, SHAPE, tables=tables, cuts=(60,))
    assert_same_bits(plain[1], whole[1])
    other = qkv.copy()  # whatever is hidden from all
    hidden = first[0] <= np.arange(length) + 1
    other[0, hidden] = 50 * rng.normal(size=other[0, hidden].shape)
    changed = attention(BEST, other, SHAPE, tables=tables, cuts=(560,), hidden_from=first)
    assert hidden.any()
    assert_same_bits(changed[0, ~hidden], whole[0, ~hidden])
    assert not np.array_equal(changed[0, hidden], whole[0, hidden])


@settings(max_examples=25)
@given(data=st.data())
def test_any_shape(data):
    draw = data.draw
    kv_heads, window = draw(st.integers(1, 3)), draw(st.sampled_from([0, 1, 17]))
    shape = {
        "heads": kv_heads * draw(st.integers(1, 9)), "kv_heads": kv_heads,
        "head_dim": draw(st.integers(1, 20)) * 2, "window": window,
        "softcap": draw(st.sampled_from([0.0, 2.0])),
    }  # fmt: skip
    length = draw(st.integers(1, 80))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    first = some_hidden(rng, length, draw(st.sampled_from([0.0, 0.4, 1.0])))
    check(
        shape, length, tiers=[draw(st.sampled_from(TIERS))], hidden_from=first,
        cuts=draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)),
        threads=draw(st.integers(1, 3)),
    )  # fmt: skip
