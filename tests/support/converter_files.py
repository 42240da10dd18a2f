"""A small model of each architecture, in the form of llama.cpp's converter: metadata and shapes."""

from typing import Any

import numpy as np

from support.converter_layers import (
    CONTEXT,
    FF,
    HEAD,
    HEAD_NORMS,
    LAYERS,
    OUTSIDE,
    POST_BERT,
    QKV,
    RELU2,
    RELU2_EXPERTS,
    VOCAB,
    N,
    Q,
)

CONV = {"shortconv.in_proj.weight": (3 * N, N), "shortconv.conv.weight": (N, 3),
        "shortconv.out_proj.weight": (N, N)}  # fmt: skip
DELTA_NET = {
    "attn_qkv.weight": (96, N), "attn_gate.weight": (64, N), "ssm_conv1d.weight": (96, 4),
    "ssm_norm.weight": (16,), "ssm_out.weight": (N, 64), "ssm_a": (4,), "ssm_dt.bias": (4,),
}  # fmt: skip
MAMBA = {
    "ssm_in.weight": (164, N), "ssm_conv1d.weight": (96, 4), "ssm_conv1d.bias": (96,),
    "ssm_a": (4, 1), "ssm_d": (4, 1), "ssm_dt.bias": (4,), "ssm_norm.weight": (2, 32),
    "ssm_out.weight": (N, 64),
}  # fmt: skip
MAMBA1 = {
    "ssm_in.weight": (128, N), "ssm_conv1d.weight": (64, 4), "ssm_conv1d.bias": (64,),
    "ssm_x.weight": (4 + 2 * 8, 64), "ssm_dt.weight": (64, 4), "ssm_dt.bias": (64,),
    "ssm_a": (64, 8), "ssm_d": (64,), "ssm_out.weight": (N, 64),
}  # fmt: skip
APART = {"ssm_alpha.weight": (4, N), "ssm_beta.weight": (4, N)}
APART_NETS = {
    "attn_q.weight": (16, N), "attn_k.weight": (16, N), "attn_v.weight": (64, N),
    "ssm_conv1d.weight": (96, 4), "attn_gate.weight": (64, N), "ssm_norm.weight": (16,),
    "ssm_out.weight": (N, 64), "ssm_a": (4,), "ssm_dt.bias": (4,), "attn_norm.weight": (N,),
}  # fmt: skip
KEYS_FORGET = {f"ssm_conv1d_{x}.weight": (1, Q, 1, 4) for x in "qkv"} | {
    "attn_q.weight": (Q, N), "attn_k.weight": (Q, N), "attn_v.weight": (Q, N),
    **{f"ssm_{x}_a.weight": (HEAD, N) for x in "fg"},
    **{f"ssm_{x}_b.weight": (Q, HEAD) for x in "fg"},
    "ssm_beta.weight": (4, N), "ssm_a": (1, 1, 4, 1), "ssm_dt.bias": (Q,),
    "ssm_norm.weight": (HEAD,), "attn_output.weight": (N, Q),
}  # fmt: skip
STATES: dict[str, Any] = {
    "olmo-hybrid": APART_NETS | APART, "kimi-linear": KEYS_FORGET,
    **dict.fromkeys(("lfm2", "lfm2moe", "lfm3"), CONV),
    **dict.fromkeys(("qwen35", "qwen35moe"), DELTA_NET | APART),
    "qwen3next": DELTA_NET | {"ssm_ba.weight": (8, N)},
    **dict.fromkeys(("granitehybrid", "falcon-h1", "mamba2"), MAMBA),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), MAMBA),
    **dict.fromkeys(("mamba", "jamba"), MAMBA1),
}  # fmt: skip
"""What the second layer has instead of attention."""
SIZES_OF_STATES = {  # 2 heads of 8 for keys, 4 of 16 for values
    "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.state_size": 8, "ssm.inner_size": 4 * 16,
}  # fmt: skip


def make_recurrent(name, metadata, shapes):
    """The second layer, or, where one is not one thing alone, both."""
    states = STATES[name].items()
    if name in ("falcon-h1", "mamba2", "mamba"):
        shapes |= {f"blk.{i}.{tensor}": shape for i in range(2) for tensor, shape in states}
    if name in ("mamba2", "mamba"):
        metadata[f"{name}.attention.head_count"] = 0
        for i in range(2):
            del shapes[f"blk.{i}.attn_output.weight"]
    if name in ("falcon-h1", "mamba2", "mamba"):
        return
    has_only = {"kimi-linear": LAYERS[name], "olmo-hybrid": ("post_ffw_norm.weight",)}
    only_there = (t for t in has_only.get(name, ()) if not t.startswith(("ffn", "exp")))
    of_attention = (*QKV, *HEAD_NORMS, "attn_output.weight", "attn_gate.weight", *only_there)
    for tensor in of_attention:
        if tensor != "attn_norm.weight":
            shapes.pop(f"blk.1.{tensor}", None)
    shapes |= {f"blk.1.{tensor}": shape for tensor, shape in states}
    if STATES[name] is CONV:
        shapes["token_embd_norm.weight"] = shapes.pop("output_norm.weight")
    metadata[f"{name}.attention.recurrent_layers"] = np.array([False, True])
    if name == "olmo-hybrid":
        return
    if name.startswith("qwen"):  # queries have gates
        shapes["blk.0.attn_q.weight"] = (2 * Q, N)
        for i in range(2):
            shapes[f"blk.{i}.post_attention_norm.weight"] = shapes.pop(f"blk.{i}.ffn_norm.weight")
        return
    metadata[f"{name}.attention.head_count_kv"] = np.array([2, 0], np.int32)
    if name == "lfm3":  # a third layer attends
        metadata["lfm3.block_count"] = 3
        metadata["lfm3.attention.head_count_kv"] = np.array([2, 0, 2], np.int32)
        first = {k.removeprefix("blk.0."): v for k, v in shapes.items() if k.startswith("blk.0.")}
        shapes |= {f"blk.2.{tensor}": shape for tensor, shape in first.items()}
    if name.startswith("nemotron_h"):  # a third layer is an MLP, or experts
        metadata[f"{name}.block_count"] = 3
        metadata[f"{name}.attention.head_count_kv"] = np.array([2, 0, 0], np.int32)
        metadata[f"{name}.feed_forward_length"] = np.array([0, 0, FF], np.int32)
        mlp = RELU2_EXPERTS if name == "nemotron_h_moe" else RELU2
        for i, tensor in ((i, tensor) for i in range(2) for tensor in mlp):
            shapes.pop(f"blk.{i}.{tensor}", None)
        layer = {"attn_norm.weight": (N,)} | mlp
        shapes |= {f"blk.2.{tensor}": shape for tensor, shape in layer.items()}


