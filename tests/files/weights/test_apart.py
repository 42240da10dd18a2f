"""Tensors that hold several are read as those: the same numbers, the same model."""

from dataclasses import replace

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.loading.open import open_model
from cutaway.errors import FormatError
from cutaway.files.weights import FORMATS, TensorInfo, dequantize
from cutaway.files.weights.file import ModelFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.quantised import QuantisedFile
from support.random_llama import random_matrix, write_tiny_llama


class Held(ModelFile):
    """A file whose tensors are in memory."""

    def __init__(self, path, metadata):
        self.path, self.metadata, self.tensors, self.bytes = path, metadata, {}, {}

    def raw(self, name):
        return self.bytes[name]

    def close(self):
        pass


class Fused(Held):
    """A file with gate and up of all experts of a layer in one tensor."""

    def __init__(self, file):
        super().__init__(file.path, file.metadata)
        for name, info in file.tensors.items():
            stored = file.raw(name)[:]
            if "_up_exps" in name:
                continue
            if "_gate_exps" in name:
                count, rows, cols = info.shape
                up = file.raw(name.replace("_gate_exps", "_up_exps"))[:]
                halves = [part.reshape(count, rows, -1) for part in (stored, up)]
                stored = np.concatenate(halves, axis=1).reshape(-1)
                name = name.replace("_gate_exps", "_gate_up_exps")  # noqa: PLW2901
                info = replace(info, name=name, shape=(count, 2 * rows, cols))  # noqa: PLW2901
            self.tensors[name] = TensorInfo(name, info.format, info.shape)
            self.bytes[name] = stored


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
            assert np.array_equal(ours.raw(name)[:], apart.raw(name)[:])
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


LATENT = {
    "context_length": 64, "embedding_length": 32, "block_count": 1, "expert_count": 0,
    "attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.kv_lora_rank": 32, "rope.dimension_count": 16, "rope.freq_base": 900.0,
}  # fmt: skip
OLD = {
    "attention.head_count_kv": 2, "attention.key_length": 48, "attention.value_length": 32,
}  # fmt: skip
NEW = {
    "attention.head_count_kv": 1, "attention.key_length": 48, "attention.value_length": 32,
    "attention.key_length_mla": 48, "attention.value_length_mla": 32,
}  # fmt: skip


def latent_files(tmp_path, kind):
    """DeepSeek's tensors of one layer, with keys and values in one, apart, and in both ways."""
    with open_model(write_tiny_llama(tmp_path / "words.gguf")) as words:
        tokens = {k: v for k, v in words.metadata.items() if k.startswith("tokenizer")}
        vocab = words.info("token_embd.weight").shape[0]
    rng = np.random.default_rng(4)
    shapes = {
        "token_embd": (vocab, 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
        "blk.0.attn_q": (96, 32), "blk.0.attn_kv_a_mqa": (48, 32), "blk.0.attn_kv_a_norm": (32,),
        "blk.0.attn_kv_b": (2 * 64, 32), "blk.0.attn_output": (32, 64), "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip
    for name, keys, ways in (("old", OLD, "kv"), ("new", NEW, "k v"), ("both", NEW, "kv k v")):
        metadata = {f"deepseek2.{k}": v for k, v in (LATENT | keys).items()}
        file = Held(tmp_path, {"general.architecture": "deepseek2"} | metadata | tokens)
        rng = np.random.default_rng(4)
        for tensor, shape in shapes.items():
            format = kind if len(shape) > 1 else "F32"
            found = random_matrix(rng, format, shape, shape[-1] ** -0.5).view(np.uint8)
            made = {tensor: (format, shape, found)}
            if "kv_b" in tensor:
                each = found.reshape(2, 64, -1)
                numbers = dequantize(FORMATS[format], found.reshape(-1)).reshape(2, 64, 32)
                turned = np.ascontiguousarray(numbers[:, :32].swapaxes(1, 2))
                made |= {
                    "blk.0.attn_k_b": ("F32", (2, 32, 32), turned.view(np.uint8)),
                    "blk.0.attn_v_b": (format, (2, 32, 32), np.ascontiguousarray(each[:, 32:])),
                }
                made = {f"blk.0.attn_{way}_b": made[f"blk.0.attn_{way}_b"] for way in ways.split()}
            for one, (stored, size, data) in made.items():
                file.tensors[f"{one}.weight"] = TensorInfo(f"{one}.weight", stored, size)
                file.bytes[f"{one}.weight"] = data.reshape(-1)
        write_gguf(tmp_path / f"{name}.gguf", file)
        yield tmp_path / f"{name}.gguf"


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_keys_and_values_of_a_latent_in_one_matrix_are_those_of_two(tmp_path, kind):
    """Files of DeepSeek from before 2025, from after, and those that have both."""
    ids = [3, 4, 5, 100, 7]
    first, *others = (LLM(path, progress=False) for path in latent_files(tmp_path, kind))
    expected = first.logits(ids)
    for other in others:
        assert np.array_equal(other.logits(ids), expected)
    bytes_a_token = 2 * (16 + 32)  # one layer's latent and rotated numbers, in halves
    assert first.model.kv.bytes_per_token == bytes_a_token
    reference = LLM(tmp_path / "old.gguf", backend="reference", progress=False).logits(ids)
    near = 0.005 if kind == "F32" else 0.05
    assert np.linalg.norm(expected - reference) < near * np.linalg.norm(reference)
