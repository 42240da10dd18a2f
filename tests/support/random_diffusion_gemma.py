"""A tiny random DiffusionGemma as a folder, and transformers' run of it with the luck of ours."""

from pathlib import Path
from typing import Any

import numpy as np

from cutaway.sampling import gumbel
from cutaway.sampling.luck import noise_tokens, place_of
from support import random_models, tiny_tokenizers
from support.families.row import GEMMA4, SIZES, VOCAB

CANVAS = 12  # longer than a window
_VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 16,
}  # fmt: skip
_TEXT = {
    **SIZES, **GEMMA4, "num_attention_heads": 4, "num_global_key_value_heads": 1, "num_experts": 5,
    "top_k_experts": 2, "moe_intermediate_size": 32, "final_logit_softcapping": 30.0,
}  # fmt: skip


def save(folder: Path, **options: Any) -> Any:
    """Write the model into a folder; return transformers' model, in eval mode."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    config = transformers.DiffusionGemmaConfig(
        text_config=_TEXT, vision_config={"model_type": "gemma4_vision", **_VISION},
        canvas_length=CANVAS,
    )  # fmt: skip
    kind = transformers.DiffusionGemmaForBlockDiffusion
    model = kind(config).eval()
    random_models.shake(model, np.random.default_rng(0))
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder)
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def denoise(
    model: Any, prompt: list[int], seed: int, monkeypatch: Any, **settings: Any
) -> list[int]:
    """Return what transformers' ``generate`` writes if its luck is ours."""
    import torch
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSampler

    first, passes, ids = len(prompt) - CANVAS, 0, np.arange(VOCAB)

    def noise() -> Any:
        places = [place_of(first + i, passes) for i in range(CANVAS)]
        return torch.tensor([noise_tokens(seed, places, VOCAB)])

    def initialize(_sampler: Any, **_more: Any) -> Any:
        nonlocal first
        first += CANVAS
        return noise()

    def renoise(sampler: Any, accepted: Any, _left: Any) -> Any:
        return torch.where(sampler.accepted_token_mask, accepted, noise())

    def draw(chances: Any, **_more: Any) -> Any:
        nonlocal passes
        luck = [gumbel(seed, place_of(first + i, passes), ids) for i in range(CANVAS)]
        passes += 1
        return (chances.double().log() + torch.from_numpy(np.array(luck))).argmax(-1, keepdim=True)

    monkeypatch.setattr(EntropyBoundSampler, "initialize_canvas", initialize)
    monkeypatch.setattr(EntropyBoundSampler, "renoise_canvas", renoise)
    monkeypatch.setattr(torch, "multinomial", draw)
    # It imports torch's compiler, which warns of functions that torch deprecates.
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    done = model.generate(
        torch.tensor([prompt]), eos_token_id=None, pad_token_id=None,
        return_dict_in_generate=False, **settings,
    )  # fmt: skip
    tokens: list[int] = done[0, len(prompt) :].tolist()
    return tokens
