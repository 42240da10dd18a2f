"""Factors of a whole matrix, which llama.cpp's converter writes beside NVFP4."""

import gguf
import numpy as np
import pytest

from cutaway.errors import FormatError
from cutaway.files.weights import GGUFFile
from support.random_llama import write_tiny_llama

WIDE = {"heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 256, "feed_forward": 256, "layers": 1}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "factors.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("one.weight", np.ones((2, 3), np.float32))
    writer.add_tensor("one.scale", np.float32([0.5]))
    writer.add_tensor("several.weight", np.ones((2, 1, 3), np.float32))
    writer.add_tensor("several.scale", np.float32([2, 3]))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_matrix_or_each_of_a_stack_is_multiplied(path):
    with GGUFFile(path) as file:
        assert file.multiplied("one.weight").tolist() == [[0.5] * 3] * 2
        assert file.multiplied("several.weight").tolist() == [[[2] * 3], [[3] * 3]]
        assert file.dequantize("one.weight").tolist() == [[1] * 3] * 2
        assert file.factors("one.scale") is None
        assert file.multiplied("one.scale").tolist() == [0.5]


def scaled(directory, factor):
    """A model whose up projection has a factor, and an input_scale that only 4 bits would read."""
    extra = {"blk.0.ffn_up.scale": factor, "blk.0.ffn_up.input_scale": [0.1]}
    return write_tiny_llama(
        directory / "scaled.gguf", **WIDE, format="NVFP4",
        vectors={name: np.float32(values) for name, values in extra.items()},
    )  # fmt: skip


@pytest.mark.parametrize("factor", [1.0, -3.0])
def test_a_factor_multiplies_products(factor, tmp_path):
    llm = pytest.importorskip("cutaway").LLM
    native, reference = (
        llm(scaled(tmp_path, [factor]), backend=backend, progress=False)
        for backend in ("cpu", "reference")
    )
    tokens = list(range(3, 40))
    ours, theirs = native.logits(tokens), reference.logits(tokens)
    assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(theirs)
    plain = llm(write_tiny_llama(tmp_path / "plain.gguf", **WIDE, format="NVFP4"), progress=False)
    assert np.array_equal(plain.logits(tokens), ours) == (factor == 1)


def test_a_factor_of_another_shape_is_refused(tmp_path):
    llm = pytest.importorskip("cutaway").LLM
    with pytest.raises(FormatError, match=r"blk.0.ffn_up.scale has shape \(2,\), not \(1,\)"):
        llm(scaled(tmp_path, [1, 2]), progress=False)
