"""Writes a small random HRM-Text as a GGUF file, which reads its prompt to both sides."""

from pathlib import Path

import gguf
import numpy as np

from support.random_llama import VOCAB, add_tensors, add_tokens, write_file

HIDDEN, HEADS, MLP = 64, 4, 96
LAYER = {
    **{f"attn_{x}": (HIDDEN, HIDDEN) for x in ("q", "k", "v", "gate", "output")},
    "ffn_up": (2 * MLP, HIDDEN), "ffn_down": (HIDDEN, MLP),
}  # fmt: skip


def write_tiny_hrm(
    path: Path, *, context: int = 256, format: str = "Q8_0", prefix_lm: bool = True, window: int = 0
) -> Path:
    """Write two stacks of a layer each, which run 2 · (1 + 1) times."""
    writer, rng = gguf.GGUFWriter(path, "hrm-text"), np.random.default_rng(1)
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(2)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_uint32("hrm-text.slow_cycles", 2)
    writer.add_uint32("hrm-text.fast_cycles", 1)
    writer.add_bool("hrm-text.attention.prefix_lm", prefix_lm)
    if window:
        writer.add_sliding_window(window)
    add_tokens(writer)
    shapes = {f"blk.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}
    shapes |= dict.fromkeys(("token_embd", "output"), (VOCAB, HIDDEN))
    add_tensors(writer, rng, shapes, format, {})
    add_tensors(writer, rng, {"fast_init": (1, HIDDEN)}, "F32", {})
    return write_file(writer, path)
