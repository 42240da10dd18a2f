"""An importance matrix is the definition's sum, whatever computes it and in what pieces."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends import KV_BLOCK, Batch
from cutaway.compute.model import Op
from cutaway.errors import InputError
from cutaway.features.measure import importance
from support.random_llama import write_tiny_llama

TEXT = "ab ba " * 40
TOKENS, CHUNK = 202, 48


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_tiny_llama(
        tmp_path_factory.mktemp("dense") / "tiny.gguf", heads=8, context=512, format="Q8_0"
    )


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return write_tiny_llama(
        tmp_path_factory.mktemp("mixture") / "tiny.gguf", context=512, experts=5
    )


def collected(path, **how):
    settings = {name: how.pop(name) for name in ("backend", "threads") if name in how}
    with LLM(path, context=256, **settings) as llm:
        return importance.collect(llm.model, TEXT, **{"chunk": CHUNK} | how)


def same(a, b):
    assert a.entries.keys() == b.entries.keys()
    for name, (sums, counts) in a.entries.items():
        assert np.array_equal(sums.view(np.uint32), b.entries[name].sums.view(np.uint32)), name
        assert np.array_equal(counts, b.entries[name].counts)


def by_definition(path):
    """Every chunk in one batch, and every row of it added for itself."""
    sums, counts = {}, {}

    def add(matrix, expert, experts, row):
        total = sums.setdefault(matrix, np.zeros((experts, len(row)), np.float32))
        total[expert] = total[expert] + row * row
        counts.setdefault(matrix, np.zeros(experts))[expert] += 1

    with LLM(path, context=256) as llm:
        ids = llm.tokenizer.encode(TEXT)
        ops: list[Op] = [op for op in llm.model.graph.ops if op.kind in ("linear", "experts")]
        names = {name for op in ops for name in op.inputs}
        names |= {f"{op.out.name}.inner" for op in ops if op.kind == "experts"}
        for first in range(0, len(ids) - CHUNK + 1, CHUNK):
            tokens = np.array([1, *ids[first + 1 : first + CHUNK]], np.int32)  # 1 is BOS
            table = np.arange(-(-CHUNK // KV_BLOCK), dtype=np.int32)[None]
            rows = np.arange(CHUNK, dtype=np.int32)
            batch = Batch(tokens, rows, np.zeros_like(rows), table, rows)
            _, tensors = llm.backend.tap(batch, sorted(names))
            for op in ops:
                for i, row in enumerate(tensors[op.inputs[0]]):
                    if op.kind == "linear":
                        add(op.weights["weight"], 0, 1, row)
                        continue
                    scores = tensors[op.inputs[1]][i]
                    inner = tensors[f"{op.out.name}.inner"][i].reshape(2, -1)
                    best = sorted(range(5), key=lambda e: (-scores[e], e))[:2]
                    for rank, expert in enumerate(best):
                        add(op.weights["gate"], expert, 5, row)
                        add(op.weights["up"], expert, 5, row)
                        add(op.weights["down"], expert, 5, inner[rank])
    return sums, counts


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_it_is_the_definitions(kind, request):
    path = request.getfixturevalue(kind)
    found = collected(path, with_output=True)
    sums, counts = by_definition(path)
    assert found.entries.keys() == sums.keys()
    for name, entry in found.entries.items():
        assert np.array_equal(entry.sums, sums[name]), name
        assert np.array_equal(entry.counts, counts[name])
    assert (found.chunks, found.chunk_size) == (TOKENS // CHUNK, CHUNK)


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_threads_and_pieces_change_no_bit(kind, request, monkeypatch):
    path = request.getfixturevalue(kind)
    plain = collected(path)
    for threads, rows in [(1, 64), (3, 1), (2, 7), (2, 33)]:
        monkeypatch.setattr(importance, "_ROWS", rows)
        same(collected(path, threads=threads), plain)


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_both_backends_see_nearly_the_same(kind, request):
    path = request.getfixturevalue(kind)
    ours, plain = collected(path), collected(path, backend="reference")
    for name, (sums, counts) in plain.entries.items():
        assert np.allclose(ours.entries[name].sums, sums, rtol=0.2, atol=0.1 * sums.mean()), name
        assert counts.sum() == ours.entries[name].counts.sum()


def test_what_is_read(dense):
    told = []
    found = collected(dense, chunks=2, progress=lambda done, total: told.append((done, total)))
    assert found.chunks == 2 and told == [(48, 96), (96, 96)]
    layers = {name.split(".", 2)[2] for name in found.entries}
    assert layers == {
        f"{name}.weight" for name in (
            "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
        )
    }  # fmt: skip
    assert all(entry.counts.tolist() == [96] for entry in found.entries.values())
    q, k = (found.entries[f"blk.1.attn_{name}.weight"] for name in "qk")
    assert np.array_equal(q.sums, k.sums)
    assert "output.weight" in collected(dense, with_output=True).entries


def test_what_cannot_be_read_is_said(dense, tmp_path):
    with pytest.raises(InputError, match="the text has 202 tokens, and a chunk 256: give a longer"):
        collected(dense, chunk=256)
    tied = write_tiny_llama(tmp_path / "tied.gguf", tied=True, context=512)
    with pytest.raises(InputError, match="no output matrix of its own"):
        collected(tied, with_output=True)
