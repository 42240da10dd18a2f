"""Writes small block drafters, DFlash and DSpark, as folders with their publishers' names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
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


def with_vocabulary(tensors: Tensors, ids: np.ndarray[Any, Any]) -> Tensors:
    """Return tensors of a drafter of these tokens alone, with a head of its own."""
    head = np.random.default_rng(9).normal(size=(len(ids), HIDDEN)) / np.sqrt(HIDDEN)
    markov = {name: x[ids] for name, x in tensors.items() if name.endswith("markov_w2.weight")}
    maps = {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(VOCAB), ids)}
    return tensors | markov | {"lm_head.weight": head} | maps


ARCHITECTURES = {"dflash": ["DFlashDraftModel"], "dspark": ["Qwen3DSparkModel"]}


def write_drafter(
    folder: Path, tensors: Mapping[str, np.ndarray[Any, Any]], kind: str = "dflash", **config: Any
) -> Path:
    """Write the folder. config: more keys of config.json; None removes a key."""
    sizes = {
        "architectures": ARCHITECTURES[kind], "hidden_size": HIDDEN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": SIZE, "num_hidden_layers": LAYERS,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "block_size": 8,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2]},
    }  # fmt: skip
    return write_folder(folder, tensors, {**sizes, **config})


SPECULATORS: dict[str, Any] = {
    "hidden_size": None, "num_attention_heads": None, "num_key_value_heads": None,
    "head_dim": None, "num_hidden_layers": None, "rms_norm_eps": None, "rope_theta": None,
    "hidden_act": None, "dflash_config": None, "mask_token_id": MASK,
    "speculators_model_type": "dspark", "architectures": ["DSparkDraftModel"], "block_size": 7,
    "sample_from_anchor": True, "markov_rank": RANK, "aux_hidden_state_layer_ids": [1, 3],
    "transformer_layer_config": {
        "model_type": "qwen3", "hidden_size": HIDDEN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": SIZE, "num_hidden_layers": LAYERS,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
    },
}  # fmt: skip
"""What ``write_drafter`` changes where vLLM's speculators writes the folder."""

GGUF_NAMES = {
    "fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "q_proj": "attn_q", "k_proj": "attn_k",
    "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
    "down_proj": "ffn_down", "markov_w1": "markov_w1", "markov_w2": "markov_w2",
}  # fmt: skip


def write_drafter_gguf(path: Path, tensors: Tensors, architecture: str = "dflash") -> Path:
    """Write the drafter of ``write_drafter`` as llama.cpp converts it."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (
        ("embedding_length", HIDDEN), ("block_count", LAYERS), ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS), ("attention.key_length", SIZE), ("block_size", 8),
    ):  # fmt: skip
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 5000.0)
    writer.add_array(f"{architecture}.target_layers", [1, 3])
    writer.add_uint32("tokenizer.ggml.mask_token_id", MASK)
    for name, x in tensors.items():
        *layer, last, _ = name.split(".")
        at = f"blk.{layer[1]}." if layer and layer[0] == "layers" else ""
        writer.add_tensor(f"{at}{GGUF_NAMES[last]}.weight", x.astype("f4"))
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, HIDDEN), "f4"))  # a copy, not read
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
