"""gpt-oss as it is published, with experts in MXFP4, against the numbers of their codes."""

import json

import numpy as np
import pytest

from cutaway import LLM, FormatError
from cutaway.compute.loading.open import open_model

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch
from safetensors.numpy import load_file, save_file

from support.random_models import IDS, logits, save

NUMBERS = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def random_blocks(rng, experts, outputs, inputs):
    """(codes, exponents, the numbers (experts, outputs, inputs))."""
    codes = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
    exponents = rng.integers(121, 125, (experts, outputs, inputs // 32), np.uint8)
    each = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:3], 32)
    numbers = NUMBERS[each] * np.exp2(exponents.astype(np.float32) - 127)[..., None]
    return codes, exponents, numbers.reshape(experts, outputs, inputs)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """(a folder with experts in MXFP4, transformers' model with their numbers)."""
    path, rng = tmp_path_factory.mktemp("gpt_oss"), np.random.default_rng(4)
    model = save("gpt_oss", path)
    tensors = load_file(path / "model.safetensors")
    for layer, one in enumerate(model.model.layers):
        for name, weight in (
            ("gate_up_proj", one.mlp.experts.gate_up_proj),
            ("down_proj", one.mlp.experts.down_proj),
        ):
            experts, inputs, outputs = weight.shape
            codes, exponents, numbers = random_blocks(rng, experts, outputs, inputs)
            with torch.no_grad():
                weight.copy_(torch.from_numpy(numbers.transpose(0, 2, 1).copy()))
            base = f"model.layers.{layer}.mlp.experts.{name}"
            del tensors[base]
            tensors |= {f"{base}_blocks": codes, f"{base}_scales": exponents}
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (path / "config.json").write_text(json.dumps(config))
    return path, model


def test_the_logits_are_those_of_the_numbers(published):
    path, model = published
    with open_model(path) as folder:
        kinds = {n.split(".", 2)[-1]: t.format for n, t in folder.tensors.items() if "_exps.w" in n}
    assert set(kinds.values()) == {"MXFP4"}
    expected = logits(model, IDS)
    assert np.abs(LLM(path, backend="reference").logits(IDS) - expected).max() < 1e-3
    errors = np.mean((LLM(path).logits(IDS) - expected) ** 2, axis=1) / np.mean(expected**2)
    assert np.sqrt(np.median(errors)) < 0.06  # activations of 8 bits


def test_a_text_is_the_same_in_any_company(published):
    path, _ = published
    options = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    texts = LLM(path, threads=2).generate([IDS[:40], IDS[5:12]], **options)
    alone = LLM(path, threads=1, prefix_cache=False)
    for prompt, text in zip([IDS[:40], IDS[5:12]], texts, strict=True):
        assert alone.generate(prompt, **options).fingerprint == text.fingerprint


@pytest.mark.parametrize("broken", ["shape", "scales", "nan"])
def test_blocks_that_are_not_whole_are_refused(published, tmp_path, broken):
    path, _ = published
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(path / "model.safetensors")
    base = "model.layers.1.mlp.experts.down_proj"
    if broken == "shape":
        tensors[f"{base}_blocks"] = tensors[f"{base}_blocks"][..., :8].copy()
    elif broken == "scales":
        tensors[f"{base}_scales"] = tensors[f"{base}_scales"][:, :-1].copy()
    else:
        tensors[f"{base}_scales"][0, 0, 0] = 255
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"down_proj_(blocks|scales).*download the model again"):
        LLM(tmp_path, backend="reference")
