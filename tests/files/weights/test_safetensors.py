"""The safetensors reader: what the library writes, and what nobody should."""

import numpy as np
import pytest
from hypothesis import strategies as st

from cutaway.errors import FormatError, InputError
from cutaway.files.weights import FORMATS, dequantize
from cutaway.files.weights.safetensors import SafetensorsFile
from support.damage import damage
from support.examples import few_or_many
from support.safetensors_bytes import entry, safetensors, small


def test_reads_what_the_library_writes(tmp_path):
    library = pytest.importorskip(
        "safetensors.numpy", reason="needs safetensors: pip install '.[test-transformers]'"
    )
    rng = np.random.default_rng(0)
    tensors = {
        "b": rng.normal(size=(3, 5)).astype(np.float32),
        "a": rng.normal(size=(7,)).astype(np.float16),
        "ids": np.arange(4),
    }
    library.save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "np"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert sorted(file.names) == ["a", "b", "ids"]
    for name in ("a", "b"):
        info = file.info(name)
        assert info.shape == tensors[name].shape
        assert file.raw(name)[:].tobytes() == tensors[name].tobytes()
        numbers = dequantize(FORMATS[info.format], file.raw(name)[:])
        assert np.array_equal(numbers, tensors[name].astype(np.float32).reshape(-1))
    file.close()
    with pytest.raises(InputError, match="closed"):
        file.raw("a")


def opened(tmp_path, raw):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    return SafetensorsFile(path)


def test_other_dtypes_are_refused_only_when_asked_for(tmp_path):
    file = opened(tmp_path, small())
    assert file.info("norm").format == "F32"
    with pytest.raises(FormatError, match="'ids' is stored as 'I64'"):
        file.raw("ids")
    with pytest.raises(InputError, match="no tensor named 'other'"):
        file.raw("other")
    assert not file.raw("norm")[:].flags.writeable


def test_parts_of_quantised_matrices_are_read_as_their_dtype_says(tmp_path):
    file = opened(tmp_path, small())
    assert file.dtype_and_shape("ids") == ("I64", (1,))
    assert file.part("ids")[:].view("<i8")[0] == int.from_bytes(bytes(range(23, 31)), "little")
    assert np.array_equal(file.part("norm")[:], file.raw("norm")[:])
    header = {"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}
    file = opened(tmp_path, safetensors(header, bytes(8)))
    with pytest.raises(FormatError, match="'a' is stored as 'F64'"):
        file.part("a")
    header = {"a": {"dtype": "I8", "shape": [3], "data_offsets": [0, 8]}}
    with pytest.raises(FormatError, match="'a' has other bytes than its shape needs"):
        opened(tmp_path, safetensors(header, bytes(8)))


@pytest.mark.parametrize(("metadata", "texts"), [({"a": "b", "c": 5}, {"a": "b"}), ([], {})])
def test_metadata_that_is_no_text_is_left_out(tmp_path, metadata, texts):
    file = opened(tmp_path, safetensors({"__metadata__": metadata, "a": entry()}, bytes(8)))
    assert file.metadata == texts


ENTRIES = {
    "lacks a sound dtype": {"a": 5},
    "lacks a sound": {"a": {"dtype": "F32", "shape": [2]}},
    "a sound dtype, shape": {"a": entry(shape=(-1,))},
    "dtype, shape or": {"a": entry(shape=(True,))},
    "sound dtype, shape or data_offsets": {"a": entry(shape=(2.0,))},
    "too many dimensions": {"a": entry(shape=(1,) * 9)},
    "not two offsets": {"a": entry(offsets=(0, 8, 9))},
    "outside of the file": {"a": entry(shape=(3,), offsets=(0, 12))},
    "before it begins": {"a": entry(shape=(1,), offsets=(8, 4))},
    "other bytes than its shape needs": {"a": entry(shape=(2**70, 2**70))},
    "'a' and 'b' overlap": {"a": entry(), "b": entry(shape=(1,), offsets=(4, 8))},
}


@pytest.mark.parametrize("problem", ENTRIES)
def test_a_bad_entry_is_refused_by_name(tmp_path, problem):
    with pytest.raises(FormatError, match=problem):
        opened(tmp_path, safetensors(ENTRIES[problem], bytes(8)))


FILES = {
    "the file is empty": b"",
    "said to have": b"abc",
    "is said to have 1000 bytes": safetensors({}, length=1000),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\n",
    "no sound JSON": safetensors(b"{"),
    "no JSON object": safetensors([]),
    "occurs twice": safetensors(b'{"a": 1, "a": 1}'),
    "maximum recursion": safetensors(b"[" * 100_000),
    "can't decode": safetensors(b'{"\xff": 1}'),
    "Exceeds the limit": safetensors(b'{"a": ' + b"9" * 5000 + b"}"),
}


@pytest.mark.parametrize("problem", FILES)
def test_a_bad_file_is_refused(tmp_path, problem):
    with pytest.raises(FormatError, match=problem):
        opened(tmp_path, FILES[problem])


def test_an_empty_tensor_is_refused_when_asked_for(tmp_path):
    file = opened(tmp_path, safetensors({"a": entry(shape=(0, 4), offsets=(0, 0))}))
    with pytest.raises(FormatError, match="holds no rows"):
        file.info("a")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        SafetensorsFile(tmp_path / "none.safetensors")
    with pytest.raises(FormatError, match="regular file"):
        SafetensorsFile(tmp_path)


SMALL = small()
pieces = st.binary(max_size=9) | st.sampled_from([b"-", b"9" * 9, b"[", b"}", b'"', b",", b"null"])


@st.composite
def damaged(draw):
    """A small file; see ``damage``."""
    raw = damage(draw, SMALL, pieces)
    # Mostly with a length that fits, so that the damage reaches the entries.
    if draw(st.booleans()) and len(raw) > 8 and b"}}" in raw:
        length = raw.index(b"}}") + 2 - 8
        raw = length.to_bytes(8, "little", signed=True)[:8] + raw[8:] if length > 0 else raw
    return raw


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "fuzz.safetensors"


@few_or_many(250, 1000, damaged())
def test_a_damaged_file_opens_or_is_refused(path, raw):
    path.write_bytes(raw)
    try:
        file = SafetensorsFile(path)
    except FormatError as error:
        message = str(error)
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        return
    for name in file.names:
        try:
            info = file.info(name)
        except FormatError:
            continue
        assert file.raw(name).nbytes == info.nbytes
