"""The families of mixtures of experts: how each differs from the family whose attention it has.

Knows how many experts a family has, how they are chosen, which MLPs all rows go through, and the
names of tensors. The graphs are in ``compute/model/architectures/mixtures.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.family import (
    ATTENTION,
    EXPERTS,
    FUSED_EXPERTS,
    HEAD_NORMS,
    LAYER,
    MIXTRAL_EXPERTS,
    NEXTN,
    TEXT,
    Family,
    mlp,
)
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Half, Rewrite, interleave_rope_rows
from cutaway.files.huggingface.rope import PARTIAL, Ropes, settings_of

SOFTMAX, SIGMOID = 1, 2  # GGUF's numbers of gatings


# -- keys ------------------------------------------------------------------------------------------


def experts(config: JsonObject, count: str) -> dict[str, Any]:
    """Return how many experts there are, and how many a row uses.

    count: config.json's key for the number of experts
    """
    return {
        "expert_count": config.size(count),
        "expert_used_count": config.size("num_experts_per_tok"),
    }


def qwen2_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model with experts in every layer.

    All rows share one more expert, which has a gate of its own.
    """
    shared = config.size("shared_expert_intermediate_size")
    return keys.qwen3_moe(config) | {"expert_shared_feed_forward_length": shared}


def olmoe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model with experts in every layer."""
    if config.get("clip_qkv") is not None:
        config.refuse("clip_qkv", "only null is")
    return flex_olmo(config)


def flex_olmo(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model with experts in every layer."""
    return experts(config, "num_experts") | {
        "expert_weights_norm": config.flag("norm_topk_prob"),
    }  # fmt: skip


