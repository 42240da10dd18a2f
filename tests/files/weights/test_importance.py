"""Files of importance matrices: what is written comes back, and what is damaged is refused."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.files.weights import TensorInfo
from cutaway.files.weights.importance import ColumnSums, Importance
from support.examples import few_or_many


def entry(n, columns, seed=0):
    rng = np.random.default_rng(seed)
    return ColumnSums(
        rng.random((n, columns), np.float32), rng.integers(0, 9, n).astype(np.float32)
    )


@pytest.fixture
def matrix():
    entries = {"blk.1.ffn_down_exps.weight": entry(3, 8), "blk.0.attn_q.weight": entry(1, 5)}
    return Importance(entries, ("one.txt", "two.txt"), 12, 512)


def same(a, b):
    assert list(a.entries) == sorted(b.entries)
    for name, mine in a.entries.items():
        assert np.array_equal(mine.sums, b.entries[name].sums)
        assert np.array_equal(mine.counts, b.entries[name].counts)


def test_what_is_written_comes_back(matrix, tmp_path):
    matrix.write(path := tmp_path / "importance.gguf")
    read = Importance.read(path)
    same(read, matrix)
    assert (read.datasets, read.chunks, read.chunk_size) == (("one.txt", "two.txt"), 12, 512)
    assert read.path == path


def test_the_file_is_as_llama_cpp_writes_it(matrix, tmp_path):
    """Its keys, their types and order, and the tensors' names, order and dimensions."""
    matrix.write(path := tmp_path / "importance.gguf")
    reader = gguf.GGUFReader(path)
    named = reader.fields.items()
    fields = {name: field.types for name, field in named if not name.startswith("GGUF.")}
    kinds = gguf.GGUFValueType
    assert fields == {
        "general.type": [kinds.STRING], "imatrix.datasets": [kinds.ARRAY, kinds.STRING],
        "imatrix.chunk_count": [kinds.UINT32], "imatrix.chunk_size": [kinds.UINT32],
    }  # fmt: skip
    assert list(fields) == [
        "general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
    ]  # fmt: skip
    assert [(t.name, list(t.shape)) for t in reader.tensors] == [
        ("blk.0.attn_q.weight.in_sum2", [5]), ("blk.0.attn_q.weight.counts", [1]),
        ("blk.1.ffn_down_exps.weight.in_sum2", [8, 3]),
        ("blk.1.ffn_down_exps.weight.counts", [1, 3]),
    ]  # fmt: skip


def legacy(entries, *, chunks=4, dataset="text"):
    """The older form, as ``save_imatrix_legacy`` writes it."""
    parts = [struct.pack("<i", len(entries))]
    for name, (calls, values) in entries.items():
        raw = name.encode()
        parts += [struct.pack("<i", len(raw)), raw, struct.pack("<ii", calls, len(values))]
        parts += [np.array(values, "<f4").tobytes()]
    end = struct.pack("<ii", chunks, len(dataset)) + dataset.encode()
    return b"".join(parts) + (end if chunks else b"")


@pytest.mark.parametrize("chunks", [4, 0])
def test_the_older_form_is_read(tmp_path, chunks):
    (path := tmp_path / "importance.dat").write_bytes(
        legacy({"a.weight": (4, [4.0, 8.0]), "b.weight": (2, [1.0] * 6)}, chunks=chunks)
    )
    read = Importance.read(path)
    assert read.chunks == chunks
    assert read.column_means(TensorInfo("a.weight", "F32", (7, 2))).tolist() == [[1.0, 2.0]]
    experts = read.column_means(TensorInfo("b.weight", "F32", (3, 7, 2)))
    assert experts.tolist() == [[0.5, 0.5]] * 3


def test_the_mean_of_what_no_row_came_to_is_one():
    sums, counts = np.array([[4, 8], [0, 0]], np.float32), np.array([4, 0], np.float32)
    matrix = Importance({"a.weight": ColumnSums(sums, counts)}, (), 1, 512)
    means = matrix.column_means(TensorInfo("a.weight", "F32", (2, 7, 2)))
    assert means.tolist() == [[1, 2], [1, 1]]
    assert matrix.column_means(TensorInfo("b.weight", "F32", (2, 7, 2))) is None
    with pytest.raises(InputError, match="has 4 columns here and 6 in the model"):
        matrix.column_means(TensorInfo("a.weight", "F32", (3, 7, 2)))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_what_is_no_sum_of_squares_is_refused(matrix, tmp_path, wrong):
    matrix.entries["blk.0.attn_q.weight"].sums[0, 2] = wrong
    matrix.write(path := tmp_path / "importance.gguf")
    with pytest.raises(InputError, match=r"'blk.0.attn_q.weight' holds what is no sum of squares"):
        Importance.read(path)


@few_or_many(100, 2000, st.data())
def test_damage_is_refused_in_words(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "importance"
    folder.mkdir(exist_ok=True)
    Importance({"a.weight": entry(2, 4), "b.weight": entry(1, 3)}, ("t",), 1, 8).write(
        whole := folder / "whole.gguf"
    )
    sound = data.draw(
        st.sampled_from([whole.read_bytes(), legacy({"a": (1, [1.0]), "b": (2, [2.0])})])
    )
    at = data.draw(st.integers(0, len(sound) - 1))
    change = data.draw(st.binary(max_size=8))
    rest = sound[at + len(change) :] if data.draw(st.booleans()) else b""
    (path := folder / "damaged").write_bytes(sound[:at] + change + rest or b"x")
    try:
        read = Importance.read(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert all((one.sums >= 0).all() for one in read.entries.values())
