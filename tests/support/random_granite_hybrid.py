"""Writes a small random Granite 4 hybrid as a GGUF file: Mamba 2 in most layers."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from support.random_llama import VOCAB, add_tensors, add_tokens, write_file

GROUPS, HEADS, KEYS, VALUES = 2, 4, 24, 32


def write_tiny_granite_hybrid(
    path: Path, *, attends: Sequence[int] = (1, 3), layers: int = 4, heads: int = 4,
    kv_heads: int = 2, hidden: int = 64, feed_forward: int = 96, taps: int = 4, context: int = 256,
    seed: int = 0, format: str = "Q8_0",
) -> Path:  # fmt: skip
    """attends: the layers with attention; format: of all matrices except the convolutions'."""
    writer = gguf.GGUFWriter(path, "granitehybrid")
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv([kv_heads * (i in attends) for i in range(layers)])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_scaling_finetuned(False)
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_state_size(KEYS)
    writer.add_ssm_group_count(GROUPS)
    writer.add_ssm_time_step_rank(HEADS)
    writer.add_ssm_inner_size(HEADS * VALUES)
    add_tokens(writer)
    head, rng = hidden // heads, np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCAB, hidden), "output_norm": (hidden,),
    }  # fmt: skip
    for i in range(layers):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,), "ffn_norm": (hidden,), "ffn_gate": (feed_forward, hidden),
            "ffn_up": (feed_forward, hidden), "ffn_down": (hidden, feed_forward),
        }  # fmt: skip
        if i in attends:
            layer |= {
                "attn_q": (hidden, hidden), "attn_k": (kv_heads * head, hidden),
                "attn_v": (kv_heads * head, hidden), "attn_output": (hidden, hidden),
            }  # fmt: skip
        else:
            layer |= _mamba(hidden, taps)
            _add_vectors(writer, rng, f"blk.{i}.")
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    add_tensors(writer, rng, shapes, format, {"ssm_conv1d": "F32", "ssm_norm": "F32"})
    return write_file(writer, path)


def _mamba(hidden: int, taps: int) -> dict[str, tuple[int, ...]]:
    inner = HEADS * VALUES
    mixed = inner + 2 * GROUPS * KEYS
    return {
        "ssm_in": (inner + mixed + HEADS, hidden), "ssm_conv1d": (mixed, taps),
        "ssm_norm": (GROUPS, inner // GROUPS), "ssm_out": (hidden, inner),
    }  # fmt: skip


def _add_vectors(writer: gguf.GGUFWriter, rng: np.random.Generator, prefix: str) -> None:
    mixed = HEADS * VALUES + 2 * GROUPS * KEYS
    shapes: dict[str, int | tuple[int, int]] = {
        "ssm_a": (HEADS, 1),
        "ssm_d": (HEADS, 1),
        "ssm_dt.bias": HEADS,
        "ssm_conv1d.bias": mixed,
    }
    for name, size in shapes.items():
        numbers = rng.normal(size=size).astype(np.float32)
        writer.add_tensor(f"{prefix}{name}", -np.exp(numbers) if name == "ssm_a" else numbers)
