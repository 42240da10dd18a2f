"""A KV block that was copied is as good as the one that was computed: equal bits."""

import pytest

from cutaway import LLM
from cutaway.base import _native
from cutaway.compute.backends import KV_BLOCK
from support.native_plans import assert_same_bits, int32, new_plan
from support.native_plans import run_text as run

IDS = list(range(3, 83))  # two blocks and a half


@pytest.fixture(scope="module")
def backend(q8_path):
    return LLM(q8_path, backend="cpu", threads=2, kv_tokens=8 * KV_BLOCK).backend


def test_a_text_continues_from_copies_of_its_blocks(backend):
    """Half a block is copied too: what is written behind it goes its own way."""
    run(backend, 0, IDS, [0, 1, 2])
    backend.copy_blocks([(2, 4), (0, 3)])
    other = [90, 91, 92, 93]
    continued = run(backend, len(IDS), other, [3, 1, 4])
    whole = run(backend, 0, IDS + other, [5, 6, 7])
    assert_same_bits(continued, whole[len(IDS) :])


def test_the_source_and_the_others_stay_as_they_were(backend):
    before = run(backend, 0, [*IDS, 100], [0, 1, 2])[-1:]
    run(backend, 0, IDS[::-1], [5, 6, 7])
    backend.copy_blocks([(5, 4), (6, 3)])
    run(backend, KV_BLOCK, IDS[:KV_BLOCK], [4, 3])  # writes into a copy
    assert_same_bits(run(backend, len(IDS), [100], [0, 1, 2]), before)


def test_one_source_may_have_many_targets(backend):
    run(backend, 0, IDS[:20], [0])
    expected = run(backend, 20, [99], [0])
    backend.copy_blocks([(0, 5), (0, 6), (0, 7)])
    for block in (5, 6, 7):
        assert_same_bits(run(backend, 20, [99], [block]), expected)


def test_copies_without_pairs_change_nothing(backend):
    expected = run(backend, 0, IDS, [0, 1, 2])
    backend.copy_blocks([])
    assert_same_bits(run(backend, 79, IDS[79:], [0, 1, 2]), expected[79:])


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
def test_bad_pairs_are_refused_and_nothing_is_copied(backend, pairs, sentence):
    assert backend.kv_blocks == 8
    run(backend, 0, IDS[::-1][:20], [0])
    run(backend, 0, IDS[:20], [1])
    expected = run(backend, 20, [99], [1])
    with pytest.raises(ValueError, match=sentence):
        backend.copy_blocks(pairs)
    assert_same_bits(run(backend, 20, [99], [1]), expected)


def test_sources_and_targets_must_be_as_many():
    with pytest.raises(ValueError, match="differ in length"):
        new_plan("", kv_blocks=4).copy_blocks(int32([0, 1]), int32([2]))


def test_blocks_may_be_copied_before_the_first_run(wide_path):
    first, second = (LLM(wide_path, backend="cpu", threads=1).backend for _ in range(2))
    first.copy_blocks([(0, 1)])
    assert_same_bits(run(first, 0, IDS, [1, 2, 0]), run(second, 0, IDS, [1, 2, 0]))


def test_the_backends_pool_is_there_to_be_shared(backend):
    assert isinstance(backend.pool, _native.Pool)
    assert backend.pool.threads == backend.threads == 2
