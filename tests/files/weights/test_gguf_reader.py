"""The reader agrees with the reference implementation, and lets go of its file sensibly."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType

from cutaway.errors import InputError
from cutaway.files.weights import FORMATS, FORMATS_BY_ID, GGUFFile
from support.gguf_bytes import ARRAY, F32, STRING, U8, array, pair, small, string, tensor
from support.gguf_bytes import gguf as by_hand

SCALARS = {
    "UINT8": 255,
    "INT8": -128,
    "UINT16": 65535,
    "INT16": -32768,
    "UINT32": 2**32 - 1,
    "INT32": -(2**31),
    "FLOAT32": 0.1,
    "UINT64": 2**64 - 1,
    "INT64": -(2**63),
    "FLOAT64": 0.1,
    "BOOL": True,
    "STRING": "Ġthe ▁ 日本",
}
ARRAYS = {name: [value, type(value)(1), value] for name, value in SCALARS.items()}


KNOWN = [f.name for f in FORMATS_BY_ID.values() if f.name not in ("Q1_0", "Q2_0")]
"""Formats that gguf-py 0.19 decodes."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of the reference writer: every value type, every quant format."""
    path = tmp_path_factory.mktemp("gguf") / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in SCALARS.items():
        writer.add_key_value(f"scalar.{name}", value, GGUFValueType[name])
    for name, values in ARRAYS.items():
        writer.add_key_value(
            f"array.{name}", values, GGUFValueType.ARRAY, sub_type=GGUFValueType[name]
        )
    random = np.random.default_rng(5)
    for name in KNOWN:
        raw = random.integers(0, 60, (3, 2 * FORMATS[name].quant_block_bytes), np.uint8)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=GGMLQuantizationType[name])
    writer.add_tensor("cube", random.random((2, 3, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_the_reference_readers(written):
    reference = gguf.GGUFReader(written)
    with GGUFFile(written) as file:
        expected = {k: f.contents() for k, f in reference.fields.items() if k[:5] != "GGUF."}
        assert list(file.metadata) == list(expected)
        for key, value in file.metadata.items():
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            assert plain == expected[key]
            assert type(plain) is type(expected[key])


@pytest.mark.parametrize("name", [name for name in ARRAYS if name != "STRING"])
def test_number_arrays_keep_their_type(written, name):
    with GGUFFile(written) as file:
        value = file.metadata[f"array.{name}"]
    assert value.dtype == np.dtype(name.lower())
    np.testing.assert_array_equal(value, np.array(ARRAYS[name], value.dtype))
    assert not value.flags.writeable


def test_tensors_equal_the_reference_readers(written):
    reference = gguf.GGUFReader(written)
    with GGUFFile(written) as file:
        assert list(file.tensors) == [t.name for t in reference.tensors]
        for theirs in reference.tensors:
            ours = file.tensors[theirs.name]
            assert ours.format == theirs.tensor_type.name
            assert ours.shape == tuple(reversed(theirs.shape.tolist()))
            assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
            raw = file.raw(theirs.name)[:]
            assert raw.dtype == np.uint8
            assert raw.tobytes() == theirs.data.tobytes()
            values = file.dequantize(theirs.name)
            expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
            assert values.dtype == np.float32
            assert values.shape == ours.shape
            np.testing.assert_array_equal(values, expected.reshape(ours.shape))


def test_the_format_table_is_ggmls():
    for name in KNOWN:
        format, theirs = FORMATS[name], GGMLQuantizationType[name]
        assert FORMATS_BY_ID[format.type_id] is format
        assert format.type_id == theirs
        sizes = (format.quant_block_elements, format.quant_block_bytes)
        assert sizes == gguf.GGML_QUANT_SIZES[theirs]


@pytest.fixture
def write(tmp_path):
    def write(raw):
        path = tmp_path / "hand.gguf"
        path.write_bytes(raw)
        return path

    return write


def test_version_2_and_a_custom_alignment(write):
    path = write(small().replace(b"GGUF\3", b"GGUF\2", 1))
    with GGUFFile(str(path)) as file:
        assert file.path == path
        assert file.tensors["norm"].offset % 64 == 0
        assert file.dequantize("norm").tolist() == [1, 2, 3, 4]
        assert file.dequantize("matrix").shape == (2, 32)
        assert file.metadata["tokens"] == ["a", "", "Ġthe"]
        assert [x.tolist() for x in file.metadata["nested"]] == [[1, 2], []]


def test_a_string_that_is_not_utf8_keeps_its_bytes(write):
    lost = [b"\xff", b"\xe2\x96", b"\xed\xa0\x80", "▁ok".encode()]  # the third: a CESU surrogate
    payload = array(STRING, len(lost), b"".join(map(string, lost)))
    with GGUFFile(write(by_hand([pair("tokens", ARRAY, payload)]))) as file:
        tokens = file.metadata["tokens"]
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == lost
    assert tokens[3] == "▁ok"


@pytest.mark.parametrize("shift", range(4))
def test_numbers_are_read_wherever_they_lie(write, shift):
    """An odd position in the header or in the data must not matter."""
    pairs = [
        pair("general.alignment", U8, b"\1"),
        pair("x" * shift, U8, b"\0"),
        pair("odd", ARRAY, array(F32, 2, np.float32([1.5, 2.5]).tobytes())),
    ]
    data = b"\xff" + np.float32([7]).tobytes()
    with GGUFFile(write(by_hand(pairs, [tensor("t", [1], offset=1)], data, alignment=1))) as file:
        assert file.metadata["odd"].tolist() == [1.5, 2.5]
        assert file.dequantize("t").tolist() == [7]


def test_raw_reads_what_is_sliced_for_reading_only(write):
    with GGUFFile(write(small())) as file:
        raw = file.raw("matrix")[:]
        assert raw.nbytes == file.raw("matrix").nbytes
        assert np.array_equal(file.raw("matrix")[3:7], raw[3:7])
        with pytest.raises(ValueError, match="in their order"):
            file.raw("matrix")[::2]
        with pytest.raises(ValueError, match="read-only"):
            raw[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            raw.setflags(write=True)
        values = file.dequantize("norm")
        values[:] = 0  # a copy of the caller's own
        assert file.dequantize("norm").tolist() == [1, 2, 3, 4]


def test_what_raw_returned_outlives_close(write):
    file = GGUFFile(write(small()))
    raw = file.raw("norm")
    file.close()
    file.close()
    del file
    assert raw[:].view(np.float32).tolist() == [1, 2, 3, 4]


def test_after_close_the_header_stays_and_the_bytes_are_refused(write):
    path = write(small())
    with GGUFFile(path) as file:
        pass
    assert file.metadata["flag"] is True
    assert file.tensors["norm"].shape == (4,)
    for read in file.raw, file.dequantize:
        with pytest.raises(InputError, match="the file is closed, so 'norm' cannot be read") as e:
            read("norm")
        assert str(e.value).startswith(f"{path}: ")


def test_an_unknown_tensor_is_named(write):
    with (
        GGUFFile(write(small())) as file,
        pytest.raises(InputError, match=r"no tensor named 'output\.weight'"),
    ):
        file.raw("output.weight")


def test_metadata_and_tensors_cannot_be_changed(write):
    with GGUFFile(write(small())) as file:
        with pytest.raises(TypeError):
            file.metadata["flag"] = False
        with pytest.raises(TypeError):
            del file.tensors["norm"]