NORMS_ALONE = ("nanochat", "olmo", "hrm-text")
"""Architectures whose norms have no weights."""


def loop_second_layer(shapes):
    """It gets messages; its norms and convolutions are those of layers that see the whole text."""
    del shapes["blk.0.attn_mix.weight"], shapes["blk.1.attn_norm.weight"]
    shapes |= {"blk.1.attn_mix.weight": (3, N), "blk.1.loop_mix.weight": (4, N)}
    for name in ("q", "k", "v", "ffn"):
        shapes[f"blk.1.loop_{name}_down.weight"] = (3, 2 * N)
        shapes |= {f"blk.1.loop_{name}_{part}.weight": (N, 3) for part in ("forget", "gain")}
    shapes |= {f"blk.1.attn_norm_{name}.weight": (N,) for name in "qkv"}
    shapes |= {f"blk.1.attn_{name}_taps.weight": (2 * 4, N) for name in "kv"}


LATENT_KEYS = {
    "attention.key_length_mla": HEAD, "attention.value_length_mla": HEAD,
    "attention.kv_lora_rank": 16, "rope.dimension_count": 2, "attention.head_count_kv": 1,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "deepseek2": LATENT_KEYS, "minicpm3": LATENT_KEYS, "kimi-linear": LATENT_KEYS,
    "hrm-text": {"attention.head_count_kv": 4, "slow_cycles": 2, "fast_cycles": 3},
    "gemma3n": {"altup.num_inputs": 3},
    "deberta-v2": {"attention.head_count_kv": 4, "attention.relative_buckets_count": 8},
    "mimo2": {"attention.value_length": 6, "attention.sliding_window": 8},
    "rwkv7": {"attention.head_count": 0, "wkv.head_size": HEAD},
    "inkling2": {
        "loop.first": 1, "loop.last": 2, "loop.passes": 2, "attention.head_clip": 2.0,
        "attention.relative_clip": 2.0, "attention.residual_block_size": 1,
        "attention.query_growth": 0.1, "attention.query_growth_floor": 9,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": np.array([True, False]),
    },
}  # fmt: skip
"""The metadata of some architectures, beside or instead of what all have."""

ABSENT = {
    "modern-bert": ("blk.0.attn_norm",),  # what its first layer reads is normed already
    "rwkv7": (  # the first layer's values are its own
        "blk.0.attn_output", "blk.1.attn_output", *(f"blk.0.time_mix_v{i}" for i in range(3)),
    ),
}  # fmt: skip
"""The tensors of ``LAYERS`` that a file lacks."""


def metadata_of(name):
    architecture = {"mixtral": "llama"}.get(name, name)
    keys = {
        "context_length": CONTEXT, "embedding_length": N, "block_count": 2,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5000.0,
        "embedding_scale": 2.0,
    }  # fmt: skip
    if "ffn_up_exps.weight" in LAYERS[name]:
        keys |= {"expert_count": 4, "expert_used_count": 2}
    keys |= KEYS.get(name, {})
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    if name == "apertus":
        metadata |= dict.fromkeys(("xielu.alpha_p", "xielu.alpha_n", "xielu.beta"), 0.5)
        metadata["xielu.eps"] = -1e-6
    return {"general.architecture": architecture} | metadata


def file_of(name):
    """(metadata, the tensor table) of a model of two layers."""
    metadata = metadata_of(name)
    shapes = {"token_embd.weight": (VOCAB, N), "output_norm.weight": (N,)} | OUTSIDE.get(name, {})
    if POST_BERT.items() <= LAYERS[name].items() or name in NORMS_ALONE:
        del shapes["output_norm.weight"]
    width = 4 * metadata[f"{metadata['general.architecture']}.attention.value_length"]
    for i in range(2):
        layer = LAYERS[name] | {"attn_output.weight": (N, width)}
        shapes |= {f"blk.{i}.{tensor}": shape for tensor, shape in layer.items()}
    if name in STATES:
        metadata |= {f"{name}.{key}": value for key, value in SIZES_OF_STATES.items()}
        make_recurrent(name, metadata, shapes)
    if name == "inkling2":
        loop_second_layer(shapes)
    for tensor in ABSENT.get(name, ()):
        del shapes[f"{tensor}.weight"]
    return metadata, shapes
