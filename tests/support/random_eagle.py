"""Writes small EAGLE-3 heads as folders, with their publishers' tensor names."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HEADS, KV_HEADS, SIZE, INNER = 4, 2, 16, 96
NAMINGS = {"midlayer": "midlayer.", "layers": "model.layers.0."}
_DTYPES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}


def eagle_tensors(
    target: int, hidden: int = 64, tokens: int = 100, seed: int = 1, vocab: int = 264
) -> dict[str, np.ndarray[Any, Any]]:
    """Return random tensors by the paper's names. target: number of inputs of fc."""
    rng = np.random.default_rng(seed)
    shapes = {
        "fc": (hidden, target), "norm": (hidden,), "lm_head": (tokens, hidden),
        "midlayer.hidden_norm": (hidden,), "midlayer.input_layernorm": (hidden,),
        "midlayer.post_attention_layernorm": (hidden,),
        "midlayer.self_attn.q_proj": (HEADS * SIZE, 2 * hidden),
        "midlayer.self_attn.k_proj": (KV_HEADS * SIZE, 2 * hidden),
        "midlayer.self_attn.v_proj": (KV_HEADS * SIZE, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, HEADS * SIZE),
        "midlayer.mlp.gate_proj": (INNER, hidden), "midlayer.mlp.up_proj": (INNER, hidden),
        "midlayer.mlp.down_proj": (hidden, INNER),
    }  # fmt: skip
    tensors = {
        f"{name}.weight": (rng.normal(size=s) / np.sqrt(s[-1]) if len(s) == 2 else
                           1 + 0.3 * rng.normal(size=s))
        for name, s in shapes.items()
    }  # fmt: skip
    draft_ids = np.sort(rng.permutation(vocab)[:tokens])
    is_in_draft = np.isin(np.arange(vocab), draft_ids)
    return tensors | {"d2t": (draft_ids - np.arange(tokens)).astype(np.int64), "t2d": is_in_draft}


def write_eagle(
    folder: Path, tensors: Mapping[str, np.ndarray[Any, Any]], naming: str = "midlayer",
    **config: Any,
) -> Path:  # fmt: skip
    """Write the folder. config: more keys of config.json; None removes a key."""
    renamed, outside = {}, "model." if naming == "layers" else ""
    for name, x in tensors.items():
        new = name.replace("midlayer.", NAMINGS[naming])
        is_body = name in ("norm.weight", "fc.weight", "embed_tokens.weight")
        renamed[f"{outside}{new}" if is_body else new] = x
    sizes = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE,
        "num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
        "draft_vocab_size": 100, "vocab_size": 264,
    }  # fmt: skip
    return write_folder(folder, renamed, {**sizes, **config})


def write_folder(
    folder: Path, tensors: Mapping[str, np.ndarray[Any, Any]], config: Mapping[str, Any]
) -> Path:
    """Write config.json, without the keys whose value is None, and the tensors."""
    folder.mkdir()
    values = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    floats = {k: x if x.dtype.kind in "ib" else x.astype("f4") for k, x in tensors.items()}
    _write(folder / "model.safetensors", floats)
    return folder


def _write(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    header, at = {}, 0
    for name, x in tensors.items():
        offsets = [at, at + x.nbytes]
        header[name] = {
            "dtype": _DTYPES[x.dtype.name], "shape": x.shape, "data_offsets": offsets
        }  # fmt: skip
        at += x.nbytes
    header_bytes = json.dumps(header).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    path.write_bytes(
        struct.pack("<Q", len(header_bytes))
        + header_bytes
        + b"".join(x.tobytes() for x in tensors.values())
    )
