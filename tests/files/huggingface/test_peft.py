"""Adapters in folders of PEFT: what transformers computes with their product in its weights."""

import json
from math import sqrt

import numpy as np
import pytest

from cutaway import LLM
from cutaway.errors import FormatError, InputError
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")
import torch
from safetensors.numpy import load_file, save_file
from transformers.pytorch_utils import Conv1D

from cutaway.files.huggingface import HuggingFaceFolder
from support.random_models import IDS, logits, save

OTHERS = ["llama-biased", "mistral", "smollm3", "granite", "qwen2", "qwen3", "gemma2", "gemma3",
          "olmo2", "qwen3_moe"]  # fmt: skip
FAMILIES = ["llama", "phi3", "gpt2", "gpt_neox", "mixtral",
            *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]  # fmt: skip
"""Those first whose rows are moved, whose matrices are several in one or transposed, or experts."""
PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "use_rslora": False}


def linear(model):
    """The modules in its layers that PEFT can adapt, by name, but for experts."""
    kinds = (torch.nn.Linear, Conv1D)
    found = {n: m for n, m in model.named_modules() if isinstance(m, kinds) and "head" not in n}
    return {n: m for n, m in found.items() if n != "embed_out" and "experts" not in n}


def adapter(model, folder, *, seed=0, dtype=np.float32, scale=None, **config):
    """Write a random one, and add its product to the model's weights.

    scale: (module, rank) -> what its product is multiplied by
    """
    rng, tensors, ranks = np.random.default_rng(seed), {}, config.get("rank_pattern", {})
    config = PLAIN | config
    for name, module in linear(model).items():
        is_conv = not isinstance(module, torch.nn.Linear)  # which keeps (in, out)
        out, inner = module.weight.shape[::-1] if is_conv else module.weight.shape
        rank = next((r for k, r in ranks.items() if name.endswith(k)), config["r"])
        a = (rng.normal(size=(rank, inner)) / sqrt(inner)).astype(dtype)
        b = (rng.normal(size=(out, rank)) / sqrt(rank)).astype(dtype)
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        factor = scale(name, rank) if scale else config["lora_alpha"] / rank
        product = torch.from_numpy(factor * (b.astype(np.float32) @ a.astype(np.float32)))
        with torch.no_grad():
            module.weight += product.T if is_conv else product
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_merged_weights(name, tmp_path):
    model = save(name, tmp_path / name)
    plain = logits(model, IDS)
    lora = adapter(model, tmp_path / "adapter")
    theirs = logits(model, IDS)
    with LLM(tmp_path / name, backend="reference", lora=lora) as llm:
        ours = llm.logits(IDS)
    assert np.abs(ours - theirs).max() < 2e-3
    assert np.abs(plain - theirs).max() > 0.1


def test_the_same_adapter_for_the_model_in_a_gguf_file(tmp_path):
    """Whose rows of q and k lie otherwise: those of B are moved like them, and no bit differs."""
    lora = adapter(save("llama", tmp_path / "llama"), tmp_path / "adapter", dtype=np.float16)
    with HuggingFaceFolder(tmp_path / "llama") as file:
        write_gguf(tmp_path / "llama.gguf", file)
    for backend in ("cpu", "reference"):
        with (
            LLM(tmp_path / "llama", backend=backend, lora=lora) as folder,
            LLM(tmp_path / "llama.gguf", backend=backend, lora=lora) as one,
        ):
            assert np.array_equal(folder.logits(IDS), one.logits(IDS))


def test_factors_and_ranks_of_modules(tmp_path):
    """rsLoRA divides by the root of the rank; patterns name modules from their last part on."""
    model = save("llama", tmp_path / "llama")
    ranks, alphas = (
        {"q_proj": 2, "layers.1.mlp.up_proj": 6},
        {"v_proj": 1.5, "0.self_attn.q_proj": 3},
    )
    lora = adapter(
        model, tmp_path / "adapter", use_rslora=True, rank_pattern=ranks, alpha_pattern=alphas,
        scale=lambda name, rank: next(
            (x for k, x in alphas.items() if name.endswith(k)), 8) / sqrt(rank),
    )  # fmt: skip
    theirs = logits(model, IDS)
    with LLM(tmp_path / "llama", backend="reference", lora=lora) as llm:
        assert np.abs(llm.logits(IDS) - theirs).max() < 2e-3


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A model, and an adapter of it."""
    folder = tmp_path_factory.mktemp("peft")
    model = save("llama", folder / "llama")
    return folder / "llama", adapter(model, folder / "adapter")


@pytest.fixture
def edited(llama, tmp_path):
    """The adapter with another config or other tensors."""

    def edit(rename=None, **config):
        folder = tmp_path / "edited"
        folder.mkdir()
        tensors = load_file(llama[1] / "adapter_model.safetensors")
        tensors = {rename(name) if rename else name: t for name, t in tensors.items()}
        save_file(tensors, folder / "adapter_model.safetensors")
        whole = json.loads((llama[1] / "adapter_config.json").read_text()) | config
        (folder / "adapter_config.json").write_text(json.dumps(whole))
        return folder

    return edit


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is"),
        ({"alpha_pattern": {"q_proj|v_proj": 2}}, "only names of modules are"),
        ({"rank_pattern": {"q_proj": 7}}, "r is 7, and the file has 4"),
        ({"r": 3}, "r is 3, and the file has 4"),
        ({"r": "4"}, "r is '4'; it must be a whole number"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern is"),
    ],
)
def test_what_is_not_plain_lora_is_refused_by_name(llama, edited, config, sentence):
    with pytest.raises(FormatError, match=sentence) as told:
        LLM(llama[0], lora=edited(**config))
    assert "adapter_config.json" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lora_A.weight", "lora_magnitude_vector"),
        ("model.layers.0.self_attn.q_proj", "model.embed_tokens"),
        ("self_attn.q_proj", "self_attn.qkv_proj"),
        ("lora_B.weight", "lora_B.bias"),
        ("layers.3", "layers.4"),
    ],
)
def test_tensors_that_have_no_place_are_refused(llama, edited, old, new):
    with pytest.raises(FormatError, match="adapter"):
        LLM(llama[0], lora=edited(rename=lambda name: name.replace(old, new)))


def test_an_adapter_of_another_model_is_refused(llama, edited, tmp_path):
    save("qwen2", tmp_path / "qwen2")
    with pytest.raises(FormatError, match="made for another model"):
        LLM(tmp_path / "qwen2", lora=llama[1])


def test_folders_that_hold_none_are_told_what_they_lack(llama, tmp_path):
    with pytest.raises(FormatError, match=r"has no adapter_model\.safetensors"):
        LLM(llama[0], lora=tmp_path)
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(FormatError, match=r"\.bin file"):
        LLM(llama[0], lora=tmp_path)
    with pytest.raises(InputError, match="name the folder"):
        LLM(llama[0], lora=llama[1] / "adapter_model.safetensors")
