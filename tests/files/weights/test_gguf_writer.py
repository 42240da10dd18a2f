"""What is written comes back as it was, by our reader and gguf-py; or nothing is left behind."""

import errno

import gguf as oracle
import numpy as np
import pytest

from cutaway.errors import CutawayError
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from support.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U8,
    U32,
    array,
    gguf,
    pair,
    small,
    string,
    tensor,
    u32,
)

U16, I64, F64 = 2, 11, 12
PAIRS = [
    pair("general.architecture", STRING, string("llama")),
    pair("general.alignment", U32, u32(64)),
    pair("a.u8", U8, b"\xff"),
    pair("a.u16", U16, b"\x01\x02"),
    pair("a.minus", I64, np.int64(-5).tobytes()),
    pair("a.f32", F32, np.float32(1e-5).tobytes()),
    pair("a.f64", F64, np.float64(1e-5).tobytes()),
    pair("a.flag", BOOL, b"\1"),
    pair("a.text", STRING, string(b"\xff\xfeG")),
    pair("a.tokens", ARRAY, array(STRING, 2, string("") + string("Ġthe"))),
    pair("a.types", ARRAY, array(U16, 2, b"\1\0\2\0")),
    pair("a.none", ARRAY, array(STRING, 0, b"")),
    pair("a.nested", ARRAY, array(ARRAY, 2, array(U8, 2, b"\1\2") + array(U8, 0, b""))),
]
TENSORS = [
    tensor("vector", [5]),
    tensor("stack", [32, 2, 3], 8, 64),
    tensor("half", [3, 1], 1, 320),
]


@pytest.fixture
def source(tmp_path):
    data = np.random.default_rng(0).integers(0, 60, 326, np.uint8).tobytes()
    path = tmp_path / "source.gguf"
    path.write_bytes(gguf(PAIRS, TENSORS, data, alignment=64))
    with GGUFFile(path) as file:
        yield file


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_all_comes_back(source, tmp_path):
    write_gguf(out := tmp_path / "out.gguf", source)
    with GGUFFile(out) as file:
        expected = {k: v for k, v in source.metadata.items() if k != "general.alignment"}
        assert list(file.metadata) == list(expected)
        assert all(same(file.metadata[key], value) for key, value in expected.items())
        assert all(file.value_types[key] == source.value_types[key] for key in expected)
        assert list(file.tensors) == list(source.tensors)
        for name, info in source.tensors.items():
            assert (file.tensors[name].format, file.tensors[name].shape) == (
                info.format,
                info.shape,
            )
            assert np.array_equal(file.raw(name)[:], source.raw(name)[:])
    assert out.stat().st_size == -(-file.tensors["half"].end // 32) * 32


def test_gguf_py_reads_it(source, tmp_path):
    write_gguf(out := tmp_path / "out.gguf", source)
    reader = oracle.GGUFReader(out)
    for stored in reader.tensors:
        assert stored.data_offset % 32 == 0
        assert np.array_equal(stored.data.reshape(-1).view(np.uint8), source.raw(stored.name)[:])
    assert reader.fields["a.f64"].contents() == 1e-5 and reader.fields["a.minus"].contents() == -5
    assert reader.fields["a.tokens"].contents() == ["", "Ġthe"]


@pytest.mark.parametrize(
    "value, type_id",
    [(True, 7), (7, 4), (2**32, 10), (-1, 5), (-(2**40), 11), (0.5, 6), ("x", 8)],
)
def test_values_without_a_type_get_that_which_others_expect(source, tmp_path, value, type_id):
    source.metadata, source.value_types = {"key": value}, {}
    write_gguf(out := tmp_path / "out.gguf", source)
    with GGUFFile(out) as file:
        assert file.value_types == {"key": type_id} and same(file.metadata["key"], value)


def test_a_written_file_is_written_alike(tmp_path):
    (path := tmp_path / "small.gguf").write_bytes(small(alignment=32))
    for before, after in (("small", "once"), ("once", "twice")):
        with GGUFFile(tmp_path / f"{before}.gguf") as file:
            write_gguf(tmp_path / f"{after}.gguf", file)
    once = (tmp_path / "once.gguf").read_bytes()
    assert once == (tmp_path / "twice.gguf").read_bytes() and len(once) < len(path.read_bytes())


@pytest.mark.parametrize("failure, expected", [
    (OSError(errno.ENOSPC, "No space left on device"), CutawayError),
    (KeyboardInterrupt(), KeyboardInterrupt),
])  # fmt: skip
def test_a_failure_leaves_what_was_there(source, tmp_path, failure, expected):
    (out := tmp_path / "out.gguf").write_bytes(b"older")

    def told(done):
        raise failure

    with pytest.raises(expected, match=r"No space left.*nothing was left|^$"):
        write_gguf(out, source, told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "source.gguf"]
    assert out.read_bytes() == b"older"


def test_progress_is_told_in_bytes(source, tmp_path):
    told = []
    write_gguf(tmp_path / "out.gguf", source, told.append)
    assert told == [20, 20 + 204, 20 + 204 + 6]
