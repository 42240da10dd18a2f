"""KV blocks: freed behind windows, copied, read from one backend and written into another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.base import _native
from cutaway.compute.backends import KV_BLOCK
from support.native_plans import assert_same_bits, batch_of, int32, new_plan
from support.native_plans import run_text as run
from support.random_llama import write_tiny_llama

WINDOW, LENGTH, COUNT = 40, 20 * KV_BLOCK, 48
IDS = np.random.default_rng(0).integers(3, 260, LENGTH).tolist()
OTHER = IDS[::-1]
WINDOWS = {"llama.attention.sliding_window": WINDOW}
KINDS = {"some": WINDOWS | {"llama.attention.sliding_window_pattern": 2}, "all": WINDOWS}


@pytest.fixture(scope="module", params=[("cpu", "some"), ("cpu", "all"), ("reference", "some")])
def backend(request, tmp_path_factory):
    name, kind = request.param
    path = tmp_path_factory.mktemp("windows") / "tiny.gguf"
    write_tiny_llama(
        path, hidden=64, heads=4, kv_heads=2, layers=4, context=LENGTH, metadata=KINDS[kind]
    )
    return LLM(path, backend=name, kv_tokens=COUNT * KV_BLOCK).backend


def let_go(backend, blocks):
    backend.copy_windows([(block, -1) for block in blocks])


def passed(position):
    """Blocks that no row from this position on sees."""
    return max(0, position - WINDOW + 1) // KV_BLOCK


@pytest.mark.parametrize("rows", [1, 7, 33, 100, LENGTH])
def test_what_is_let_go_of_as_the_text_moves_on_changes_no_bit(backend, rows):
    """Another text takes the memory at once, and is not disturbed either."""
    length = LENGTH if rows > 1 else 5 * KV_BLOCK  # row by row the reference takes 15 ms for each
    parts = [(start, min(start + rows, length)) for start in range(0, length, rows)]
    mine, theirs = range(20), range(20, 40)
    kept = [
        [run(backend, start, ids[start:stop], blocks) for start, stop in parts]
        for ids, blocks in ((IDS, mine), (OTHER, theirs))
    ]
    let_go(backend, range(COUNT))
    for (start, stop), *each in zip(parts, *kept, strict=True):
        for ids, blocks, expected in zip((IDS, OTHER), (mine, theirs), each, strict=True):
            assert_same_bits(run(backend, start, ids[start:stop], blocks), expected)
            let_go(backend, blocks[: passed(stop)])


@pytest.mark.parametrize("gone", [6, 7])
def test_a_row_that_sees_what_was_let_go_of_is_refused(backend, gone):
    """Positions 217 … 256 are seen from 256: blocks 6, 7 and 8."""
    run(backend, 0, IDS[:256], range(9))
    let_go(backend, [gone])
    with pytest.raises(ValueError, match="sees a KV block that was freed"):
        run(backend, 256, [5], range(9))


def test_a_batch_that_was_refused_leaves_the_others_as_they_were(backend):
    run(backend, 0, IDS[:256], range(8))
    expected = run(backend, 256, IDS[256:300], range(10))
    run(backend, 0, OTHER[:256], range(10, 18))
    let_go(backend, [17])
    both = batch_of([(256, IDS[256:257], [*range(9)]), (256, [5], [*range(10, 19)])])
    with pytest.raises(ValueError, match="was freed"):
        backend.run(both)
    assert_same_bits(run(backend, 256, IDS[256:300], range(10)), expected)


def test_a_window_may_move_to_another_block(backend):
    """The layers that see all have equal blocks in both places; those with a window in one."""
    run(backend, 0, IDS[:256], range(8))
    run(backend, 0, IDS[:256], range(10, 18))
    expected = run(backend, 256, IDS[256:300], range(10, 20))
    let_go(backend, range(10, 18))
    backend.copy_windows([(6, 16), (6, -1), (7, 17), (7, -1)])
    run(backend, 0, OTHER, range(20, 40))
    assert_same_bits(run(backend, 256, IDS[256:300], range(10, 20)), expected)
    with pytest.raises(ValueError, match="was freed"):
        run(backend, 256, [5], range(9))


def test_a_copied_block_has_its_window_or_none(backend):
    run(backend, 0, IDS[:270], range(9))
    expected = run(backend, 270, IDS[270:300], range(10))
    backend.copy_blocks([(8, 30)])
    run(backend, 270, OTHER[:10], range(9))
    mine = [*range(8), 30, 31]
    assert_same_bits(run(backend, 270, IDS[270:300], mine), expected)
    let_go(backend, [6])
    backend.copy_blocks([(6, 7)])
    with pytest.raises(ValueError, match="was freed"):
        run(backend, 270, IDS[270:300], mine)


def test_a_block_is_carried_with_its_window_or_without(backend):
    """What was freed is no piece of its memory; it can be given room again."""
    run(backend, 0, IDS[:256], range(8))
    expected = run(backend, 256, IDS[256:300], range(10))
    run(backend, 0, IDS[:256], range(8))
    pieces = [[piece.copy() for piece in backend.read_block(block)] for block in range(8)]
    let_go(backend, range(COUNT))
    whole = len(backend.read_block(0))
    assert whole < len(pieces[0])
    for block in range(8):
        backend.write_block(20 + block, pieces[block][: None if block >= passed(256) else whole])
    assert_same_bits(run(backend, 256, IDS[256:300], range(20, 30)), expected)
    with pytest.raises(ValueError, match="was freed"):
        run(backend, 224, [5], range(20, 28))


def test_letting_go_twice_and_of_what_was_never_written_is_nothing(backend):
    expected = run(backend, 0, IDS[:50], [47, 0])
    let_go(backend, [*range(COUNT), *range(COUNT)])
    assert_same_bits(run(backend, 0, IDS[:50], [47, 0]), expected)


@pytest.mark.parametrize("pair", [(-1, 0), (0, -2), (COUNT, 0), (0, COUNT), (-1, -1)])
def test_ids_that_name_no_block_are_refused(backend, pair):
    with pytest.raises(ValueError, match=r"names no KV block|cannot be copied"):
        backend.copy_windows([(0, 1), pair])


@given(data=st.data())
def test_memory_is_used_again_before_more_is_taken(data, tmp_path_factory):
    """In any order of writing and letting go, each block has what was written in it last."""
    path = tmp_path_factory.mktemp("places") / "tiny.gguf"
    write_tiny_llama(path, hidden=32, layers=1, format="F32", metadata=WINDOWS)
    backend = LLM(path, backend="cpu", threads=1, kv_tokens=6 * KV_BLOCK).backend
    held: dict[int, int] = {}
    for block, first in data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)))):
        if first:
            held[block] = first
            run(backend, 0, IDS[first : first + 20], [block])
        else:
            held.pop(block, None)
            let_go(backend, [block])
        assert backend._runner.window_blocks == len(held)
    for block, first in held.items():
        again = run(backend, 20, [7], [block])
        run(backend, 0, IDS[first : first + 20], [block])
        assert_same_bits(run(backend, 20, [7], [block]), again)


def test_a_model_without_windows_takes_no_places(tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    backend = LLM(path, backend="cpu", threads=1).backend
    whole = run(backend, 0, IDS[:70], range(3))
    let_go(backend, range(3))
    assert backend._runner.window_blocks == 0
    assert_same_bits(run(backend, 69, IDS[69:70], range(3)), whole[69:])


def test_keys_and_values_are_read_until_they_are_let_go_of(backend):
    layer = backend.kv.groups[-1].layers[-1]  # one with a window
    run(backend, 0, IDS[:100], range(20))
    whole, both = (backend.keys_values(layer, range(20), 0, n) for n in (100, 70))
    for part, of in zip(both, whole, strict=True):
        assert part.shape == (2, 70, 8)
        assert_same_bits(part, of[:, :70])
        assert len(np.unique(of, axis=1)[0]) == 100
    let_go(backend, [0])
    with pytest.raises(ValueError, match="was freed"):
        backend.keys_values(layer, range(20), 31, 100)
    for part, of in zip(backend.keys_values(layer, range(20), 32, 100), whole, strict=True):
        assert_same_bits(part, of[:, 32:])


# -- a block that was copied is as good as the one that was computed -------------------------------


LONGER = list(range(3, 83))  # two blocks and a half


@pytest.fixture(scope="module")
def eight_blocks(q8_path):
    return LLM(q8_path, backend="cpu", threads=2, kv_tokens=8 * KV_BLOCK).backend


def test_a_text_continues_from_copies_of_its_blocks(eight_blocks):
    """Half a block is copied too: what is written behind it goes its own way."""
    run(eight_blocks, 0, LONGER, [0, 1, 2])
    eight_blocks.copy_blocks([(2, 4), (0, 3)])
    other = [90, 91, 92, 93]
    continued = run(eight_blocks, len(LONGER), other, [3, 1, 4])
    whole = run(eight_blocks, 0, LONGER + other, [5, 6, 7])
    assert_same_bits(continued, whole[len(LONGER) :])


def test_the_source_and_the_others_stay_as_they_were(eight_blocks):
    before = run(eight_blocks, 0, [*LONGER, 100], [0, 1, 2])[-1:]
    run(eight_blocks, 0, LONGER[::-1], [5, 6, 7])
    eight_blocks.copy_blocks([(5, 4), (6, 3)])
    run(eight_blocks, KV_BLOCK, LONGER[:KV_BLOCK], [4, 3])  # writes into a copy
    assert_same_bits(run(eight_blocks, len(LONGER), [100], [0, 1, 2]), before)


def test_one_source_may_have_many_targets(eight_blocks):
    run(eight_blocks, 0, LONGER[:20], [0])
    expected = run(eight_blocks, 20, [99], [0])
    eight_blocks.copy_blocks([(0, 5), (0, 6), (0, 7)])
    for block in (5, 6, 7):
        assert_same_bits(run(eight_blocks, 20, [99], [block]), expected)


def test_copies_without_pairs_change_nothing(eight_blocks):
    expected = run(eight_blocks, 0, LONGER, [0, 1, 2])
    eight_blocks.copy_blocks([])
    assert_same_bits(run(eight_blocks, 79, LONGER[79:], [0, 1, 2]), expected[79:])


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([(0, 1), (-1, 2)], "names no KV block"),
        ([(0, 1), (8, 2)], "names no KV block"),
        ([(0, 1), (2, -1)], "names no KV block"),
        ([(0, 1), (2, 2**31 - 1)], "names no KV block"),
        ([(0, 1), (1, 2)], "also a source"),
        ([(0, 1), (2, 0)], "also a source"),
        ([(0, 1), (3, 3)], "also a source"),
        ([(0, 1), (2, 1)], "named twice"),
    ],
)
def test_bad_pairs_are_refused_and_nothing_is_copied(eight_blocks, pairs, sentence):
    assert eight_blocks.kv_blocks == 8
    run(eight_blocks, 0, LONGER[::-1][:20], [0])
    run(eight_blocks, 0, LONGER[:20], [1])
    expected = run(eight_blocks, 20, [99], [1])
    with pytest.raises(ValueError, match=sentence):
        eight_blocks.copy_blocks(pairs)
    assert_same_bits(run(eight_blocks, 20, [99], [1]), expected)


def test_sources_and_targets_must_be_as_many():
    with pytest.raises(ValueError, match="differ in length"):
        new_plan("", kv_blocks=4).copy_blocks(int32([0, 1]), int32([2]))


def test_blocks_may_be_copied_before_the_first_run(wide_path):
    first, second = (LLM(wide_path, backend="cpu", threads=1).backend for _ in range(2))
    first.copy_blocks([(0, 1)])
    assert_same_bits(run(first, 0, LONGER, [1, 2, 0]), run(second, 0, LONGER, [1, 2, 0]))


def test_the_backends_pool_is_there_to_be_shared(eight_blocks):
    assert isinstance(eight_blocks.pool, _native.Pool)
    assert eight_blocks.pool.threads == eight_blocks.threads == 2


# -- what is read from one backend and written into another is as if computed there ----------------


def loaded(path, backend="cpu"):
    threads = 1 if backend == "cpu" else None
    return LLM(path, backend=backend, threads=threads, kv_tokens=8 * KV_BLOCK).backend


def carry(source, target, pairs):
    """Through bytes, as a file has them."""
    for one, other in pairs:
        target.write_block(other, source.read_block(one))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_text_goes_on_from_blocks_that_were_carried(ragged_path, backend):
    source, target = loaded(ragged_path, backend), loaded(ragged_path, backend)
    run(source, 0, LONGER, [0, 1, 2])
    other = [90, 91, 92, 93]
    expected = run(source, len(LONGER), other, [0, 1, 2])
    carry(source, target, [(0, 5), (1, 0), (2, 7)])
    assert_same_bits(run(target, len(LONGER), other, [5, 0, 7]), expected)


@pytest.mark.parametrize("tier", _native.tiers().split(","))
def test_every_tier_reads_what_another_wrote(ragged_path, monkeypatch, tier):
    source = loaded(ragged_path)
    run(source, 0, LONGER, [0, 1, 2])
    monkeypatch.setenv("CUTAWAY_ISA", tier)
    target = loaded(ragged_path)
    carry(source, target, [(0, 0), (1, 1)])
    computed = loaded(ragged_path)
    run(computed, 0, LONGER, [0, 1, 2])
    rest = LONGER[2 * KV_BLOCK :]
    assert_same_bits(
        run(target, 2 * KV_BLOCK, rest, [0, 1, 2]), run(computed, 2 * KV_BLOCK, rest, [0, 1, 2])
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_block_is_as_large_as_the_layout_says(ragged_path, backend):
    backend = loaded(ragged_path, backend)
    nbytes = backend.kv.bytes_per_token * backend.kv.block_tokens
    for block_id in (0, 7):
        backend.write_block(block_id, [np.zeros(nbytes, np.uint8)])
        pieces = backend.read_block(block_id)
        assert sum(piece.nbytes for piece in pieces) == nbytes
        assert all(piece.dtype == np.uint8 for piece in pieces)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("block_id", [-1, 8, 2**31 - 1])
def test_an_id_of_no_block_is_refused(ragged_path, backend, block_id):
    with pytest.raises(ValueError, match="names no KV block"):
        loaded(ragged_path, backend).read_block(block_id)


def test_the_memory_outlives_its_backend(ragged_path):
    backend = loaded(ragged_path)
    run(backend, 0, LONGER, [0, 1, 2])
    memory, copy = backend.read_block(1)[0], backend.read_block(1)[0].copy()
    del backend
    assert np.array_equal(memory, copy)
