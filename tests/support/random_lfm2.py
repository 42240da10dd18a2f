"""Writes a small random LFM2 as a GGUF file: short convolutions in most layers."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from support.random_llama import VOCAB, add_tensors, add_tokens, write_file


def write_tiny_lfm2(
    path: Path, *, attends: Sequence[int] = (1, 3), layers: int = 5, heads: int = 4,
    kv_heads: int = 2, hidden: int = 64, feed_forward: int = 96, taps: int = 3, context: int = 256,
    seed: int = 0, format: str = "Q8_0",
) -> Path:  # fmt: skip
    """attends: the layers with attention; format: of all matrices except the convolutions'."""
    writer = gguf.GGUFWriter(path, "lfm2")
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv([kv_heads * (i in attends) for i in range(layers)])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_shortconv_l_cache(taps)
    add_tokens(writer)
    head = hidden // max(heads, 1)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCAB, hidden), "token_embd_norm": (hidden,),
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
                "attn_q_norm": (head,), "attn_k_norm": (head,),
            }  # fmt: skip
        else:
            layer |= {
                "shortconv.in_proj": (3 * hidden, hidden), "shortconv.conv": (hidden, taps),
                "shortconv.out_proj": (hidden, hidden),
            }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    formats = {"conv": "F32"}
    add_tensors(writer, np.random.default_rng(seed), shapes, format, formats)
    return write_file(writer, path)
