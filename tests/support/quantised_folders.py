"""Folders of a small random llama whose matrices are quantised by each method, and their twins.

Codes, zeros and scales are drawn. Each method packs them as its own program does, and computes
their matrix by its definition, one weight at a time where that is short. A twin has these matrices
in float32.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support import tiny_tokenizers
from support.quantised.affine import (
    mlx,
    torchao_bytes,
    torchao_int4,
    torchao_tiles,
    torchao_words,
)
from support.quantised.floats import (
    fp8,
    mlx_floats,
    modelopt_blocks,
    mxfp4,
    nf4,
    nvfp4,
    torchao_blocks,
    torchao_float8,
)
from support.quantised.integers import (
    auto_round,
    auto_round_mixed,
    awq,
    gptq,
    llm_int8,
    make_compressed,
    modelopt_int4,
)
from support.quantised.method import Array, Method, Typed, smooth_inputs
from support.quantised.tensors import read_tensors, write_tensors
from support.quantised.ternary import bitnet

VOCAB = 384
HIDDEN, INNER, HEADS, KV_HEADS = 256, 384, 4, 2
IDS: list[int] = np.random.default_rng(1).integers(6, VOCAB, 60).tolist()


def write_folder(folder: Path, method: Method, seed: int = 0, **config: Any) -> Path:
    """Write a folder with numbers from the seed. config: changes of config.json."""
    return _write(folder, method, seed, config, twin=False)


def write_twin(folder: Path, method: Method, seed: int = 0, **config: Any) -> Path:
    """Write the twin of ``write_folder``'s folder."""
    return _write(folder, method, seed, config, twin=True)


