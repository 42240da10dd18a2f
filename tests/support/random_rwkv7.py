"""Writes a small random RWKV-7 as a GGUF file: no layer attends."""

from pathlib import Path

import gguf
import numpy as np

from support.random_llama import VOCAB, add_tensors, add_tokens, write_file

HIDDEN, SIZE, LAYERS, MLP, RANK = 64, 32, 3, 96, 32
LAYER = {
    **{f"time_mix_{x}": (HIDDEN, HIDDEN) for x in ("receptance", "key", "value", "output")},
    **{f"time_mix_{x}1": (RANK, HIDDEN) for x in "wavg"},
    **{f"time_mix_{x}2": (HIDDEN, RANK) for x in "wavg"},
    "channel_mix_key": (MLP, HIDDEN), "channel_mix_value": (HIDDEN, MLP),
}  # fmt: skip
"""The matrices of a layer; nothing reads the first layer's v1 and v2."""
VECTORS = {
    **{f"{norm}.weight": 1.0 for norm in ("attn_norm", "attn_norm_2", "time_mix_ln")},
    **{f"{norm}.bias": 0.0 for norm in ("attn_norm", "attn_norm_2", "time_mix_ln")},
    **{f"time_mix_{x}.weight": 1.0 for x in ("k_k", "k_a")},
    **{f"time_mix_{x}.weight": 0.0 for x in ("r_k", "w0", "a0", "v0")},
    "time_mix_lerp_fused.weight": 0.5, "channel_mix_lerp_k.weight": 0.5,
}  # fmt: skip
"""The means of a layer's vectors."""


def write_tiny_rwkv7(path: Path, context: int = 256) -> Path:
    """Write three layers with Q8_0 matrices."""
    writer, rng = gguf.GGUFWriter(path, "rwkv7"), np.random.default_rng(1)
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(0)
    writer.add_layer_norm_eps(1e-5)
    writer.add_wkv_head_size(SIZE)
    add_tokens(writer)
    layers = [f"blk.{i}." for i in range(LAYERS)]
    means = {p + name: mean for p in layers for name, mean in VECTORS.items()}
    for norm in ("token_embd_norm", "output_norm"):
        means |= {f"{norm}.weight": 1.0, f"{norm}.bias": 0.0}
    for name, mean in means.items():
        shape = (6, 1, 1, HIDDEN) if "lerp_fused" in name else (HIDDEN,)
        writer.add_tensor(name, (mean + 0.3 * rng.normal(size=shape)).astype(np.float32))
    shapes = {p + name: shape for p in layers for name, shape in LAYER.items()}
    shapes |= {"token_embd": (VOCAB, HIDDEN), "output": (VOCAB, HIDDEN)}
    add_tensors(writer, rng, shapes, "Q8_0", {})
    return write_file(writer, path)
