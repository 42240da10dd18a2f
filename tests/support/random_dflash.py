"""Writes small block drafters, DFlash and DSpark, as folders with their publishers' names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.random_eagle import write_folder
from support.random_llama import VOCAB

HEADS, KV_HEADS, SIZE, INNER, HIDDEN, LAYERS, RANK = 4, 2, 16, 96, 64, 2, 8
MASK = VOCAB - 1
Tensors = dict[str, np.ndarray[Any, Any]]


def drafter_tensors(streams: int, *, markov: bool = False, seed: int = 1) -> Tensors:
    """Return random tensors by the authors' names; streams: how many streams fc reads."""
    rng, q, kv = np.random.default_rng(seed), HEADS * SIZE, KV_HEADS * SIZE
    layer = {
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_norm": (SIZE,), "self_attn.k_norm": (SIZE,),
        "self_attn.q_proj": (q, HIDDEN), "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN), "self_attn.o_proj": (HIDDEN, q),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (HIDDEN, streams * HIDDEN), "hidden_norm": (HIDDEN,), "norm": (HIDDEN,),
    }  # fmt: skip
    shapes |= {f"layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    if markov:
        shapes |= {f"markov_head.markov_w{i}": (VOCAB, RANK) for i in (1, 2)}
    return {
        f"{name}.weight": (
            rng.normal(size=s) / np.sqrt(s[-1]) if len(s) == 2 else 1 + 0.3 * rng.normal(size=s)
        )
        for name, s in shapes.items()
    }


def write_drafter(folder: Path, tensors: Mapping[str, np.ndarray[Any, Any]], **config: Any) -> Path:
    """Write the folder. config: more keys of config.json; None removes a key."""
    sizes = {
        "architectures": ["DFlashDraftModel"], "hidden_size": HIDDEN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": SIZE, "num_hidden_layers": LAYERS,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "block_size": 8,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2]},
    }  # fmt: skip
    return write_folder(folder, tensors, {**sizes, **config})
