"""A file in another format: which tensors change, into what, and that each is exactly that."""

import json

import gguf
import numpy as np
import pytest

from cutaway.base import _native
from cutaway.errors import FormatError, InputError
from cutaway.files.weights import FORMATS, GGUFFile, TensorInfo, dequantize, quantised
from cutaway.files.weights.importance import ColumnSums, Importance
from cutaway.files.weights.mixes import MIXES, PLAIN_MIXES, fitting, formats_of, is_matrix
from cutaway.files.weights.quantised import QuantisedFile, refuse_quantised
from support.llama_quantize import MIXES_FILE, SHARED_MIXES, choose_all, models
from support.llama_quantize import quantise as by_llama_cpp
from support.random_llama import write_tiny_llama

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
    with QuantisedFile(GGUFFile(halves), "q8_0") as file:
        assert formats(file) == kept | odd | dict.fromkeys(MATRICES, "Q8_0")
        assert file.fallback_tensors == ("blk.0.odd.weight",)
    with QuantisedFile(GGUFFile(halves), "q4_1") as file:
        better = {"output": "Q6_K"}
        assert formats(file) == kept | odd | dict.fromkeys(MATRICES, "Q4_1") | better
    with QuantisedFile(GGUFFile(halves), "q6_k") as file:
        short = {"blk.0.ffn_down": "Q8_0"}
        assert formats(file) == kept | odd | dict.fromkeys(MATRICES, "Q6_K") | short
        assert file.fallback_tensors == ("blk.0.ffn_down.weight", "blk.0.odd.weight")
    with QuantisedFile(GGUFFile(halves), "bf16") as file:
        assert formats(file) == kept | {"blk.0.odd": "BF16"} | dict.fromkeys(MATRICES, "BF16")
        assert file.fallback_tensors == ()


def test_the_metadata_tells(halves):
    file = QuantisedFile(GGUFFile(halves), "q6_k")
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["general.file_type"] == 18
    assert file.metadata["general.quantization_version"] == 2
    assert file.value_types == {"general.architecture": 8}


@pytest.mark.parametrize("source", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("to", ["q8_0", "q6_k", "q4_k_m", "q4_1", "q2_k", "f16", "f32"])
def test_each_tensor_is_the_source_quantised(tmp_path, source, to):
    plain = GGUFFile(write(tmp_path / "model.gguf", source))
    file, pool = QuantisedFile(plain, to, threads=2), _native.Pool(1)
    for name, info in file.tensors.items():
        raw = plain.raw(name)[:]
        if info.format != plain.tensors[name].format:
            out = np.empty(info.nbytes, np.uint8)
            numbers = plain.dequantize(name).reshape(-1).view(np.uint8)
            assert _native.quantise(pool, "F32", numbers, info.format, out) == -1
            raw = out
        assert np.array_equal(file.raw(name)[:], raw) and not file.raw(name)[:].flags.writeable
        expected = dequantize(FORMATS[info.format], raw).reshape(info.shape)
        assert np.array_equal(file.dequantize(name), expected)


def test_some_tensors_may_be_given_a_format(halves):
    file = QuantisedFile(GGUFFile(halves), "q8_0", formats={"blk.0.attn_q.weight": "Q3_K"})
    assert {info.format for info in file.tensors.values()} == {"Q8_0", "Q3_K", "F32", "F16"}
    plain = QuantisedFile(GGUFFile(halves), "q3_k_s")
    assert np.array_equal(file.raw("blk.0.attn_q.weight")[:], plain.raw("blk.0.attn_q.weight")[:])


def weights(shape, seed=1):
    rng = np.random.default_rng(seed)
    return ColumnSums(
        rng.random(shape, np.float32), rng.integers(1, 9, shape[0]).astype(np.float32)
    )


@pytest.mark.parametrize("at_once", [256, 512, 1 << 22])
def test_importance_is_of_each_matrix_and_each_expert(halves, monkeypatch, at_once):
    monkeypatch.setattr(quantised, "_AT_ONCE", at_once)
    of = {"blk.0.ffn_up_exps.weight": weights((4, 256)), "blk.0.attn_q.weight": weights((1, 256))}
    source = GGUFFile(halves)
    file = QuantisedFile(source, "q4_0", importance=Importance(of, (), 1, 512))
    plain, pool = QuantisedFile(source, "q4_0"), _native.Pool(1)
    for name, (sums, counts) in of.items():
        matrices = source.dequantize(name).reshape(len(counts), -1)
        made = np.empty((len(counts), FORMATS["Q4_0"].nbytes(matrices[0].size)), np.uint8)
        for i, matrix in enumerate(matrices):
            mean = sums[i] / counts[i]
            assert _native.quantise(pool, "F32", matrix.view(np.uint8), "Q4_0", made[i], mean) == -1
        assert np.array_equal(file.raw(name)[:], made.reshape(-1))
        assert not np.array_equal(file.raw(name)[:], plain.raw(name)[:])
    assert np.array_equal(
        file.raw("blk.0.ffn_down.weight")[:], plain.raw("blk.0.ffn_down.weight")[:]
    )
    assert file.metadata["quantize.imatrix.entries_count"] == 2
    assert file.metadata["quantize.imatrix.chunks_count"] == 1


def test_a_whole_file_is_what_llama_cpp_writes(tmp_path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    tiny = write_tiny_llama(tmp_path / "tiny.gguf", hidden=256, feed_forward=512, layers=9)
    source, given = GGUFFile(tiny), {}
    for name in source.tensors:
        if name.startswith("blk.") and is_matrix(source.tensors[name]):
            given[name] = weights((1, source.tensors[name].shape[-1]))
    for mix in SHARED_MIXES:
        for of in (None, given):
            plain = of and {name: sums[0] / counts[0] for name, (sums, counts) in of.items()}
            by_llama_cpp(tiny, out := tmp_path / "theirs.gguf", mix, plain)
            importance = of and Importance(of, (), 1, 512)
            ours, theirs = QuantisedFile(source, mix, importance=importance), GGUFFile(out)
            for name, info in theirs.tensors.items():
                assert ours.tensors[name].format == info.format, (mix, name)
                assert np.array_equal(ours.raw(name)[:], theirs.raw(name)[:]), (mix, name)


def test_where_it_is_cut_changes_nothing(halves, monkeypatch):
    whole = QuantisedFile(GGUFFile(halves), "q4_0")
    expected = {name: whole.raw(name)[:] for name in whole.tensors}
    monkeypatch.setattr(quantised, "_AT_ONCE", 2 * 256)
    for name, raw in expected.items():
        assert np.array_equal(whole.raw(name)[:], raw)


def test_a_row_longer_than_what_is_taken_at_once_is_cut(halves, monkeypatch):
    """Rows may hold more weights than an int32 counts."""
    whole, sizes = QuantisedFile(GGUFFile(halves), "q8_0"), []
    expected = {name: whole.raw(name)[:] for name in whole.tensors}

    def counted(pool, format, data, *to):
        sizes.append(data.size // FORMATS[format].nbytes(1))
        return quantise(pool, format, data, *to)

    quantise = _native.quantise
    monkeypatch.setattr(_native, "quantise", counted)
    monkeypatch.setattr(quantised, "_AT_ONCE", 64)
    for name, raw in expected.items():
        assert np.array_equal(whole.raw(name)[:], raw)
    assert max(sizes) == 64


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "output_norm.weight"])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, name, wrong):
    numbers = np.zeros(SHAPES[name])
    numbers.flat[-1] = wrong
    file = QuantisedFile(GGUFFile(write(tmp_path / "model.gguf", replaced={name: numbers})), "q4_0")
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
        QuantisedFile(GGUFFile(path), "f16").raw(name)
    assert np.allclose(QuantisedFile(GGUFFile(path), "q8_0").dequantize(name), numbers, rtol=1e-3)


