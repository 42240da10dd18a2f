"""The families with Mamba 2 in some layers: which layers those are, names of tensors and keys.

Their graphs are in ``compute/model/architectures/mamba.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isinf
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.family import ATTENTION, OUTSIDE, Family, Variant
from cutaway.files.huggingface.families.keys import FULL, LINEAR
from cutaway.files.huggingface.families.mixtures import granite_moe, sigmoid_routing
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
from cutaway.files.huggingface.rope import PARTIAL, share_of

_KINDS = {"attention": FULL, "mamba": LINEAR, "hybrid": FULL}  # transformers 4
_PATTERN = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}  # Nemotron-H's letters


# -- keys ------------------------------------------------------------------------------------------


def kinds_of(config: JsonObject) -> list[str]:
    """Return transformers 5's name for each layer's kind; a config may have letters or indices."""
    pattern, indices = config.get("hybrid_override_pattern"), config.get("attn_layer_indices")
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds is None and isinstance(pattern, str):
        kinds = [_PATTERN.get(letter, letter) for letter in pattern]
    if kinds is None and isinstance(indices, list):
        layers = range(config.size("num_hidden_layers"))
        kinds = [FULL if layer in indices else LINEAR for layer in layers]
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        config.fail("layer_types", "a list of kinds, one for each layer")
    return [_KINDS.get(str(kind), str(kind)) for kind in kinds]


def _mamba(config: JsonObject, kinds: list[str]) -> dict[str, Any]:
    """Return Mamba 2's sizes; layers without attention have 0 kv heads in GGUF."""
    _check_no_limit(config)
    config.must_be("mamba_hidden_act", "silu")
    if unknown := {*kinds} - {LINEAR, FULL, "mlp", "moe"}:
        config.refuse("layer_types", f"{min(unknown)!r} is no kind of layer that")
    heads = config.size("mamba_n_heads")
    kv_heads = config.size("num_key_value_heads") if FULL in kinds else 0
    return {
        "attention.head_count_kv": np.array(
            [kv_heads if kind == FULL else 0 for kind in kinds], np.int32
        ),
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.group_count": config.size("mamba_n_groups"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * _head_size(config, heads),
    }


