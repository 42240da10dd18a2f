"""Rows that see to a limit of their own: less than their position, or more (``Batch.limits``)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.features.measure.verify import differing_bits
from support.attention_by_definition import check, in_order, random_qkv
from support.native_plans import TIERS, assert_same_bits, attention, batch_of, spans

BEST = TIERS[0]
SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 8, "rope_dim": 8}


def limits_in(rng, length, sizes, window=0, reach=0):
    """For each row any limit from the first position that it sees to the end of its span."""
    back = reach + 1 if reach else window
    limits = np.empty(length, np.int32)
    for first, end in spans(length, sizes):
        for row in range(first, end):
            limits[row] = rng.integers(max(0, row - back + 1) if back else 0, end)
    return limits


SEEN = [{"window": n} for n in (0, 5, 40, 280)] + [{"reach": n} for n in (1, 40, 280)]


@pytest.mark.parametrize("seen", SEEN, ids=str)
@pytest.mark.parametrize("sizes", [(7, 1, 30), (270, 64)])
def test_any_limits_by_the_definition_on_every_tier(sizes, seen):
    shape, length = SHAPE | seen, 340
    limits = limits_in(np.random.default_rng(1), length, sizes, **seen)
    assert (limits < np.arange(length)).any()
    assert (limits > np.arange(length)).any()
    check(shape, length, cuts=sizes, limits=limits, threads=2)


@pytest.mark.parametrize("seen", [{"window": 0}, {"window": 300}, {"reach": 64}], ids=str)
def test_calls_threads_and_neighbours_change_no_bit(seen):
    """A call may hold several spans; what a row sees is then still its own."""
    shape, length = SHAPE | seen, 560
    rng = np.random.default_rng(1)
    limits = np.stack([limits_in(rng, length, (5, 1, 34), **seen) for _ in range(3)])
    qkv, tables = random_qkv(shape, length, sequences=3), rng.permutation(54).reshape(3, 18)
    whole = attention(BEST, qkv, shape, tables=tables, cuts=(560,), limits=limits)
    for cuts, threads in (((5, 1, 34), 1), ((6, 68), 3), ((40, 34), 2)):
        assert_same_bits(
            attention(BEST, qkv, shape, tables=tables, cuts=cuts, limits=limits, threads=threads),
            whole,
        )
    for s in range(3):
        only = slice(s, s + 1)
        alone = attention(
            BEST, qkv[only], shape, tables=in_order(length), cuts=(5, 1, 34), limits=limits[only]
        )
        assert_same_bits(alone, whole[only])


@pytest.mark.parametrize("tier", TIERS)
def test_the_limits_of_other_rows_change_no_bit(tier):
    length = 300
    qkv, own = random_qkv(SHAPE, length), np.full((1, length), 123)
    others = np.random.default_rng(2).integers(0, length, (1, length))
    others[0, ::3] = 123
    found = [
        attention(tier, qkv, SHAPE, tables=in_order(length), cuts=(length,), limits=limits)
        for limits in (own, others)
    ]
    assert_same_bits(found[0][:, ::3], found[1][:, ::3])
    assert not np.array_equal(found[0], found[1])


@settings(max_examples=25)
@given(data=st.data())
def test_any_shape_and_any_limits(data):
    draw = data.draw
    kv_heads = draw(st.integers(1, 3))
    seen = {draw(st.sampled_from(["window", "reach"])): draw(st.sampled_from([0, 1, 17]))}
    shape = seen | {
        "heads": kv_heads * draw(st.integers(1, 9)),
        "kv_heads": kv_heads,
        "head_dim": draw(st.integers(1, 20)) * 2,
        "softcap": draw(st.sampled_from([0.0, 2.0])),
    }
    length = draw(st.integers(1, 80))
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    limits = limits_in(np.random.default_rng(draw(st.integers(0, 99))), length, sizes, **seen)
    tiers, threads = [draw(st.sampled_from(TIERS))], draw(st.integers(1, 3))
    check(shape, length, tiers=tiers, cuts=sizes, limits=limits, threads=threads)


def test_a_limit_before_the_window_is_refused():
    """Such a row would see nothing, and the mean of nothing is no number."""
    limits = np.arange(40)[None].copy()
    limits[0, 30] = 25
    with pytest.raises(ValueError, match="before its row's window"):
        attention(
            BEST, random_qkv(SHAPE, 40), SHAPE | {"window": 5}, tables=in_order(40), cuts=(40,),
            limits=limits,
        )  # fmt: skip


# -- whole models ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["cpu", "reference"])
def backend(wide_path, request):
    return LLM(wide_path, backend=request.param, kv_tokens=512).backend


TEXT = list(range(3, 83))


def test_both_backends_mean_the_same(wide_path):
    """A span that sees all of itself, behind a causal prompt and beside a causal neighbour."""
    limits = [*range(30), *[49] * 20, *range(40)]
    parts = [(0, TEXT[:50], [3, 1]), (0, TEXT[40:80], [0, 2])]
    ours, reference = (
        LLM(wide_path, backend=name, kv_tokens=512).backend.run(batch_of(parts, limits)).copy()
        for name in ("cpu", "reference")
    )
    assert np.linalg.norm(ours - reference) < 0.01 * np.linalg.norm(reference)
    causal = LLM(wide_path, backend="reference", kv_tokens=512).backend.run(batch_of(parts))
    assert np.linalg.norm(causal[30:50] - reference[30:50]) > 0.05 * np.linalg.norm(reference)
    np.testing.assert_array_equal(causal[50:], reference[50:])


def test_limits_that_are_the_positions_are_none_at_all(backend):
    parts = [(0, TEXT[:70], [3, 1, 4]), (0, TEXT[5:18], [0])]
    plain = backend.run(batch_of(parts)).copy()
    positions = batch_of(parts).positions
    assert differing_bits(backend.run(batch_of(parts, positions)), plain) == 0


def test_only_a_row_that_sees_so_far_knows_of_a_later_token(backend):
    """Row 11 sees to the end, all after it only the first eleven, and the last token changes."""
    limits = [*range(11), 30, *[10] * 18, 30]
    one, other = (
        backend.run(batch_of([(0, [*TEXT[:30], last], [0])], limits)).copy() for last in (40, 41)
    )
    changed = np.flatnonzero((one != other).any(axis=1))
    assert changed.tolist() == [11, 30]


@pytest.mark.parametrize("limit", [-1, 64, 512, 2**31 - 1, -(2**31)])
def test_limits_outside_the_block_table_are_refused(backend, limit):
    good = batch_of([(0, TEXT[:40], [0, 1])])
    before = backend.run(good).copy()
    limits = good.positions.copy()
    limits[20] = limit
    with pytest.raises(ValueError, match="limit is outside"):
        backend.run(good._replace(limits=limits))
    assert differing_bits(backend.run(good), before) == 0


def test_a_limit_whose_block_is_missing_is_refused(backend):
    parts = [(0, TEXT[:8], [0, -1]), (0, TEXT[:40], [1, 2])]
    limits = [40, *range(1, 8), *range(40)]
    with pytest.raises(ValueError, match=r"limit is outside|names no KV block"):
        backend.run(batch_of(parts, limits))


def test_limits_of_another_length_are_refused(backend):
    good = batch_of([(0, TEXT[:8], [0])])
    with pytest.raises(ValueError, match="differ in length"):
        backend.run(good._replace(limits=good.positions[:-1].copy()))