def granite_moe_swash(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Granite's experts, windows and ropes."""
    return granite_moe(config) | keys.granite_swash(config)


def granite_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts in every layer, and of an MLP that all rows share, if any."""
    metadata = keys.granite(config) | experts(config, "num_local_experts")
    if config.get("shared_intermediate_size"):
        metadata["expert_shared_feed_forward_length"] = config.size("shared_intermediate_size")
    return metadata


def ernie4_5_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model with experts in every n-th layer, from a first layer on.

    The weights that choose experts have biases.
    """
    width, layers = config.size("moe_intermediate_size"), config.size("num_hidden_layers")
    config.must_be("moe_layer_end_index", -1, layers - 1)
    shared = config.with_defaults({}, {"moe_num_shared_experts": 0}).id("moe_num_shared_experts")
    metadata = experts(config, "num_experts") | {
        "expert_feed_forward_length": width,
        "expert_shared_count": shared,
        "interleave_moe_layer_step": config.size("moe_layer_interval"),
        "leading_dense_block_count": config.id("moe_layer_start_index"),
    }  # fmt: skip
    return metadata | ({"expert_shared_feed_forward_length": width * shared} if shared else {})


def sigmoid_router(config: JsonObject) -> dict[str, Any]:
    """Return the keys of DeepSeek-V3's router; the model's first layers have no experts."""
    return sigmoid_routing(config) | {
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "leading_dense_block_count": config.id("first_k_dense_replace"),
    }  # fmt: skip


def sigmoid_routing(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts whose weights are computed by a sigmoid, then scaled.

    Experts are chosen from the best groups, with biases.
    """
    return experts(config, "n_routed_experts") | groups(config) | {
        "expert_shared_count": config.get("n_shared_experts") or 0,
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": config.flag("norm_topk_prob"),
        "expert_weights_scale": config.positive("routed_scaling_factor"),
    }  # fmt: skip


def solar_open(config: JsonObject) -> dict[str, Any]:
    """Return the keys of DeepSeek-V3's router; all layers have experts."""
    config = config.with_defaults({}, {"first_k_dense_replace": 0})
    return sigmoid_router(config) | {"feed_forward_length": config.size("moe_intermediate_size")}


def minimax_m2(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts in every layer, whose weights are computed by a sigmoid."""
    config.must_be("scoring_func", "sigmoid")
    config.must_be("use_qk_norm", True)
    config.must_be("qk_norm_type", "per_layer")
    metadata = experts(config, "num_local_experts") | {
        "expert_feed_forward_length": config.size("intermediate_size"),
        "expert_gating_func": SIGMOID,
    }  # fmt: skip
    if config.get("rotary_dim") and settings_of(config).get("partial_rotary_factor") is None:
        metadata["rope.dimension_count"] = config.size("rotary_dim")  # as published
    return metadata


def mellum(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts, and of windows, whose layers have a rotary base of their own."""
    config.must_be("mlp_layer_types", ["sparse"] * config.size("num_hidden_layers"))
    return keys.flagged_windows(config, lambda _: keys.FULL) | {
        **experts(config, "num_experts"),
        "rope.freq_base_swa": keys.local_base(config, "rope_local_base_freq"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_weights_norm": config.flag("norm_topk_prob"),
    }


def exaone_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of DeepSeek-V3's router, and of windows in three of four layers."""
    layers, dense = config.size("num_hidden_layers"), config.id("first_k_dense_replace")
    config.must_be("sliding_window_pattern", 4, "LLLG")
    kinds = ["dense" if layer < dense else "sparse" for layer in range(layers)]
    config.must_be("mlp_layer_types", kinds)
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    return keys.flagged_windows(config) | sigmoid_router(config.with_defaults(names, {}))


def groups(config: JsonObject) -> dict[str, Any]:
    """Return how many groups of experts there are, and how many a row may use; {} for one group."""
    if (config.get("n_group") or 1) == 1:
        config.must_be("topk_group", 1)
        return {}
    return {
        "expert_group_count": config.size("n_group"),
        "expert_group_used_count": config.size("topk_group"),
    }


def dots1(config: JsonObject) -> dict[str, Any]:
    """Return the keys of the router; refuse windows."""
    full = ["full_attention"] * config.size("num_hidden_layers")
    config.must_be("layer_types", full)
    if config.get("layer_types") is None and config.get("sliding_window") is not None:
        config.must_be("max_window_layers", len(full))
    return sigmoid_router(config)


def gpt_oss(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts, and of a window in every other layer, from the first layer on.

    The clamped SwiGLU must have the two known numbers.
    """
    keys.check_layers(config, lambda layer: keys.FULL if layer % 2 else keys.SLIDING)
    config.must_be("swiglu_limit", 7.0)
    config.must_be("swiglu_alpha", 1.702)
    return experts(config, "num_local_experts") | {
        "attention.sliding_window": config.size("sliding_window"),
        "expert_feed_forward_length": config.size("intermediate_size"),
    }  # fmt: skip


def phimoe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model with experts in every layer, which sparsemixer chooses.

    GGUF has no key for sparsemixer's tolerance, so that only the known one is allowed.
    """
    config.must_be("router_jitter_noise", 0.01)
    config.must_be("num_experts_per_tok", 2)  # sparsemixer's number, whatever this says
    return keys.mixtral(config) | {"expert_feed_forward_length": config.size("intermediate_size")}


def afmoe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of windows, which three of four layers have, and of experts.

    Experts are chosen with biases. Their weights are computed by a sigmoid, normed and scaled.
    """
    config.must_be("global_attn_every_n_layers", 4)
    for name, value in (("mup_enabled", True), ("route_norm", True), ("score_func", "sigmoid")):
        config.must_be(name, value)
    for name in ("n_group", "num_expert_groups"):
        config.must_be(name, 1)
    return keys.flagged_windows(config) | experts(config, "num_experts") | {
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_shared_count": config.size("num_shared_experts"),
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": config.positive("route_scale"),
        "leading_dense_block_count": config.id("num_dense_layers"),
    }  # fmt: skip


def llama4(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts, and of attention in chunks.

    Rotated layers attend in chunks. In the other layers queries grow with their positions.
    """
    layers, count = config.size("num_hidden_layers"), config.size("num_local_experts")
    config = config.with_defaults({}, {"no_rope_layer_interval": 4})
    interval = config.size("no_rope_layer_interval")
    rotated = config.get("no_rope_layers") or [int((i + 1) % interval > 0) for i in range(layers)]
    has_chunks = config.values.get("attention_chunk_size", 0) is not None
    if not isinstance(rotated, list) or any(flag not in (0, 1) for flag in rotated):
        config.fail("no_rope_layers", "a list of 0 or 1 for each layer")
    if len(rotated) < layers or not (has_chunks or all(rotated)):
        config.refuse("no_rope_layers", "only layers that see all of a text have no positions")
    if not any(rotated[:layers]):
        config.refuse("no_rope_layers", "models of which no layer is rotated are not")
    kinds = [
        f"{'chunked' if has_chunks and is_rotated else 'full'}_attention"
        for is_rotated in rotated[:layers]
    ]
    config.must_be("layer_types", kinds)
    config.must_be("use_qk_norm", count != 128)  # as GGUF has it
    step = config.size("interleave_moe_layer_step")
    config.must_be("moe_layers", [*range(step - 1, layers, step)])
    grows = config.get("attn_temperature_tuning")
    growth = config.number("attn_scale") if grows in (None, True) else 0.0
    return experts(config, "num_local_experts") | {
        "feed_forward_length": config.size("intermediate_size_mlp"),
        "expert_feed_forward_length": config.size("intermediate_size"),
        "interleave_moe_layer_step": step,
        "attention.sliding_window": config.size("attention_chunk_size") if has_chunks else 0,
        "attention.sliding_window_pattern": np.array(["chunked" in kind for kind in kinds]),
        "attention.temperature_length": config.size("floor_scale"),
        "attention.temperature_scale": growth,
    }  # fmt: skip


def hunyuan_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts in every layer, and of an MLP that all rows share.

    The MLP and all experts have the same width.
    """
    settings = config.with_defaults({"num_experts_per_tok": "moe_topk"}, {}).alike(
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_shared_expert"
    )
    config.must_be("use_mixed_mlp_moe", True)
    width = config.size("intermediate_size")
    if settings.get("moe_intermediate_size") is not None:
        settings.must_be("moe_intermediate_size", width)
    settings.must_be("num_shared_expert", 1)
    return experts(settings, "num_experts") | {
        "expert_feed_forward_length": width,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": width,
    }  # fmt: skip


# -- names and rewrites of tensors -----------------------------------------------------------------


ROUTER = {"mlp.gate": "ffn_gate_inp"}
CHOOSING = {"mlp.gate.e_score_correction_bias": "exp_probs_b"}
SHARED = mlp("mlp.shared_experts", "_shexp")
"""The expert that all rows go through."""


def _granite(heads: int, kv_heads: int) -> Mapping[str, Rewrite]:
    return {
        "attn_q": interleave_rope_rows(heads), "attn_k": interleave_rope_rows(kv_heads),
        "ffn_gate_shexp": Half(0), "ffn_up_shexp": Half(1),
    }  # fmt: skip


_GRANITE_MOE = Family(
    architecture="granitemoe", metadata=granite_moe, rewrites=_granite,
    layer=ATTENTION | {
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.input_linear": "ffn_gate_exps+ffn_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "shared_mlp.input_linear": "ffn_gate_shexp+ffn_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
    },
    experts_turned=False,
)  # fmt: skip
_LLAMA4 = Family(
    architecture="llama4", prefixes=TEXT, metadata=llama4,
    layer=ATTENTION | {
        **mlp("feed_forward"), **mlp("feed_forward.shared_expert", "_shexp"),
        "feed_forward.router": "ffn_gate_inp",
        "feed_forward.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
        "feed_forward.experts.down_proj": "ffn_down_exps",
    },
    experts_turned=True,
)  # fmt: skip


ROWS: Mapping[str, Family] = {
    "qwen3_moe": Family(
        architecture="qwen3moe",
        layer=ATTENTION | HEAD_NORMS | ROUTER,
        experts=EXPERTS, metadata=keys.qwen3_moe,
    ),
    "qwen2_moe": Family(
        architecture="qwen2moe", metadata=qwen2_moe, experts=EXPERTS,
        layer=ATTENTION | ROUTER | mlp("mlp.shared_expert", "_shexp") | {
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        },
    ),
    "olmoe": Family(
        architecture="olmoe", metadata=olmoe, experts=EXPERTS,
        layer=ATTENTION | HEAD_NORMS | ROUTER,
    ),
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "ernie4_5_moe": Family(
        architecture="ernie4_5-moe", metadata=ernie4_5_moe, experts=EXPERTS,
        layer=LAYER | ROUTER | SHARED | {
            "mlp.moe_statics.e_score_correction_bias": "exp_probs_b",
        },
        names={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    ),
    "glm4_moe": Family(
        architecture="glm4moe", metadata=sigmoid_router, experts=EXPERTS,
        layer={
            **LAYER, **HEAD_NORMS, **ROUTER, **SHARED, **CHOOSING, **NEXTN,
            "post_attention_layernorm": "post_attention_norm",
        },
        rope=PARTIAL,
    ),
    "dots1": Family(
        architecture="dots1", metadata=dots1, experts=EXPERTS,
        layer={
            **LAYER, **HEAD_NORMS, **ROUTER, **SHARED, **CHOOSING,
        },
    ),
    "gpt_oss": Family(
        architecture="gpt-oss", metadata=gpt_oss,
        layer={
            **ATTENTION, "post_attention_layernorm": "post_attention_norm",
            "self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp",
            **FUSED_EXPERTS,
        },
        experts_turned=True, experts_alternate=True, rope=Ropes(truncates=False),
    ),
    "solar_open": Family(
        architecture="glm4moe", metadata=solar_open, experts=EXPERTS,
        layer=LAYER | ROUTER | SHARED | CHOOSING | {
            "post_attention_layernorm": "post_attention_norm",
        },
        rope=PARTIAL,
    ),
    "minimax_m2": Family(
        architecture="minimax-m2", metadata=minimax_m2, experts=MIXTRAL_EXPERTS, rope=PARTIAL,
        layer=ATTENTION | HEAD_NORMS | {
            "block_sparse_moe.gate": "ffn_gate_inp",
            "block_sparse_moe.e_score_correction_bias": "exp_probs_b",
        },
    ),
    "mellum": Family(
        architecture="mellum", metadata=mellum, experts=EXPERTS,
        layer=ATTENTION | HEAD_NORMS | ROUTER,
    ),
    "exaone_moe": Family(
        architecture="exaone-moe", metadata=exaone_moe, experts=EXPERTS,
        layer=LAYER | HEAD_NORMS | ROUTER | SHARED | {
            "mlp.e_score_correction_bias": "exp_probs_b",
        },
    ),
    "flex_olmo": Family(
        architecture="flex-olmo", metadata=flex_olmo, experts=EXPERTS,
        layer=HEAD_NORMS | ROUTER | {
            **{k: v for k, v in ATTENTION.items() if k != "input_layernorm"},
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    ),
    "granitemoe_swa": replace(
        _GRANITE_MOE, architecture="granite-swash", metadata=granite_moe_swash,
        layer={
            **_GRANITE_MOE.layer,
            "self_attn.sinks": "attn_sinks", "block_sparse_moe.router": "ffn_gate_inp",
            "block_sparse_moe.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
            "block_sparse_moe.experts.down_proj": "ffn_down_exps",
        },
        rewrites=lambda *_: {"ffn_gate_shexp": Half(0), "ffn_up_shexp": Half(1)},
    ),
    "phimoe": Family(
        architecture="phimoe", metadata=phimoe, rope=Ropes(longrope=True),
        layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"},
        experts=MIXTRAL_EXPERTS,
    ),
    "afmoe": Family(
        architecture="afmoe", metadata=afmoe, experts=EXPERTS,
        layer=LAYER | HEAD_NORMS | SHARED | {
            "post_attention_layernorm": "post_attention_norm",
            "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm",
            "self_attn.gate_proj": "attn_gate",
            "mlp.router.gate": "ffn_gate_inp", "mlp.expert_bias": "exp_probs_b",
        },
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "hunyuan_v1_moe": Family(
        architecture="hunyuan-moe", metadata=hunyuan_moe, experts=EXPERTS,
        layer=ATTENTION | mlp("mlp.shared_mlp", "_shexp") | {
            "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
            "mlp.gate.wg": "ffn_gate_inp",
        },
        rope=Ropes(ntk_alpha=True),
    ),
}  # fmt: skip
