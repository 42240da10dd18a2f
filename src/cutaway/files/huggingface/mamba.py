"""The families with Mamba 2 in some layers.

As `families`, of which this is a part. Knows no files.
"""

from collections.abc import Mapping
from dataclasses import replace

from cutaway.files.huggingface import recurrent_keys as keys
from cutaway.files.huggingface.family import ATTENTION, OUTSIDE, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    GroupedVector,
    Half,
    Multiplied,
    Rewrite,
    Squeezed,
    interleave_rope_rows,
    minus_exp,
)
from cutaway.files.huggingface.rope import share_of

_MAMBA = {
    f"mamba.{old}": f"ssm_{new}" for old, new in (
        ("in_proj", "in"), ("conv1d", "conv1d"), ("norm", "norm"), ("out_proj", "out")
    )
}  # fmt: skip
_SCALARS = {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias", "D": "ssm_d"}
_HALVES = {
    f"ffn_{name}{of}": Half(i) for i, name in enumerate(("gate", "up")) for of in ("", "_shexp")
}


def _mamba(config: JsonObject) -> dict[str, Rewrite]:
    """GGUF has a row for each head, and for each group of a norm."""
    groups = config.size("mamba_n_groups", 1 << 16)
    return {
        "ssm_a": GroupedVector(then=minus_exp), "ssm_d": GroupedVector(),
        "ssm_norm": GroupedVector(groups), "ssm_conv1d": Squeezed(),
    }  # fmt: skip


def _interleaved(config: JsonObject) -> dict[str, Rewrite]:
    """Of each head the share that is rotated."""
    heads = config.size("num_attention_heads")
    kv_heads = heads
    if config.get("num_key_value_heads") is not None:
        kv_heads = config.size("num_key_value_heads")
    share = share_of(config)
    rotated = None if share == 1 else int(config.size("hidden_size") // heads * share)
    return {
        "attn_q": interleave_rope_rows(heads, rotated),
        "attn_k": interleave_rope_rows(kv_heads, rotated),
    }


def _granite(config: JsonObject) -> Mapping[str, Rewrite]:
    has_states = config.get("mamba_n_groups") is not None
    return _HALVES | _interleaved(config) | (_mamba(config) if has_states else {})


def _bamba(config: JsonObject) -> Mapping[str, Rewrite]:
    return _interleaved(config) | _mamba(config)


def _nemotron(config: JsonObject) -> Mapping[str, Rewrite]:
    return _mamba(config)


_GRANITE_DENSE = Family(
    architecture="granite", outside=OUTSIDE, own=keys.granite_dense, rewrites_of=_granite,
    layer=ATTENTION | {
        "shared_mlp.input_linear": "ffn_gate+ffn_up", "shared_mlp.output_linear": "ffn_down",
    },
    names={"intermediate_size": "shared_intermediate_size"},
)  # fmt: skip
_GRANITE_HYBRID = replace(
    _GRANITE_DENSE, architecture="granitehybrid", own=keys.granite_hybrid,
    layer={**_GRANITE_DENSE.layer, **_MAMBA},
    whole={f"mamba.{old}": new for old, new in _SCALARS.items()},
)  # fmt: skip
_GRANITE_HYBRID_MOE = replace(
    _GRANITE_HYBRID, own=keys.granite_hybrid_moe, names={}, experts_turned=False,
    layer=ATTENTION | _MAMBA | {
        "shared_mlp.input_linear": "ffn_gate_shexp+ffn_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.input_linear": "ffn_gate_exps+ffn_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
    },
)  # fmt: skip
_BAMBA = Family(
    architecture="granitehybrid", own=keys.bamba, rewrites_of=_bamba, partial_rope=True,
    outside={**OUTSIDE, "final_layernorm": "output_norm"},
    layer=ATTENTION | _MAMBA | {
        "pre_ff_layernorm": "ffn_norm", "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
    },
    whole=_GRANITE_HYBRID.whole,
)  # fmt: skip
_MIXER = {
    "norm": "attn_norm", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
} | {f"mixer.{old.removeprefix('mamba.')}": new for old, new in _MAMBA.items()}  # fmt: skip
_NEMOTRON_H = Family(
    architecture="nemotron_h", prefixes=("backbone.", "model."), own=keys.nemotron_h, rope=False,
    outside={
        "embeddings": "token_embd", "embed_tokens": "token_embd", "norm_f": "output_norm",
        "lm_head": "output",
    },
    layer=_MIXER, whole={f"mixer.{old}": new for old, new in _SCALARS.items()},
    rewrites_of=_nemotron, own_width=True,
    names={
        "hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon",
        "mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim",
        "mamba_n_groups": "n_groups", "mamba_d_state": "ssm_state_size",
        "mamba_d_conv": "conv_kernel",
    },
)  # fmt: skip
_MAMBA2 = Family(
    architecture="mamba2", prefixes=("backbone.",), own=keys.mamba2, rope=False,
    outside=_NEMOTRON_H.outside, whole=_NEMOTRON_H.whole, rewrites_of=_mamba, own_width=True,
    layer={"norm": "attn_norm"} | {
        f"mixer.{old.removeprefix('mamba.')}": new for old, new in _MAMBA.items()
    },
    names={
        "rms_norm_eps": "layer_norm_epsilon", "mamba_n_heads": "num_heads",
        "mamba_d_head": "head_dim", "mamba_n_groups": "n_groups", "mamba_d_state": "state_size",
        "mamba_d_conv": "conv_kernel", "mamba_expand": "expand",
    },
    defaults={"num_attention_heads": 1, "max_position_embeddings": 2**20},
)  # fmt: skip
_NEMOTRON_H_MOE = replace(
    _NEMOTRON_H, architecture="nemotron_h_moe",
    layer=_MIXER | {
        "mixer.gate": "ffn_gate_inp", "mixer.gate.e_score_correction_bias": "exp_probs_b",
        "mixer.shared_experts.up_proj": "ffn_up_shexp",
        "mixer.shared_experts.down_proj": "ffn_down_shexp",
        "mixer.experts.up_proj": "ffn_up_exps", "mixer.experts.down_proj": "ffn_down_exps",
    },
    experts={
        "mixer.experts.{}.up_proj": "ffn_up_exps", "mixer.experts.{}.down_proj": "ffn_down_exps",
    },
    experts_turned=False,
)  # fmt: skip


def _falcon(config: JsonObject) -> Mapping[str, Rewrite]:
    """Its factors are multiplied into the matrices, as in GGUF."""
    inner, groups = keys.falcon_inner(config), config.size("mamba_n_groups", 1 << 16)
    heads, shared = config.size("mamba_n_heads"), groups * config.size("mamba_d_state")
    gate, down = config.numbers("mlp_multipliers", 2)
    first = config.number("ssm_in_multiplier")
    each = [first * factor for factor in config.numbers("ssm_multipliers", 5)]
    reads, writes, of_keys, of_states = (
        config.number(f"{name}_multiplier")
        for name in ("attention_in", "attention_out", "key", "ssm_out")
    )
    rows = (inner, inner, shared, shared, heads)
    whole = {
        "attn_q": reads, "attn_k": reads * of_keys, "attn_v": reads, "attn_output": writes,
        "ffn_gate": gate, "ffn_down": down, "ssm_out": of_states,
    }  # fmt: skip
    return {
        **_mamba(config), **{name: Multiplied(((0, factor),)) for name, factor in whole.items()},
        "ssm_in": Multiplied(tuple(zip(rows, each, strict=True))),
    }  # fmt: skip


_FALCON_H1 = Family(
    architecture="falcon-h1", own=keys.falcon_h1, rewrites_of=_falcon,
    outside=_BAMBA.outside, layer=_BAMBA.layer, whole=_GRANITE_HYBRID.whole,
    defaults={"mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0] * 5},
)  # fmt: skip

MAMBA: Mapping[str, Family] = {
    "falcon_h1": _FALCON_H1,
    "mamba2": _MAMBA2,
    "granitemoehybrid": _GRANITE_DENSE,
    "granitehybrid": _GRANITE_HYBRID,
    "granitehybrid_moe": _GRANITE_HYBRID_MOE,
    "bamba": _BAMBA,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H_MOE,
}
"""By config.json's model_type, or as ``meant`` says."""


def meant(name: str | None, config: JsonObject) -> str | None:
    """What a model is to be called where its layers say more than its model_type."""
    if name == "nemotron_h" and "moe" in keys.kinds_of(config):
        return "nemotron_h_moe"
    if name == "granitemoehybrid" and {*keys.kinds_of(config)} - {keys.FULL}:
        return "granitehybrid_moe" if config.get("num_local_experts") else "granitehybrid"
    return name
