"""A file in another format: which tensors change, into what, and that each is exactly that."""

import gguf
import numpy as np
import pytest

from cutaway.base import _native
from cutaway.errors import FormatError, InputError
from cutaway.files.weights import FORMATS, GGUFFile, dequantize, quantised
from cutaway.files.weights.quantised import QuantisedFile, refuse_quantised

SHAPES = {
    "token_embd.weight": (5, 256), "position_embd.weight": (4, 256), "output.weight": (5, 256),
    "output_norm.weight": (256,), "blk.0.attn_q.weight": (7, 256), "blk.0.attn_q.bias": (7,),
    "blk.0.attn_q_norm.weight": (2, 256), "blk.0.ffn_gate_inp.weight": (4, 256),
    "blk.0.ffn_up_exps.weight": (4, 3, 256), "blk.0.ffn_down.weight": (6, 96),
    "blk.0.odd.weight": (6, 40),
}  # fmt: skip
MATRICES = {"token_embd", "output", "blk.0.attn_q", "blk.0.ffn_up_exps", "blk.0.ffn_down"}


def write(path, format="F16", replaced=()):
    """A file of tensors alone; replaced: the numbers of some."""
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(path, "llama")
    writer.add_file_type(1)
    kinds = {"F16": np.float16, "F32": np.float32}
    for name, shape in SHAPES.items():
        numbers = dict(replaced).get(name, rng.normal(size=shape)).astype(np.float32)
        kind = gguf.GGMLQuantizationType[format]
        if format in kinds:
            writer.add_tensor(name, numbers.astype(kinds[format]))
        elif format == "BF16" or (numbers.ndim > 1 and shape[-1] % 32 == 0):
            writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, numbers)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def halves(tmp_path):
    return write(tmp_path / "halves.gguf")


def formats(file):
    return {name.removesuffix(".weight"): info.format for name, info in file.tensors.items()}


def test_which_tensors_become_what(halves):
    kept = {"position_embd": "F32", "output_norm": "F32", "blk.0.attn_q.bias": "F32",
            "blk.0.attn_q_norm": "F32", "blk.0.ffn_gate_inp": "F32"}  # fmt: skip
    odd = {"blk.0.odd": "F16"}
    with QuantisedFile(GGUFFile(halves), "Q8_0") as file:
        assert formats(file) == kept | odd | dict.fromkeys(MATRICES, "Q8_0")
        assert file.fallback_tensors == ("blk.0.odd.weight",)
    with QuantisedFile(GGUFFile(halves), "Q4_1") as file:
        better = {"token_embd": "Q6_K", "output": "Q6_K"}
        assert formats(file) == kept | odd | dict.fromkeys(MATRICES, "Q4_1") | better
    with QuantisedFile(GGUFFile(halves), "Q6_K") as file:
        short = {"blk.0.ffn_down": "Q8_0"}
        assert formats(file) == kept | odd | dict.fromkeys(MATRICES, "Q6_K") | short
        assert file.fallback_tensors == ("blk.0.ffn_down.weight", "blk.0.odd.weight")
    with QuantisedFile(GGUFFile(halves), "BF16") as file:
        assert formats(file) == kept | {"blk.0.odd": "BF16"} | dict.fromkeys(MATRICES, "BF16")
        assert file.fallback_tensors == ()


def test_the_metadata_tells(halves):
    file = QuantisedFile(GGUFFile(halves), "Q6_K")
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["general.file_type"] == 18
    assert file.metadata["general.quantization_version"] == 2
    assert file.value_types == {"general.architecture": 8}


@pytest.mark.parametrize("source", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("to", ["Q8_0", "Q6_K", "Q4_1", "Q4_0", "F16", "F32"])
def test_each_tensor_is_the_source_quantised(tmp_path, source, to):
    plain = GGUFFile(write(tmp_path / "model.gguf", source))
    file, pool = QuantisedFile(plain, to, threads=2), _native.Pool(1)
    for name, info in file.tensors.items():
        raw = plain.raw(name)
        if info.format != plain.tensors[name].format:
            out = np.empty(info.nbytes, np.uint8)
            numbers = plain.dequantize(name).reshape(-1).view(np.uint8)
            assert _native.quantise(pool, "F32", numbers, info.format, out) == -1
            raw = out
        assert np.array_equal(file.raw(name), raw) and not file.raw(name).flags.writeable
        expected = dequantize(FORMATS[info.format], raw).reshape(info.shape)
        assert np.array_equal(file.dequantize(name), expected)


def test_where_it_is_cut_changes_nothing(halves, monkeypatch):
    whole = QuantisedFile(GGUFFile(halves), "Q4_0")
    expected = {name: whole.raw(name) for name in whole.tensors}
    monkeypatch.setattr(quantised, "_AT_ONCE", 2 * 256)
    for name, raw in expected.items():
        assert np.array_equal(whole.raw(name), raw)


def test_a_row_longer_than_what_is_taken_at_once_is_cut(halves, monkeypatch):
    """Rows may hold more weights than an int32 counts."""
    whole, sizes = QuantisedFile(GGUFFile(halves), "Q8_0"), []
    expected = {name: whole.raw(name) for name in whole.tensors}

    def counted(pool, format, data, *to):
        sizes.append(data.size // FORMATS[format].nbytes(1))
        return quantise(pool, format, data, *to)

    quantise = _native.quantise
    monkeypatch.setattr(_native, "quantise", counted)
    monkeypatch.setattr(quantised, "_AT_ONCE", 64)
    for name, raw in expected.items():
        assert np.array_equal(whole.raw(name), raw)
    assert max(sizes) == 64


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "output_norm.weight"])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, name, wrong):
    numbers = np.zeros(SHAPES[name])
    numbers.flat[-1] = wrong
    file = QuantisedFile(GGUFFile(write(tmp_path / "model.gguf", replaced={name: numbers})), "Q4_0")
    with pytest.raises(
        FormatError, match=f"model.gguf: the tensor '{name}' holds weights .* not fin"
    ):
        file.raw(name)


def test_weights_that_are_too_large_are_refused_by_name(tmp_path):
    name = "blk.0.attn_q.weight"
    numbers = np.full(SHAPES[name], 1e5)
    path = write(tmp_path / "model.gguf", "F32", replaced={name: numbers})
    with pytest.raises(
        FormatError, match=rf"'{name}' holds weights up to 1e\+05, .* large for F16"
    ):
        QuantisedFile(GGUFFile(path), "F16").raw(name)
    assert np.allclose(QuantisedFile(GGUFFile(path), "Q8_0").dequantize(name), numbers, rtol=1e-3)


def test_a_second_time_is_refused_in_words(halves, tmp_path):
    refuse_quantised(GGUFFile(halves), "never")
    path = write(tmp_path / "four.gguf", "Q4_1")
    with pytest.raises(InputError, match=r"four.gguf is quantised already \(Q4_1\).*: do this"):
        refuse_quantised(GGUFFile(path), "do this")


def test_a_closed_file_and_an_unknown_name_are_refused(halves):
    file = QuantisedFile(GGUFFile(halves), "Q8_0")
    raw = file.raw("output.weight")
    with pytest.raises(InputError, match="no tensor named 'none'"):
        file.raw("none")
    file.release("output.weight")
    assert np.array_equal(file.raw("output.weight"), raw)
    file.close()
    with pytest.raises(InputError, match="closed"):
        file.raw("output.weight")
