"""A KV block's memory: what is read from one backend and written into another is as if computed."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.base import _native
from cutaway.compute.backends import KV_BLOCK
from support.native_plans import assert_same_bits
from support.native_plans import run_text as run

IDS = list(range(3, 83))  # two blocks and a half


def loaded(path, backend="cpu"):
    threads = 1 if backend == "cpu" else None
    return LLM(path, backend=backend, threads=threads, kv_tokens=8 * KV_BLOCK).backend


def carry(source, target, pairs):
    """Through bytes, as a file has them."""
    for one, other in pairs:
        for memory, into in zip(
            source.block_memory(one), target.block_memory(other, windows=True), strict=True
        ):
            into[:] = np.frombuffer(memory.tobytes(), np.uint8)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_text_goes_on_from_blocks_that_were_carried(ragged_path, backend):
    source, target = loaded(ragged_path, backend), loaded(ragged_path, backend)
    run(source, 0, IDS, [0, 1, 2])
    other = [90, 91, 92, 93]
    expected = run(source, len(IDS), other, [0, 1, 2])
    carry(source, target, [(0, 5), (1, 0), (2, 7)])
    assert_same_bits(run(target, len(IDS), other, [5, 0, 7]), expected)


@pytest.mark.parametrize("tier", _native.tiers().split(","))
def test_every_tier_reads_what_another_wrote(ragged_path, monkeypatch, tier):
    source = loaded(ragged_path)
    run(source, 0, IDS, [0, 1, 2])
    monkeypatch.setenv("CUTAWAY_ISA", tier)
    target = loaded(ragged_path)
    carry(source, target, [(0, 0), (1, 1)])
    computed = loaded(ragged_path)
    run(computed, 0, IDS, [0, 1, 2])
    rest = IDS[2 * KV_BLOCK :]
    assert_same_bits(
        run(target, 2 * KV_BLOCK, rest, [0, 1, 2]), run(computed, 2 * KV_BLOCK, rest, [0, 1, 2])
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_block_is_as_large_as_the_layout_says(ragged_path, backend):
    backend = loaded(ragged_path, backend)
    nbytes = backend.kv.bytes_per_token * backend.kv.block_tokens
    for block_id in (0, 7):
        pieces = backend.block_memory(block_id, windows=True)
        assert sum(piece.nbytes for piece in pieces) == nbytes
        assert all(piece.dtype == np.uint8 and piece.flags.writeable for piece in pieces)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("block_id", [-1, 8, 2**31 - 1])
def test_an_id_of_no_block_is_refused(ragged_path, backend, block_id):
    with pytest.raises(ValueError, match="names no KV block"):
        loaded(ragged_path, backend).block_memory(block_id)


def test_the_memory_outlives_its_backend(ragged_path):
    backend = loaded(ragged_path)
    run(backend, 0, IDS, [0, 1, 2])
    memory, copy = backend.block_memory(1)[0], backend.block_memory(1)[0].copy()
    del backend
    assert np.array_equal(memory, copy)
