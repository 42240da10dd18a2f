"""Packing keeps every number: a packed row decodes to the bits that the file's decoder gives."""

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.base import _native
from cutaway.compute import model
from cutaway.compute.lowering import matrix_shapes, packing
from cutaway.files.weights import FORMATS, GGUFFile, dequantize
from random_blocks import BYTE_SCALES, set_scales
from support.native_plans import assert_same_bits, pack
from support.random_llama import write_tiny_llama

FINITE = np.arange(1 << 16, dtype=np.uint16)
FINITE = FINITE[np.isfinite(FINITE.view(np.float16))]


def random_file_bytes(name, rows, cols):
    """Every bit random, but that the scales are finite, of any size, sign, zero or subnormal."""
    rng = np.random.default_rng(list(FORMATS).index(name))
    raw = rng.integers(0, 256, rows * FORMATS[name].nbytes(cols), np.uint8)
    blocks = rows * cols // FORMATS[name].quant_block_elements
    if name not in ("F32", "F16", "BF16", *BYTE_SCALES):
        d, m, dmin = rng.choice(FINITE, (3, blocks)).view(np.float16)
        set_scales(name, raw, d=d, m=m, dmin=dmin)
    if name == "F16":
        raw = rng.choice(FINITE, rows * cols).view(np.uint8)
    if name in ("F32", "BF16"):
        raw.view(FORMATS[name].layout)["x"][~np.isfinite(dequantize(FORMATS[name], raw))] = 0
    return raw


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_row_decodes_to_the_bits_of_the_file(name, rows):
    cols = 3 * max(32, FORMATS[name].quant_block_elements)
    raw = random_file_bytes(name, rows, cols)
    packed = pack(name, raw, rows, cols, threads=2)
    assert (packed.rows, packed.cols) == (rows, cols)
    expected = dequantize(FORMATS[name], raw).reshape(rows, cols)
    assert_same_bits(packed.decode(0, rows), expected)


@pytest.mark.parametrize("cols", [1, 7, 33])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_rows_of_any_length(name, cols):
    raw = random_file_bytes(name, 19, cols)
    expected = dequantize(FORMATS[name], raw).reshape(19, cols)
    assert_same_bits(pack(name, raw, 19, cols).decode(0, 19), expected)


@pytest.mark.parametrize(
    "spoil", [lambda raw: np.repeat(raw, 2)[::2], lambda raw: raw.view(np.int8), np.ndarray.tolist]
)
def test_a_piece_is_read_where_it_lies_and_never_from_a_copy(spoil):
    raw = random_file_bytes("Q8_0", 32, 64)
    arena, pool = _native.Arena(_native.packed_bytes("Q8_0", 32, 64)), _native.Pool(1)
    packed = arena.reserve("Q8_0", 32, 64)
    with pytest.raises(ValueError, match="must be FileBytes or a contiguous uint8 array"):
        arena.fill(pool, [(packed, spoil(raw), 0)])
    arena.fill(pool, [(packed, raw, 0)])
    assert_same_bits(packed.decode(0, 32), dequantize(FORMATS["Q8_0"], raw).reshape(32, 64))


def test_matrices_share_an_arena():
    names = ["Q4_1", "F32", "Q6_K"]
    arena = _native.Arena(sum(_native.packed_bytes(name, 5, 256) for name in names))
    raws = {name: random_file_bytes(name, 5, 256) for name in names}
    packed = {name: arena.pack(_native.Pool(1), name, raws[name], 5, 256) for name in names}
    del arena
    for name in names:
        expected = dequantize(FORMATS[name], raws[name]).reshape(5, 256)
        assert_same_bits(packed[name].decode(0, 5), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_wrong_sizes_are_refused(name):
    raw = random_file_bytes(name, 3, 4096)
    arena = _native.Arena(_native.packed_bytes(name, 3, 4096))
    for wrong in (raw[:-1], np.append(raw, np.uint8(0)), raw[:0]):
        with pytest.raises(ValueError, match="wrong number of bytes"):
            arena.pack(_native.Pool(1), name, wrong, 3, 4096)
    for rows, cols in [(0, 4096), (3, 0), (-1, 4096), (3, -4096)]:
        with pytest.raises(ValueError, match="cannot be in this format"):
            arena.pack(_native.Pool(1), name, raw, rows, cols)
    assert arena.pack(_native.Pool(1), name, raw, 3, 4096).rows == 3  # still of use
    with pytest.raises(ValueError, match="arena is full"):
        arena.pack(_native.Pool(1), name, raw, 3, 4096)


@pytest.mark.parametrize(
    ("name", "cols"),
    [("Q4_0", 16), ("Q8_0", 33), ("Q4_K", 32), ("Q6_K", 128), ("NVFP4", 32), ("Q1_0", 64)],
)
def test_part_of_a_quant_block_is_refused(name, cols):
    with pytest.raises(ValueError, match="cannot be in this format"):
        _native.packed_bytes(name, 4, cols)


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="no kernels for the format Q8_K"):
        _native.packed_bytes("Q8_K", 4, 256)


