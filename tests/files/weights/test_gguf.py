"""GGUF files agree with the reference implementation, whole or in parts, and are let go of."""

import shutil
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.compute.loading.identity import identify
from cutaway.compute.loading.open import files_of, model_name, open_model, size_of, stat_model
from cutaway.errors import FormatError
from cutaway.files.hub import parts_of, whole_name
from cutaway.files.weights import FORMATS, FORMATS_BY_ID, GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from support.gguf_bytes import ARRAY, F32, STRING, U8, array, pair, small, string, tensor
from support.gguf_bytes import gguf as by_hand
from support.random_llama import write_tiny_llama

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


# -- a model in parts: read as the whole file is, or refused in a sentence that says why -----------


class Part(GGUFFile):
    """Some tensors of a file, with the keys of a part."""

    def cut(self, names, metadata):
        self.tensors = MappingProxyType({name: self.tensors[name] for name in names})
        self.metadata = MappingProxyType(metadata)
        return self


def split(source: Path, folder: Path, cuts: list[int], **keys) -> list[Path]:
    """Write the parts of a file, cut before these tensors; keys: what the first part says."""
    with GGUFFile(source) as whole:
        names, metadata = list(whole.tensors), dict(whole.metadata)
    bounds = [0, *cuts, len(names)]
    paths = []
    for i, (first, last) in enumerate(pairwise(bounds)):
        own = {"split.no": i, "split.count": len(cuts) + 1, "split.tensors.count": len(names)}
        own |= metadata | keys if i == 0 else {}
        paths.append(folder / f"tiny-{i + 1:05}-of-{len(cuts) + 1:05}.gguf")
        write_gguf(paths[-1], Part(source).cut(names[first:last], own))
    return paths


@pytest.fixture
def whole(tmp_path):
    return write_tiny_llama(tmp_path / "whole.gguf")


@pytest.fixture
def parts(whole, tmp_path):
    return split(whole, tmp_path, [3, 4])


@given(st.data())
def test_the_parts_are_the_whole(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("split")
    source = write_tiny_llama(folder / "whole.gguf")
    with open_model(source) as whole:
        count = len(whole.tensors)
        cuts = data.draw(st.lists(st.integers(1, count - 1), min_size=1, max_size=4, unique=True))
        paths = split(source, folder, sorted(cuts))
        with open_model(data.draw(st.sampled_from(paths))) as found:
            assert list(found.tensors.items()) == [
                (name, found.tensors[name]) for name in whole.tensors
            ]
            assert dict(found.metadata).keys() == dict(whole.metadata).keys()
            for name in whole.tensors:
                assert np.array_equal(found.raw(name)[:], whole.raw(name)[:])


def test_a_model_in_parts_runs_and_is_named_by_all_of_them(whole, parts):
    greedy = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
    once = LLM(whole).generate("ab", **greedy).token_ids
    assert LLM(parts[1]).generate("ab", **greedy).token_ids == once
    assert model_name(parts[2]) == "tiny"
    assert files_of(parts[1]) == parts
    assert size_of(parts[0]) == sum(path.stat().st_size for path in parts)
    before = identify(parts[0], stat_model(parts[0]))
    raw = bytearray(parts[2].read_bytes())
    raw[-40] ^= 1
    parts[2].write_bytes(raw)
    after = identify(parts[0], stat_model(parts[0]))
    assert after.tokenizer == before.tokenizer
    assert after.weights != before.weights


def refused(path, *words):
    with pytest.raises(InputError) as caught:
        LLM(path)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_part_is_named(parts):
    parts[1].unlink()
    refused(parts[0], "of the 3 parts", "tiny-00002-of-00003.gguf is missing", str(parts[0].parent))
    parts[2].unlink()
    refused(parts[0], "tiny-00002-of-00003.gguf and 1 more are missing")


def test_parts_in_another_order_are_refused(parts):
    held = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(held)
    refused(parts[0], "tiny-00002-of-00003.gguf", "part 2 of 3", "split.no (from 0) is 2")


def test_a_part_under_another_name_is_refused(parts, tmp_path):
    alone = tmp_path / "alone.gguf"
    shutil.copy(parts[0], alone)
    refused(alone, "part 1 of 1", "split.count 3")


def test_a_whole_file_under_a_parts_name_is_refused(whole, tmp_path):
    for i in (1, 2):
        shutil.copy(whole, tmp_path / f"x-0000{i}-of-00002.gguf")
    refused(tmp_path / "x-00001-of-00002.gguf", "part 1 of 2", "split.count 1")


def test_parts_of_different_models_are_refused(whole, parts, tmp_path):
    (tmp_path / "other").mkdir()
    other = split(whole, tmp_path / "other", [2, 4])
    shutil.copy(other[1], parts[1])
    refused(parts[0], "different models")
    other = split(whole, tmp_path / "other", [4, 5])
    shutil.copy(other[1], parts[1])
    shutil.copy(other[2], parts[2])
    refused(parts[0], "tensors, and its 3 parts have")


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
@pytest.mark.parametrize("value", ["1", -1, 2**40, 1.5, ["1"]])
def test_keys_that_make_no_sense_are_refused(whole, tmp_path, key, value):
    paths = split(whole, tmp_path, [3], **{key: value})
    with pytest.raises(FormatError):
        open_model(paths[0])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("m.gguf", ["m.gguf"]),
        ("m-00001-of-00001.gguf", ["m-00001-of-00001.gguf"]),
        ("q/m-00002-of-00002.GGUF", ["q/m-00001-of-00002.GGUF", "q/m-00002-of-00002.GGUF"]),
        ("m-00003-of-00002.gguf", ["m-00003-of-00002.gguf"]),
        ("m-00000-of-00002.gguf", ["m-00000-of-00002.gguf"]),
        ("m-1-of-2.gguf", ["m-1-of-2.gguf"]),
    ],
)
def test_the_names_of_parts(name, parts):
    assert parts_of(name) == parts
    assert name in parts


def test_the_name_of_the_whole():
    assert whole_name("m-00003-of-00008.gguf") == "m.gguf"
    assert whole_name("m.gguf") == "m.gguf"
