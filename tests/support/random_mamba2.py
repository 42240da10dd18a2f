"""Writes a small random Mamba 2 as a GGUF file: no layer attends."""

from pathlib import Path

import gguf
import numpy as np

from support.random_llama import VOCAB, add_tensors, add_tokens, write_file

HIDDEN, HEADS, KEYS, VALUES, LAYERS = 64, 4, 16, 32, 2


def write_tiny_mamba2(path: Path) -> Path:
    """Write two layers with Q8_0 matrices."""
    writer, rng = gguf.GGUFWriter(path, "mamba2"), np.random.default_rng(1)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(KEYS)
    writer.add_ssm_group_count(1)
    writer.add_ssm_time_step_rank(HEADS)
    writer.add_ssm_inner_size(HEADS * VALUES)
    add_tokens(writer)
    shapes, inner = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}, HEADS * VALUES
    for i in range(LAYERS):
        tensors = {
            "attn_norm": (HIDDEN,), "ssm_in": (2 * inner + 2 * KEYS + HEADS, HIDDEN),
            "ssm_conv1d": (inner + 2 * KEYS, 4), "ssm_norm": (1, inner), "ssm_out": (HIDDEN, inner),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in tensors.items()}
        writer.add_tensor(f"blk.{i}.ssm_a", -np.exp(rng.normal(size=(HEADS, 1))).astype(np.float32))
        for name, shape in (
            ("ssm_d", (HEADS, 1)),
            ("ssm_dt.bias", (HEADS,)),
            ("ssm_conv1d.bias", (inner + 2 * KEYS,)),
        ):
            writer.add_tensor(f"blk.{i}.{name}", rng.normal(size=shape).astype(np.float32))
    add_tensors(writer, rng, shapes, "Q8_0", {"ssm_conv1d": "F32", "ssm_norm": "F32"})
    return write_file(writer, path)