def test_a_second_time_is_refused_in_words(halves, tmp_path):
    refuse_quantised(GGUFFile(halves), "never")
    path = write(tmp_path / "four.gguf", "Q4_1")
    with pytest.raises(InputError, match=r"four.gguf is quantised already \(Q4_1\).*: do this"):
        refuse_quantised(GGUFFile(path), "do this")


def test_a_closed_file_and_an_unknown_name_are_refused(halves):
    file = QuantisedFile(GGUFFile(halves), "q8_0")
    raw = file.raw("output.weight")[:]
    with pytest.raises(InputError, match="no tensor named 'none'"):
        file.raw("none")
    assert np.array_equal(file.raw("output.weight")[:], raw)
    file.close()
    with pytest.raises(InputError, match="closed"):
        file.raw("output.weight")


# -- which format each tensor gets: llama.cpp's choice, of models of many shapes -------------------


def ours(mix, metadata, tensors, *, with_importance):
    formats = formats_of(mix, metadata, tensors, with_importance=with_importance)
    return {
        name: fitting(formats[name], info.shape[-1]) if is_matrix(info) else info.format
        for name, info in tensors.items() if len(info.shape) > 1
    }  # fmt: skip


def test_it_is_what_llama_cpp_chooses():
    """Which support/llama_quantize.py noted, of llama-cpp-python 0.3.36."""
    assert choose_all(ours) == json.loads(MIXES_FILE.read_text())


@pytest.mark.parametrize("value", [1.0, "x", [], [1.5], ["x"]])
def test_a_count_that_is_none_is_refused_by_name(value):
    with pytest.raises(FormatError, match=r"llama\.block_count must be a whole number, not "):
        formats_of(
            "q4_k_m", {"general.architecture": "llama", "llama.block_count": value}, {},
        )  # fmt: skip


@pytest.mark.parametrize("mix", PLAIN_MIXES)
def test_what_quantises_nothing_is_the_same_for_all_matrices(mix):
    matrix = TensorInfo("blk.0.attn_v.weight", "F32", (3, 5))
    assert formats_of(mix, {}, {matrix.name: matrix}) == {matrix.name: mix.upper()}


@pytest.mark.parametrize("columns", [1, 32, 40, 96, 256, 288, 512])
def test_rows_are_whole_quant_blocks_of_what_they_get(columns):
    for format in FORMATS:
        got = fitting(format, columns)
        assert columns % FORMATS[got].quant_block_elements == 0
        assert got == format or columns % FORMATS[format].quant_block_elements


def test_mxfp4_is_for_all_matrices_but_the_output():
    for metadata, tensors in models().values():
        formats = formats_of("mxfp4", metadata, tensors)
        others = {name for name, format in formats.items() if format != "MXFP4"}
        last = "output.weight" if "output.weight" in tensors else "token_embd.weight"
        assert others == {last} and formats[last] == "Q8_0"


def test_vectors_are_no_matrices_whatever_they_are_called():
    for shape, is_one in [((7,), False), ((1, 7), False), ((2, 7), True), ((2, 1, 7), True)]:
        assert is_matrix(TensorInfo("blk.0.attn_q.weight", "F16", shape)) == is_one
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.bias"):
        assert not is_matrix(TensorInfo(name, "F16", (4, 4)))


def test_every_mix_is_of_a_format():
    numbers = {mix.file_type for mix in (MIXES | PLAIN_MIXES).values()}
    assert len(numbers) == len(MIXES) + len(PLAIN_MIXES) - 1  # both of MXFP4 have one
    assert {mix.format for mix in MIXES.values()} <= FORMATS.keys()