def _head_size(config: JsonObject, heads: int) -> int:
    if config.get("mamba_d_head") not in (None, "auto"):
        return config.size("mamba_d_head", 1 << 16)
    return max(config.size("mamba_expand") * config.size("hidden_size") // heads, 1)


def _check_no_limit(config: JsonObject) -> None:
    """Refuse time steps with a limit; transformers 5 writes infinity as an object."""
    limit = config.get("time_step_limit")
    if limit is None:
        return
    if isinstance(limit, list) and len(limit) == 2:
        first, last = (_float(bound) for bound in limit)
        if first == 0 and isinf(last):
            return
    config.refuse("time_step_limit", "only from 0 to infinity is")


def _float(value: Any) -> float:
    if isinstance(value, Mapping):
        value = value.get("__float__")
    try:
        return float(value)
    except (TypeError, ValueError):
        return -1.0


def mamba2(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model of Mamba 2 alone, which in GGUF has no heads of attention."""
    for name in ("use_bias", "norm_before_gate"):
        config.must_be(name, False)
    kinds = [LINEAR] * config.size("num_hidden_layers")
    return _mamba(config, kinds) | {
        "feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0,
        "attention.key_length": 0, "attention.value_length": 0,
    }  # fmt: skip


def falcon_inner(config: JsonObject) -> int:
    """Return how many values all heads of a layer's Mamba 2 have together."""
    if config.get("mamba_d_ssm") is not None:
        return config.size("mamba_d_ssm")
    return config.size("mamba_expand") * config.size("hidden_size")


def falcon_h1(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Falcon H1, which has Mamba 2 beside attention in every layer.

    The factors of layers are multiplied into the layers' weights.
    """
    _check_no_limit(config)
    for name in ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"):
        config.must_be(name, False)
    config.must_be("mamba_hidden_act", "silu")
    if config.flag("mamba_rms_norm"):
        config.must_be("mamba_norm_before_gate", False)
    return {
        "embedding_scale": config.number("embedding_multiplier"),
        "logit_scale": 1 / config.positive("lm_head_multiplier"),
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.group_count": config.size("mamba_n_groups"),
        "ssm.time_step_rank": config.size("mamba_n_heads"),
        "ssm.inner_size": falcon_inner(config),
    }


def granite_hybrid(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Granite 4's h models.

    Most of their layers are Mamba 2. Their attention mostly has no positions.
    """
    config.must_be("position_embedding_type", None, "nope", "rope")
    return keys.granite(config) | _mamba(config, kinds_of(config)) | {
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
    }  # fmt: skip


def granite_hybrid_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Granite 4's h models that have experts beside the MLP of all rows."""
    return granite_hybrid(config) | granite_moe(config)


def bamba(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Granite 4's h models without the factors, but with positions."""
    metadata = _mamba(config, kinds_of(config))
    return metadata | {"rope.scaling.finetuned": True}


def granite_dense(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Granite 4 without experts, in which all layers are attention."""
    if {*kinds_of(config)} - {FULL}:
        config.refuse("layer_types", "only layers of attention are")
    config.must_be("num_local_experts", 0)
    if config.get("position_embedding_type") != "rope":
        config.refuse("position_embedding_type", "of models without states only 'rope' is")
    return keys.granite(config)


def nemotron_h(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Nemotron-H.

    Each layer is only one of these: Mamba 2, attention without positions, an MLP, or experts.
    """
    kinds = kinds_of(config)
    for name in ("use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"):
        config.must_be(name, False)
    has_experts = "moe" in kinds
    if has_experts and "mlp" in kinds:
        config.refuse("layers_block_type", "MLPs beside layers with experts")
    width = config.size("moe_intermediate_size" if has_experts else "intermediate_size")
    widths = [width * (kind in ("mlp", "moe")) for kind in kinds]
    metadata = _mamba(config, kinds) | {"feed_forward_length": np.array(widths, np.int32)}
    return metadata | (_nemotron_experts(config, width) if has_experts else {})


def _nemotron_experts(config: JsonObject, width: int) -> dict[str, Any]:
    if config.get("moe_latent_size") is not None:
        config.refuse("moe_latent_size", "only null is")
    return sigmoid_routing(config) | {
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": config.size("moe_shared_expert_intermediate_size"),
    }


# -- names and rewrites of tensors -----------------------------------------------------------------


_MAMBA = {
    f"mamba.{old}": f"ssm_{new}" for old, new in (
        ("in_proj", "in"), ("conv1d", "conv1d"), ("norm", "norm"), ("out_proj", "out")
    )
}  # fmt: skip
_SCALARS = {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias", "D": "ssm_d"}
_HALVES = {
    f"ffn_{name}{of}": Half(i) for i, name in enumerate(("gate", "up")) for of in ("", "_shexp")
}


def _mamba_rewrites(config: JsonObject) -> dict[str, Rewrite]:
    """Return Mamba 2's rewrites: GGUF has a row for each head, and for each group of a norm."""
    groups = config.size("mamba_n_groups", 1 << 16)
    return {
        "ssm_a": GroupedVector(then=minus_exp), "ssm_d": GroupedVector(),
        "ssm_norm": GroupedVector(groups), "ssm_conv1d": Squeezed(),
    }  # fmt: skip


def _interleave(config: JsonObject) -> dict[str, Rewrite]:
    """Interleave the rotated share of each head."""
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
    return _HALVES | _interleave(config) | (_mamba_rewrites(config) if has_states else {})


def _bamba(config: JsonObject) -> Mapping[str, Rewrite]:
    return _interleave(config) | _mamba_rewrites(config)


def _nemotron(config: JsonObject) -> Mapping[str, Rewrite]:
    return _mamba_rewrites(config)


_GRANITE_DENSE = Family(
    architecture="granite", metadata=granite_dense, rewrites_of=_granite,
    layer=ATTENTION | {
        "shared_mlp.input_linear": "ffn_gate+ffn_up", "shared_mlp.output_linear": "ffn_down",
    },
    names={"intermediate_size": "shared_intermediate_size"},
)  # fmt: skip
_GRANITE_HYBRID = replace(
    _GRANITE_DENSE, architecture="granitehybrid", metadata=granite_hybrid,
    layer={**_GRANITE_DENSE.layer, **_MAMBA},
    whole={f"mamba.{old}": new for old, new in _SCALARS.items()},
)  # fmt: skip
_GRANITE_HYBRID_MOE = replace(
    _GRANITE_HYBRID, metadata=granite_hybrid_moe, names={}, experts_turned=False,
    layer=ATTENTION | _MAMBA | {
        "shared_mlp.input_linear": "ffn_gate_shexp+ffn_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.input_linear": "ffn_gate_exps+ffn_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
    },
)  # fmt: skip
_BAMBA = Family(
    architecture="granitehybrid", metadata=bamba, rewrites_of=_bamba, rope=PARTIAL,
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
    architecture="nemotron_h", must_be={"hidden_act": "relu2"}, metadata=nemotron_h,
    prefixes=("backbone.", "model."), rope=None,
    outside={
        "embeddings": "token_embd", "embed_tokens": "token_embd", "norm_f": "output_norm",
        "lm_head": "output",
    },
    layer=_MIXER, whole={f"mixer.{old}": new for old, new in _SCALARS.items()},
    rewrites_of=_nemotron,
    names={
        "hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon",
        "mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim",
        "mamba_n_groups": "n_groups", "mamba_d_state": "ssm_state_size",
        "mamba_d_conv": "conv_kernel",
    },
)  # fmt: skip
_MAMBA2 = Family(
    architecture="mamba2", prefixes=("backbone.",), metadata=mamba2, rope=None,
    outside=_NEMOTRON_H.outside, whole=_NEMOTRON_H.whole, rewrites_of=_mamba_rewrites,
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
    """Multiply the config's factors into the matrices, as GGUF does."""
    inner, groups = falcon_inner(config), config.size("mamba_n_groups", 1 << 16)
    heads, shared = config.size("mamba_n_heads"), groups * config.size("mamba_d_state")
    gate, down = config.numbers("mlp_multipliers", 2)
    first = config.number("ssm_in_multiplier")
    factors = [first * factor for factor in config.numbers("ssm_multipliers", 5)]
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
        **_mamba_rewrites(config),
        **{name: Multiplied(((0, factor),)) for name, factor in whole.items()},
        "ssm_in": Multiplied(tuple(zip(rows, factors, strict=True))),
    }  # fmt: skip


_FALCON_H1 = Family(
    architecture="falcon-h1", metadata=falcon_h1, rewrites_of=_falcon,
    outside=_BAMBA.outside, layer=_BAMBA.layer, whole=_GRANITE_HYBRID.whole,
    defaults={"mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0] * 5},
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "falcon_h1": _FALCON_H1,
    "mamba2": _MAMBA2,
    "granitemoehybrid": _GRANITE_DENSE,
    "granitehybrid": _GRANITE_HYBRID,
    "granitehybrid_moe": _GRANITE_HYBRID_MOE,
    "bamba": _BAMBA,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H_MOE,
}


def _nemotron_mixture(config: JsonObject, _: Iterable[str]) -> Family | None:
    return ROWS["nemotron_h_moe"] if "moe" in kinds_of(config) else None


def _granite_kind(config: JsonObject, _: Iterable[str]) -> Family | None:
    if not {*kinds_of(config)} - {FULL}:
        return None
    return ROWS[f"granitehybrid{'_moe' if config.get('num_local_experts') else ''}"]


VARIANTS: Mapping[str, Variant] = {
    "nemotron_h": _nemotron_mixture, "granitemoehybrid": _granite_kind,
}  # fmt: skip
