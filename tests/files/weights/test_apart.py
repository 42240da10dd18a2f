"""Tensors that hold several are read as those: the same numbers, the same model."""

from dataclasses import replace

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.loading.open import open_model
from cutaway.errors import FormatError
from cutaway.files.weights import TensorInfo
from cutaway.files.weights.file import ModelFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.quantised import QuantisedFile
from support.random_llama import write_tiny_llama


class Fused(ModelFile):
    """A file with gate and up of all experts of a layer in one tensor."""

    def __init__(self, file):
        self.file, self.path, self.metadata = file, file.path, file.metadata
        self.tensors, self.bytes = {}, {}
        for name, info in file.tensors.items():
            stored = file.raw(name)
            if "_up_exps" in name:
                continue
            if "_gate_exps" in name:
                count, rows, cols = info.shape
                up = file.raw(name.replace("_gate_exps", "_up_exps"))
                halves = [part.reshape(count, rows, -1) for part in (stored, up)]
                stored = np.concatenate(halves, axis=1).reshape(-1)
                name = name.replace("_gate_exps", "_gate_up_exps")  # noqa: PLW2901
                info = replace(info, name=name, shape=(count, 2 * rows, cols))  # noqa: PLW2901
            self.tensors[name] = TensorInfo(name, info.format, info.shape)
            self.bytes[name] = stored

    def raw(self, name):
        return self.bytes[name]

    def release(self, name):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("format", [None, "q8_0"])
def test_gate_and_up_in_one_tensor_are_the_same_model(tmp_path, format):
    whole, one = tmp_path / "whole.gguf", tmp_path / "one.gguf"
    with open_model(write_tiny_llama(tmp_path / "f32.gguf", experts=4)) as exact:
        file = QuantisedFile(exact, format) if format else exact
        write_gguf(whole, file)
        write_gguf(one, Fused(file))
    with open_model(whole) as apart, open_model(one) as ours:
        assert {*ours.tensors} == {*apart.tensors}
        for name, info in apart.tensors.items():
            assert (ours.info(name).shape, ours.info(name).format) == (info.shape, info.format)
            assert np.array_equal(ours.raw(name), apart.raw(name))
    expected, found = (LLM(path, progress=False).logits([3, 4, 5]) for path in (whole, one))
    assert np.array_equal(found, expected)


def test_one_that_cannot_be_halved_or_is_there_twice_is_refused(tmp_path):
    odd = {"blk.0.ffn_gate_up_exps.weight": np.ones((2, 3, 32), np.float32)}
    with pytest.raises(FormatError, match=r"ffn_gate_up_exps\.weight has 3 rows"):
        open_model(write_tiny_llama(tmp_path / "odd.gguf", vectors=odd))
    twice = {
        f"blk.0.ffn_{x}_exps.weight": np.ones((2, 2, 32), np.float32) for x in ("gate_up", "up")
    }
    with pytest.raises(FormatError, match=r"ffn_up_exps\.weight' is there twice"):
        open_model(write_tiny_llama(tmp_path / "twice.gguf", vectors=twice))