def shapes(hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    """Return name -> shape (out, in) of a layer's matrices."""
    head = hidden // HEADS
    return {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (KV_HEADS * head, hidden),
        "self_attn.v_proj": (KV_HEADS * head, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip


def _write(folder: Path, method: Method, seed: int, config: Any, *, twin: bool) -> Path:
    rng = np.random.default_rng(seed)
    hidden, inner = config.get("hidden_size", HIDDEN), config.get("intermediate_size", INNER)
    layers, metadata = 2, dict[str, str]()
    tensors: dict[str, Array | Typed] = {
        "model.embed_tokens.weight": rng.normal(size=(VOCAB, hidden)).astype(np.float32),
        "model.norm.weight": (1 + 0.3 * rng.normal(size=hidden)).astype(np.float32),
        "lm_head.weight": (rng.normal(size=(VOCAB, hidden)) / 16).astype(np.float32),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        orders: dict[int, Array] = {}
        for name, shape in shapes(hidden, inner).items():
            matrix = method.draw(rng, shape, orders)
            parts = {".weight": matrix.matrix} if twin else matrix.parts
            tensors |= {prefix + name + ending: part for ending, part in parts.items()}
            if matrix.metadata and not twin:
                metadata[f"{prefix}{name}.weight"] = matrix.metadata
        for norm in ("input_layernorm", "post_attention_layernorm"):
            numbers = 1 + 0.3 * rng.normal(size=hidden)
            tensors[f"{prefix}{norm}.weight"] = numbers.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", tensors, metadata)
    values = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB,
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "tie_word_embeddings": False, "rope_theta": 10000.0, "dtype": "float32",
    }  # fmt: skip
    if not twin:
        values[method.key] = method.config
    (folder / "config.json").write_text(json.dumps(values | config))
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder)
    return folder


def quantise_folder(source: Path, target: Path, method: Method, *, twin: bool) -> Path:
    """Copy a folder, with new numbers in its linear layers: quantised, or the same in F32."""
    shutil.copytree(source, target)
    rng, tensors, metadata = np.random.default_rng(0), dict[str, Array | Typed](), {}
    for name, tensor in read_tensors(source / "model.safetensors").items():
        base = name.removesuffix(".weight")
        if base.endswith("_proj") and not isinstance(tensor, Typed) and tensor.ndim == 2:
            rows, cols = tensor.shape
            matrix = method.draw(rng, (rows, cols), {})
            parts = {".weight": matrix.matrix} if twin else matrix.parts
            tensors |= {base + ending: part for ending, part in parts.items()}
            if matrix.metadata and not twin:
                metadata[name] = matrix.metadata
        else:
            tensors[name] = tensor
    write_tensors(target / "model.safetensors", tensors, metadata)
    config = json.loads((target / "config.json").read_text())
    if not twin:
        config[method.key] = method.config
    (target / "config.json").write_text(json.dumps(config))
    return target


METHODS: Mapping[str, Method] = {
    "gptq": gptq(),
    "gptq-g32": gptq(group=32),
    "gptq-g64": gptq(group=64),
    "gptq-row": gptq(group=-1),
    "gptq-symmetric": gptq(symmetric=True),
    "gptq-act-order": gptq(act_order=True),
    "gptq-act-order-g32": gptq(group=32, act_order=True, symmetric=True),
    "gptq-v2": gptq(version="gptq_v2"),
    "gptq-old": gptq(version=None, g_idx=False),
    "gptq-2bit": gptq(bits=2, group=64),
    "gptq-3bit": gptq(bits=3),
    "gptq-8bit": gptq(bits=8),
    "gptq-8bit-act-order": gptq(bits=8, act_order=True, group=32),
    "awq": awq(),
    "awq-g64": awq(64),
    "awq-g32": awq(32),
    "awq-row": awq(-1),
    **{
        f"auto-round{packing}": auto_round(f"auto_round{packing}")
        for packing in ("", ":auto_gptq", ":gptqmodel", ":auto_awq")
    },
    "auto-round-mixed": auto_round_mixed(),
    "bitnet": bitnet(),
    "bitnet-divided": bitnet(linear="bitlinear"),
    "bitnet-master": bitnet(online=True),
    "ct-int4": make_compressed(),
    "ct-int4-g32": make_compressed(group=32, half=True),
    "ct-int4-row": make_compressed(group=None),
    "ct-int4-asymmetric": make_compressed(symmetric=False),
    "ct-int4-act-order": make_compressed(act_order=True, symmetric=False),
    "ct-int8-packed": make_compressed(bits=8, group=None),
    "ct-int8-packed-asymmetric": make_compressed(bits=8, symmetric=False),
    "ct-int8": make_compressed(bits=8, group=None, packed=False),
    "ct-int8-g64": make_compressed(bits=8, group=64, packed=False, half=True),
    "ct-int8-asymmetric": make_compressed(bits=8, group=None, packed=False, symmetric=False),
    "fp8": fp8(),
    "fp8-block-96": fp8(96),
    "ct-fp8-tensor": fp8(None, scale="tensor"),
    "ct-fp8-channel": fp8(None, scale="channel"),
    "ct-mxfp4": mxfp4(),
    "nf4": nf4(),
    "nf4-plain": nf4(double=False),
    "nf4-block-128": nf4(block=128),
    "llm-int8": llm_int8(),
    "modelopt-nvfp4": nvfp4("modelopt"),
    "ct-nvfp4": nvfp4("compressed-tensors"),
    "modelopt-int4": modelopt_int4(),
    "modelopt-w4a8": modelopt_int4(algorithm="W4A8_AWQ"),
    **{f"modelopt-{name.lower()}": modelopt_blocks(name) for name in ("MXFP8", "W4A8_MXFP4_FP8")},
    "modelopt-int4-awq": smooth_inputs(modelopt_int4(64), ".pre_quant_scale"),
    "modelopt-nvfp4-awq": smooth_inputs(nvfp4("modelopt"), ".pre_quant_scale"),
    "mlx": mlx(),
    "mlx-g32-half": mlx(group=32, dtype="F16"),
    "mlx-g128": mlx(group=128),
    "mlx-f32": mlx(dtype="F32"),
    **{f"mlx-{bits}bit": mlx(bits) for bits in (2, 3, 5, 6, 8)},
    "torchao-int8": torchao_bytes(),
    "torchao-int8-g32": torchao_bytes(group=32),
    "torchao-int8-asymmetric": torchao_bytes(zeros=True),
    "torchao-int4-bytes": torchao_bytes(4, 32, zeros=True),
    **{f"mlx-{mode}": mlx_floats(mode) for mode in ("mxfp4", "mxfp8", "nvfp4")},
    "torchao-int4": torchao_int4(),
    "torchao-int4-g32": torchao_int4(32),
    "torchao-int4-g64": torchao_int4(64),
    "torchao-tiles": torchao_tiles(),
    "torchao-tiles-g256": torchao_tiles(256),
    "torchao-words": torchao_words(),
    "torchao-int4-awq": smooth_inputs(torchao_int4(), "._weight_act_pre_scale"),
    "torchao-float8": torchao_float8(),
    **{
        f"torchao-{mode}{'-swizzled' if is_swizzled else ''}": torchao_blocks(
            mode, is_swizzled=is_swizzled
        )
        for mode in ("mxfp4", "mxfp8", "nvfp4")
        for is_swizzled in (False, True)
    },
    "torchao-float8-block": torchao_float8((64, 128)),
}
"""Name -> method, in every variant that cutaway reads."""
