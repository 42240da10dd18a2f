"""Writes small random llama models as GGUF files, in shapes odd enough to catch a mistake."""

from pathlib import Path

import gguf
import numpy as np

WORDS = [f"<0x{b:02X}>" for b in range(256)] + ["▁", "a", "b", "ab", "▁a"]


def write_tiny_llama(
    path: Path, *, tied: bool = False, heads: int = 6, kv_heads: int = 2, head_dim: int = 8,
    hidden: int = 32, feed_forward: int = 96, layers: int = 2, context: int = 128, seed: int = 0,
    extra_tensor: str | None = None, skip_tensor: str | None = None, architecture: str = "llama",
) -> Path:  # fmt: skip
    """head_dim differs from hidden / heads, and heads from kv_heads, on purpose."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *WORDS]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 3 + [0.0] * 256 + [-1.0, -2.0, -3.0, -4.0, -5.0])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 5])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (len(tokens), hidden), "output_norm": (hidden,)}
    if not tied:
        shapes["output"] = (len(tokens), hidden)
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_norm": (hidden,), f"blk.{i}.ffn_norm": (hidden,),
            f"blk.{i}.attn_q": (heads * head_dim, hidden),
            f"blk.{i}.attn_k": (kv_heads * head_dim, hidden),
            f"blk.{i}.attn_v": (kv_heads * head_dim, hidden),
            f"blk.{i}.attn_output": (hidden, heads * head_dim),
            f"blk.{i}.ffn_gate": (feed_forward, hidden), f"blk.{i}.ffn_up": (feed_forward, hidden),
            f"blk.{i}.ffn_down": (hidden, feed_forward),
        }  # fmt: skip
    if extra_tensor:
        shapes[extra_tensor] = (hidden,)
    for name, shape in shapes.items():
        if name != skip_tensor:
            scale = 1.0 if len(shape) == 1 else 3.0 / np.sqrt(shape[-1])
            writer.add_tensor(f"{name}.weight", (rng.normal(size=shape) * scale).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
