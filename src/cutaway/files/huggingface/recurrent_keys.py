"""Metadata of models in which layers have a recurrent state: which they are, how large it is.

As `family_keys`: each function takes a config and gives metadata without the architecture's prefix.
"""

from collections.abc import Mapping
from math import isinf
from typing import Any

import numpy as np

from cutaway.files.huggingface import family_keys as keys
from cutaway.files.huggingface import mixture_keys
from cutaway.files.huggingface.json_object import JsonObject

FULL = keys.FULL
_LINEAR = "linear_attention"  # what transformers 5 calls any layer with a state
_KINDS = {"attention": FULL, "mamba": _LINEAR, "hybrid": FULL}  # and 4 calls them
_PATTERN = {"M": _LINEAR, "*": FULL, "-": "mlp", "E": "moe"}  # Nemotron-H's letters


def lfm2(config: JsonObject) -> dict[str, Any]:
    """MLPs of one width."""
    return _lfm2(config) | {"feed_forward_length": _lfm2_feed_forward(config)}


def _lfm2(config: JsonObject) -> dict[str, Any]:
    """Which layers attend; the others are short convolutions, to which GGUF gives no kv heads."""
    if "Bidirectional" in str(config.get("architectures")):
        but = "its convolutions read the token after each, and those of LFM2 here none after it"
        config.refuse("architectures", but)
    layers, kv_heads = config.size("num_hidden_layers"), config.size("num_key_value_heads")
    attend, kinds = config.get("full_attn_idxs"), config.get("layer_types")
    if kinds is None:
        attend = range(layers) if attend is None else attend
        if not isinstance(attend, (list, range)) or not all(i in range(layers) for i in attend):
            config.fail("full_attn_idxs", f"a list of layers, each from 0 to {layers - 1}")
        kinds = [FULL if i in attend else "conv" for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {FULL, "conv"}:
        config.fail("layer_types", f'one of "{FULL}" and "conv" for each of {layers} layers')
    counts = np.array([kv_heads if kind == FULL else 0 for kind in kinds], np.int32)
    return {
        "attention.head_count_kv": counts, "shortconv.l_cache": config.size("conv_L_cache"),
    }  # fmt: skip


def _lfm2_feed_forward(config: JsonObject) -> int:
    """The width of the MLP, which config.json says as that of one without a gate."""
    name = "block_ff_dim" if config.get("block_ff_dim") is not None else "intermediate_size"
    width = config.size(name)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    if config.get("block_ffn_dim_multiplier") is not None:
        width = int(config.positive("block_ffn_dim_multiplier") * width)
    multiple = config.size("block_multiple_of")
    return -(-width // multiple) * multiple


def lfm2_moe(config: JsonObject) -> dict[str, Any]:
    """Weights by sigmoid, chosen with biases; the first layers have no experts."""
    return _lfm2(config) | mixture_keys.experts(config, "num_experts") | {
        "feed_forward_length": config.size("intermediate_size"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_gating_func": mixture_keys.SIGMOID,
        "expert_weights_norm": config.flag("norm_topk_prob", True),
        "expert_weights_scale": config.positive("routed_scaling_factor"),
        "leading_dense_block_count": config.id("num_dense_layers"),
    }  # fmt: skip


# -- gated delta nets ------------------------------------------------------------------------------


def qwen35(config: JsonObject) -> dict[str, Any]:
    """Gated delta nets in all layers but every fourth, or as config.json lists them."""
    return _delta_nets(config) | {"rope.dimension_sections": keys.sections(config, [11, 11, 10])}


def qwen35_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, and one that all rows share, by a gate of its own."""
    return qwen35(config) | _experts_beside_a_shared_one(config)


def qwen3_next(config: JsonObject) -> dict[str, Any]:
    """As Qwen 3.5 with experts, without the positions of pictures."""
    return _delta_nets(config) | _experts_beside_a_shared_one(config)


def _experts_beside_a_shared_one(config: JsonObject) -> dict[str, Any]:
    metadata = mixture_keys.qwen2_moe(config)
    return metadata | {"feed_forward_length": config.size("moe_intermediate_size")}


def _delta_nets(config: JsonObject) -> dict[str, Any]:
    layers = config.size("num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.size("full_attention_interval")
        kinds = [_LINEAR if (i + 1) % every else FULL for i in range(layers)]
    known = {_LINEAR, FULL}
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= known:
        config.fail("layer_types", f"one of {', '.join(sorted(known))} for each of {layers} layers")
    config.must_be("attention_bias", False)
    heads = config.size("linear_num_value_heads")
    return keys.plain(config) | {
        "attention.recurrent_layers": np.array([kind != FULL for kind in kinds]),
        "ssm.conv_kernel": config.size("linear_conv_kernel_dim"),
        "ssm.state_size": config.size("linear_key_head_dim"),
        "ssm.group_count": config.size("linear_num_key_heads"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config.size("linear_value_head_dim"),
    }


# -- Mamba 2 ---------------------------------------------------------------------------------------


def kinds_of(config: JsonObject) -> list[str]:
    """Of each layer, as transformers 5 says it; a pattern of letters and indices are known, too."""
    pattern, indices = config.get("hybrid_override_pattern"), config.get("attn_layer_indices")
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds is None and isinstance(pattern, str):
        kinds = [_PATTERN.get(letter, letter) for letter in pattern]
    if kinds is None and isinstance(indices, list):
        layers = range(config.size("num_hidden_layers"))
        kinds = [FULL if layer in indices else _LINEAR for layer in layers]
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        config.fail("layer_types", "a list of kinds, one for each layer")
    return [_KINDS.get(str(kind), str(kind)) for kind in kinds]


def _mamba(config: JsonObject, kinds: list[str]) -> dict[str, Any]:
    """GGUF gives layers that do not attend no kv heads."""
    _check_no_limit(config)
    config.must_be("mamba_hidden_act", "silu")
    if known := {*kinds} - {_LINEAR, FULL, "mlp", "moe"}:
        config.refuse("layer_types", f"{min(known)!r} is no kind of layer that")
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
    """Of the time steps, from 0 to infinity, which transformers 5 writes as an object."""
    limit = config.get("time_step_limit")
    if limit is None:
        return
    if isinstance(limit, list) and len(limit) == 2:
        first, last = (_float(one) for one in limit)
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
    """Mamba 2 alone: GGUF says that there are no heads of attention."""
    for name in ("use_bias", "norm_before_gate"):
        config.must_be(name, False)
    config.must_be("hidden_act", "silu")
    kinds = [_LINEAR] * config.size("num_hidden_layers")
    return _mamba(config, kinds) | {
        "feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0,
        "attention.key_length": 0, "attention.value_length": 0,
    }  # fmt: skip


def falcon_inner(config: JsonObject) -> int:
    """Values of all heads of a layer's Mamba 2."""
    if config.get("mamba_d_ssm") is not None:
        return config.size("mamba_d_ssm")
    return config.size("mamba_expand") * config.size("hidden_size")


def falcon_h1(config: JsonObject) -> dict[str, Any]:
    """Mamba 2 beside attention in every layer; factors of layers are in their weights."""
    _check_no_limit(config)
    for name in ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"):
        config.must_be(name, False)
    for name in ("hidden_act", "mamba_hidden_act"):
        config.must_be(name, "silu")
    if config.flag("mamba_rms_norm"):
        config.must_be("mamba_norm_before_gate", False)
    return keys.plain(config) | {
        "embedding_scale": config.number("embedding_multiplier"),
        "logit_scale": 1 / config.positive("lm_head_multiplier"),
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.group_count": config.size("mamba_n_groups"),
        "ssm.time_step_rank": config.size("mamba_n_heads"),
        "ssm.inner_size": falcon_inner(config),
    }


def granite_hybrid(config: JsonObject) -> dict[str, Any]:
    """Granite 4's h models: Mamba 2 in most layers, and attention mostly without positions."""
    config.must_be("position_embedding_type", None, "nope", "rope")
    return keys.granite(config) | _mamba(config, kinds_of(config)) | {
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
    }  # fmt: skip


def granite_hybrid_moe(config: JsonObject) -> dict[str, Any]:
    """With experts beside the MLP that all rows go through."""
    return granite_hybrid(config) | mixture_keys.granite_moe(config)


def bamba(config: JsonObject) -> dict[str, Any]:
    """Granite 4's h models without its factors, with positions."""
    metadata = keys.plain(config) | _mamba(config, kinds_of(config))
    return metadata | {"rope.scaling.finetuned": True}


def granite_dense(config: JsonObject) -> dict[str, Any]:
    """Granite 4 without experts and without layers of another kind than attention."""
    if {*kinds_of(config)} - {FULL}:
        config.refuse("layer_types", "only layers of attention are")
    config.must_be("num_local_experts", 0)
    if config.get("position_embedding_type") != "rope":
        config.refuse("position_embedding_type", "of models without states only 'rope' is")
    return keys.granite(config)


def nemotron_h(config: JsonObject) -> dict[str, Any]:
    """Each layer is one thing: Mamba 2, attention without positions, an MLP, or experts."""
    kinds = kinds_of(config)
    config.must_be("hidden_act", "relu2")
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
    return mixture_keys.sigmoid_routing(config) | {
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": config.size("moe_shared_expert_intermediate_size"),
    }