def test_a_row_that_is_not_there():
    packed = pack("F32", np.zeros(32, np.uint8), 2, 4)
    for rows in ((-1, 1), (0, 3), (2, 1)):
        with pytest.raises(IndexError):
            packed.decode(*rows)


@pytest.mark.parametrize("name", FORMATS)
def test_panels_are_hardly_larger_than_the_file_from_four_bits_on(name):
    """One bit to three are kept as their codes, which the file names by pattern."""
    packed, file = _native.packed_bytes(name, 16, 512), FORMATS[name].nbytes(16 * 512)
    assert packed <= 1.1 * file or FORMATS[name].nbytes(1024) < 448  # of 3.5 bits


@pytest.mark.parametrize(("piece", "at_once"), [(1 << 18, 16 << 20), (1, 3000)])
def test_many_pieces_of_matrices_are_packed_in_one_call(tmp_path, monkeypatch, piece, at_once):
    monkeypatch.setattr(packing, "_PIECE", piece)
    monkeypatch.setattr(packing, "_AT_ONCE", at_once)
    file = GGUFFile(write_tiny_llama(tmp_path / "tiny.gguf", layers=3))
    _, graph = model.build(file.metadata, {n: info.shape for n, info in file.tensors.items()}, None)
    shapes, calls = matrix_shapes(graph), []
    packed = packing.pack_matrices(shapes, file, _native.Pool(2), calls.append)
    size = sum(file.tensors[name].nbytes for name, _, _ in shapes)
    assert calls[-1] == size
    assert size // at_once // 2 < len(calls) <= size // at_once + 1
    for (name, first, last), matrix in packed.items():
        expected = file.dequantize(name).reshape(-1, matrix.cols)[first:last]
        assert_same_bits(matrix.decode(0, matrix.rows), expected)


# -- meanwhile the disk is asked for what comes next, and for no more than that --------------------


class Watched(GGUFFile):
    """Notes what is expected and what is read."""

    def __init__(self, path):
        super().__init__(path)
        self.log = []

    def expect(self, name):
        self.log.append(("expect", name))
        super().expect(name)

    def raw(self, name):
        self.log.append(("read", name))
        return super().raw(name)


@pytest.mark.parametrize("ahead", [0, 10_000, 1 << 30])
def test_every_matrix_is_expected_once_before_it_is_read(tmp_path, monkeypatch, ahead):
    monkeypatch.setattr(packing, "_AHEAD", ahead)
    file = Watched(write_tiny_llama(tmp_path / "tiny.gguf", layers=3))
    shapes = {name: info.shape for name, info in file.tensors.items()}
    _, graph = model.build(file.metadata, shapes, None)
    packing.pack_matrices(matrix_shapes(graph), file, _native.Pool(1))
    expected = [name for what, name in file.log if what == "expect"]
    read = [name for what, name in file.log if what == "read"]
    assert expected == read == list(dict.fromkeys(read))
    size = {name: file.tensors[name].nbytes for name in read}
    for i, name in enumerate(read):
        known = [n for what, n in file.log[: file.log.index(("read", name))] if what == "expect"]
        waiting = [size[n] for n in known[i:]]
        assert known[i] == name
        assert sum(waiting[:-1]) < size[name] + ahead  # the last may reach beyond
