"""RWKV-7's folders: what is refused, and what llama.cpp wants of their GGUF files."""

import pytest

from cutaway import LLM, FormatError
from cutaway.compute.loading.open import open_model
from support import tiny_rwkv
from support.random_models import edit

pytest.importorskip("safetensors", reason="needs safetensors: pip install '.[test-transformers]'")
from safetensors.numpy import load_file, save_file


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("attn", {"layers": [1]}, "only None is"), ("norm_first", False, "only True is"),
        ("norm_bias", False, "only True is"), ("hidden_act", "relu", "only 'sqrelu' is"),
        ("value_dim", [128, 128, 256], "only 128 is"),
    ],
)  # fmt: skip
def test_what_no_graph_computes_is_refused(tmp_path, key, value, allowed):
    tiny_rwkv.save("rwkv7", tmp_path)
    edit(tmp_path / "config.json", **{key: value})
    with pytest.raises(FormatError, match=rf"config\.json: {key} is .*; {allowed}"):
        LLM(tmp_path, backend="reference")


def test_the_refusal_of_a_list_of_layers_is_short(tmp_path):
    tiny_rwkv.save("rwkv7", tmp_path)
    edit(tmp_path / "config.json", num_hidden_layers=9000)
    with pytest.raises(FormatError, match=r"^.{,200}: value_dim is \[128, 128, 128\], .{,60}$"):
        LLM(tmp_path, backend="reference")


def test_heads_must_fill_a_row(tmp_path):
    tiny_rwkv.save("rwkv7", tmp_path)
    edit(tmp_path / "config.json", head_dim=48)
    with pytest.raises(FormatError, match=r"128 numbers are no heads of 48 \(rwkv7\.wkv\.head"):
        LLM(tmp_path, backend="reference")


def test_a_layer_has_all_its_mixtures(tmp_path):
    tiny_rwkv.save("rwkv7", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.attn.x_a"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"layer 1 lacks one of the tensors attn\.x_r"):
        LLM(tmp_path, backend="reference")


def test_a_folder_has_what_llama_cpp_wants_of_a_file(tmp_path):
    """Ranks as keys, one tensor of mixtures, and values of the first layer that nothing reads."""
    tiny_rwkv.save("rwkv7", tmp_path)
    with open_model(tmp_path) as folder:
        ranks = {k: v for k, v in folder.metadata.items() if "lora_rank" in k}
        shapes = {name: info.shape for name, info in folder.tensors.items()}
        context = folder.metadata["rwkv7.context_length"]
    names = {"decay": 32, "iclr": 64, "value_residual_mix": 96, "gate": 128}
    assert ranks == {f"rwkv7.attention.{name}_lora_rank": rank for name, rank in names.items()}
    assert shapes["blk.2.time_mix_lerp_fused.weight"] == (6, 1, 1, 128)
    assert shapes["blk.0.time_mix_v1.weight"] == (64, 128)
    assert shapes["blk.0.time_mix_v0.weight"] == (128,)
    assert context == 2**20
