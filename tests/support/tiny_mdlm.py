"""A tiny random MDLM, as its paper and its published code describe it (arXiv 2406.07524).

torch and safetensors are imported when a model is made.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support import tiny_tokenizers

VOCAB, HIDDEN, HEADS, BLOCKS, COND, WAVES = 384, 64, 4, 3, 24, 32


def tensors(seed: int = 0) -> dict[str, Any]:
    """Return float32 tensors, by the tensor names of MDLM's files."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return (rng.normal(size=shape) / math.sqrt(shape[-1])).astype(np.float32)

    def linear(name: str, out: int, inner: int) -> dict[str, Any]:
        bias = (0.3 * rng.normal(size=out)).astype(np.float32)
        return {f"{name}.weight": 1.5 * draw(out, inner), f"{name}.bias": bias}

    def norm(name: str) -> dict[str, Any]:
        return {f"{name}.weight": (1 + 0.3 * rng.normal(size=HIDDEN)).astype(np.float32)}

    tensors = {"vocab_embed.embedding": 8 * draw(VOCAB, HIDDEN)}
    tensors |= linear("sigma_map.mlp.0", COND, WAVES) | linear("sigma_map.mlp.2", COND, COND)
    tensors["rotary_emb.inv_freq"] = np.ones(HIDDEN // HEADS // 2, np.float32)
    for i in range(BLOCKS):
        p = f"blocks.{i}."
        tensors |= norm(f"{p}norm1") | norm(f"{p}norm2")
        tensors |= {f"{p}attn_qkv.weight": 1.5 * draw(3 * HIDDEN, HIDDEN)}
        tensors |= {f"{p}attn_out.weight": 1.5 * draw(HIDDEN, HIDDEN)}
        tensors |= linear(f"{p}mlp.0", 4 * HIDDEN, HIDDEN) | linear(f"{p}mlp.2", HIDDEN, 4 * HIDDEN)
        tensors |= linear(f"{p}adaLN_modulation", 6 * HIDDEN, COND)
    tensors |= norm("output_layer.norm_final") | linear("output_layer.linear", VOCAB, HIDDEN)
    tensors |= linear("output_layer.adaLN_modulation", 2 * HIDDEN, COND)
    return {f"backbone.{name}": value for name, value in tensors.items()}


def save(
    folder: Path, seed: int = 0, tokenizer: Callable[[], Any] = tiny_tokenizers.byte_level
) -> dict[str, Any]:
    """Write the model's folder; return the weights for ``logits``."""
    from safetensors.numpy import save_file

    weights = tensors(seed)
    save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": "mdlm", "vocab_size": VOCAB, "model_length": 256, "hidden_dim": HIDDEN,
        "cond_dim": COND, "n_blocks": BLOCKS, "n_heads": HEADS, "time_conditioning": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tiny_tokenizers.save(tokenizer(), folder)
    return weights


def logits(weights: dict[str, Any], ids: list[int]) -> Any:
    """Return the logits of all rows, under bidirectional attention: float32 (n, vocab)."""
    import torch
    from torch.nn import functional

    w = {name.removeprefix("backbone."): torch.from_numpy(value) for name, value in weights.items()}

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def modulate(name: str, x: Any, shift: Any, scale: Any) -> Any:
        return functional.layer_norm(x, [HIDDEN]) * w[f"{name}.weight"] * (1 + scale) + shift

    sigma = torch.zeros(1)
    half = WAVES // 2
    waves = sigma * torch.exp(-math.log(10000) * torch.arange(half) / half)
    time = torch.cat([torch.cos(waves), torch.sin(waves)])
    time = functional.silu(linear("sigma_map.mlp.0", time))
    time = functional.silu(linear("sigma_map.mlp.2", time))
    x = w["vocab_embed.embedding"][torch.tensor(ids)]
    for i in range(BLOCKS):
        p = f"blocks.{i}."
        parts = linear(f"{p}adaLN_modulation", time).chunk(6)
        h = linear(f"{p}attn_qkv", modulate(f"{p}norm1", x, parts[0], parts[1]))
        x = x + parts[2] * linear(f"{p}attn_out", _attention(h))
        h = linear(f"{p}mlp.0", modulate(f"{p}norm2", x, parts[3], parts[4]))
        x = x + parts[5] * linear(f"{p}mlp.2", functional.gelu(h, approximate="tanh"))
    shift, scale = linear("output_layer.adaLN_modulation", time).chunk(2)
    x = modulate("output_layer.norm_final", x, shift, scale)
    return linear("output_layer.linear", x).numpy()


def _attention(qkv: Any) -> Any:
    import torch

    n, width = len(qkv), HIDDEN // HEADS
    q, k, v = qkv.view(n, 3, HEADS, width).unbind(1)
    turns = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(n)[:, None] * torch.cat([turns, turns])
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def rotate(h: Any) -> Any:
        first, second = h.chunk(2, -1)
        return h * cos + torch.cat([-second, first], -1) * sin

    scores = torch.einsum("qhd,khd->hqk", rotate(q), rotate(k)) / math.sqrt(width)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, HIDDEN)
