"""What a batch says of its rows: limits of their own, what is hidden from them; or bad numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.compute.backends import Batch
from cutaway.features.measure.verify import differing_bits
from support.attention_by_definition import check, make_tables, random_qkv
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
            BEST, qkv[only], shape, tables=make_tables(length), cuts=(5, 1, 34), limits=limits[only]
        )
        assert_same_bits(alone, whole[only])


@pytest.mark.parametrize("tier", TIERS)
def test_the_limits_of_other_rows_change_no_bit(tier):
    length = 300
    qkv, own = random_qkv(SHAPE, length), np.full((1, length), 123)
    others = np.random.default_rng(2).integers(0, length, (1, length))
    others[0, ::3] = 123
    found = [
        attention(tier, qkv, SHAPE, tables=make_tables(length), cuts=(length,), limits=limits)
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
            BEST, random_qkv(SHAPE, 40), SHAPE | {"window": 5}, tables=make_tables(40), cuts=(40,),
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


@pytest.mark.parametrize(("row", "end"), [(20, 21), (20, -1), (39, 512)])
def test_windows_that_end_elsewhere_are_refused(backend, row, end):
    """Behind their row, or before those of the sequence's first row, which see back farthest."""
    good = batch_of([(0, TEXT[:40], [0, 1])])
    ends = 0 * good.positions
    before = backend.run(good._replace(window_ends=ends)).copy()
    ends[row] = end
    with pytest.raises(ValueError, match="a window ends behind its row"):
        backend.run(good._replace(window_ends=ends))
    ends[row] = 0
    assert differing_bits(backend.run(good._replace(window_ends=ends)), before) == 0


def test_limits_of_another_length_are_refused(backend):
    good = batch_of([(0, TEXT[:8], [0])])
    with pytest.raises(ValueError, match="differ in length"):
        backend.run(good._replace(limits=good.positions[:-1].copy()))


# -- attention knock-out (``Batch.hidden_from``): over the other positions, bit for bit ------------


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
    qkv, tables = (
        random_qkv(SHAPE, length, sequences=3),
        rng.permutation(54).reshape(3, 18),
    )
    first = np.stack([some_hidden(rng, length), np.full(length, np.inf), some_hidden(rng, length)])
    whole = attention(BEST, qkv, SHAPE, tables=tables, cuts=(560,), hidden_from=first)
    again = attention(
        BEST,
        qkv,
        SHAPE,
        tables=tables,
        cuts=(5, 1, 34),
        hidden_from=first,
        threads=3,
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


# -- numbers that do not fit raise ValueError, and leave the plan as it was ------------------------


IDS = list(range(3, 63))


@pytest.fixture(scope="module")
def llm(q8_path):
    return LLM(q8_path, backend="cpu", threads=2, kv_tokens=256)


def batch(**changes):
    made = batch_of([(0, IDS[:40], [0, 1]), (0, IDS[:5], [2])])
    made = made._replace(logit_rows=np.array([39, 44], np.int32))
    for name, (where, value) in changes.items():
        getattr(made, name)[where] = value
    return made


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": (3, -1)}, "outside the vocabulary"),
        ({"tokens": (44, 264)}, "outside the vocabulary"),
        ({"tokens": (0, 2**31 - 1)}, "outside the vocabulary"),
        ({"positions": (3, 5)}, "not in order"),
        ({"positions": (39, 0)}, "not in order"),
        ({"positions": (0, -1)}, "outside the context"),
        ({"positions": (44, 256)}, "outside the context"),
        ({"positions": (44, 2**31 - 1)}, "outside the context"),
        ({"positions": (40, 63)}, "not in order|names no KV block"),
        ({"sequences": (44, 2)}, "no block table"),
        ({"sequences": (0, -1)}, "no block table"),
        ({"block_tables": ((0, 1), -1)}, "names no KV block"),
        ({"block_tables": ((1, 0), 8)}, "names no KV block"),
        ({"block_tables": ((0, 0), 2**31 - 1)}, "names no KV block"),
        ({"logit_rows": (0, 45)}, "not one of the rows"),
        ({"logit_rows": (1, -1)}, "not one of the rows"),
    ],
)
def test_bad_numbers_are_refused_and_change_nothing(llm, change, sentence):
    before = llm.backend.run(batch()).copy()
    with pytest.raises(ValueError, match=sentence):
        llm.backend.run(batch(**change))
    assert differing_bits(llm.backend.run(batch()), before) == 0


@pytest.mark.parametrize("short", ["tokens", "positions", "sequences"])
def test_arrays_of_different_lengths_are_refused(llm, short):
    good = batch()
    with pytest.raises(ValueError, match="differ in length"):
        llm.backend.run(good._replace(**{short: getattr(good, short)[:-1].copy()}))


@pytest.mark.parametrize("name", Batch._fields)
def test_a_field_of_another_type_or_other_dimensions_is_refused_by_its_name(llm, name):
    good = batch()
    other = good.tokens if name in ("block_tables", "hidden_from", "states", "given") else IDS
    for wrong in (other, good.tokens.reshape(5, 3, 3), "12"):
        with pytest.raises(TypeError, match=f"batch: {name} has not the type or the dimensions"):
            llm.backend.run(good._replace(**{name: wrong}))


def test_what_is_no_batch_is_refused(llm):
    with pytest.raises(AttributeError, match="no attribute 'tokens'"):
        llm.backend.run(tuple(batch()))


def test_an_empty_batch_gives_no_logits(llm):
    none = np.empty(0, np.int32)
    logits = llm.backend.run(Batch(none, none, none, np.empty((0, 0), np.int32), none))
    assert logits.shape == (0, 264)


def test_more_logit_rows_than_rows_are_refused(llm):
    good = batch()
    with pytest.raises(ValueError, match="more logit rows than rows"):
        llm.backend.run(good._replace(logit_rows=np.tile(good.logit_rows, 500)))
