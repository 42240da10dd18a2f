"""Which format each tensor gets: llama.cpp's choice, of models of many shapes."""

import json

import pytest

from cutaway.errors import FormatError
from cutaway.files.weights import FORMATS, TensorInfo
from cutaway.files.weights.mixes import MIXES, PLAIN_MIXES, fitting, formats_of, is_matrix
from support.llama_quantize import CHOSEN, chosen, models


def ours(mix, metadata, tensors, *, with_importance):
    formats = formats_of(mix, metadata, tensors, with_importance=with_importance)
    return {
        name: fitting(formats[name], info.shape[-1]) if is_matrix(info) else info.format
        for name, info in tensors.items() if len(info.shape) > 1
    }  # fmt: skip


def test_it_is_what_llama_cpp_chooses():
    """Which support/llama_quantize.py noted, of llama-cpp-python 0.3.36."""
    assert chosen(ours) == json.loads(CHOSEN.read_text())


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
