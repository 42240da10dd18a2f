"""Writes a small random Qwen 3.5 as a GGUF file: gated delta nets in most layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.random_llama import VOCAB, add_tensors, add_tokens, write_file

_NORMS = ("enorm", "hnorm", "shared_head_norm")
K_HEADS, HEADS, KEYS, VALUES = 2, 4, 16, 32


def write_tiny_qwen35(
    path: Path, *, layers: int = 4, attention_every: int = 2, heads: int = 4, kv_heads: int = 2,
    head_dim: int = 32, hidden: int = 64, feed_forward: int = 96, taps: int = 4,
    context: int = 256, seed: int = 0, format: str = "Q8_0", draft_head: bool = False,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:  # fmt: skip
    """attention_every: every n-th layer attends; format: of all matrices except the convolutions'.

    draft_head: whether another layer drafts tokens
    tensors: matrices by their names without ".weight", instead of random ones
    """
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers + draft_head)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_uint32("qwen35.full_attention_interval", attention_every)
    _add_sizes_of_heads(writer, head_dim, taps)
    add_tokens(writer)
    rng, shapes = np.random.default_rng(seed), dict[str, tuple[int, ...]]()
    shapes |= {"token_embd": (VOCAB, hidden), "output_norm": (hidden,)}
    if draft_head:
        writer.add_uint32("qwen35.nextn_predict_layers", 1)
        shapes_of_head = {"eh_proj": (hidden, 2 * hidden), **dict.fromkeys(_NORMS, (hidden,))}
        shapes |= {f"blk.{layers}.nextn.{name}": shape for name, shape in shapes_of_head.items()}
    for i in range(layers + draft_head):
        has_net = i < layers and (i + 1) % attention_every > 0
        mixed = _net(hidden, taps) if has_net else _attention(hidden, heads, kv_heads, head_dim)
        if has_net:
            forget = -np.exp(rng.normal(size=HEADS)).astype(np.float32)
            writer.add_tensor(f"blk.{i}.ssm_a", forget)
            writer.add_tensor(f"blk.{i}.ssm_dt.bias", rng.normal(size=HEADS).astype(np.float32))
        layer = mixed | {
            "attn_norm": (hidden,), "post_attention_norm": (hidden,),
            "ffn_gate": (feed_forward, hidden), "ffn_up": (feed_forward, hidden),
            "ffn_down": (hidden, feed_forward),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    for name, numbers in (tensors or {}).items():
        shapes.pop(name, None)
        writer.add_tensor(f"{name}.weight", numbers.astype(np.float32))
    add_tensors(writer, rng, shapes, format, {"ssm_conv1d": "F32"})
    return write_file(writer, path)


def _add_sizes_of_heads(writer: gguf.GGUFWriter, head_dim: int, taps: int) -> None:
    """Write the sizes of attention and of the delta nets."""
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])  # llama.cpp requires these
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_state_size(KEYS)
    writer.add_ssm_group_count(K_HEADS)
    writer.add_ssm_time_step_rank(HEADS)
    writer.add_ssm_inner_size(HEADS * VALUES)


def _net(hidden: int, taps: int) -> dict[str, tuple[int, ...]]:
    mixed = 2 * K_HEADS * KEYS + HEADS * VALUES
    return {
        "attn_qkv": (mixed, hidden), "attn_gate": (HEADS * VALUES, hidden),
        "ssm_conv1d": (mixed, taps), "ssm_alpha": (HEADS, hidden), "ssm_beta": (HEADS, hidden),
        "ssm_norm": (VALUES,), "ssm_out": (hidden, HEADS * VALUES),
    }  # fmt: skip


def _attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    return {
        "attn_q": (2 * heads * head_dim, hidden), "attn_k": (kv_heads * head_dim, hidden),
        "attn_v": (kv_heads * head_dim, hidden), "attn_output": (hidden, heads * head_dim),
        "attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,),
    }  # fmt: skip
