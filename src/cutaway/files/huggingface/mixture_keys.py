"""Metadata of mixtures: how many experts there are, how they are chosen, and what all rows share.

As `family_keys`: each function takes a config and gives metadata without the architecture's prefix.
"""

from typing import Any

from cutaway.files.huggingface import family_keys as keys
from cutaway.files.huggingface.json_object import JsonObject

SIGMOID = 2  # GGUF's numbers of gatings


def experts(config: JsonObject, count: str) -> dict[str, Any]:
    """How many there are, and of a row. count: the key of how many there are."""
    return {
        "expert_count": config.size(count),
        "expert_used_count": config.size("num_experts_per_tok"),
    }


def qwen2_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, and one that all rows share, by a gate of its own."""
    shared = config.size("shared_expert_intermediate_size")
    return keys.qwen3_moe(config) | {"expert_shared_feed_forward_length": shared}


def olmoe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer."""
    if config.get("clip_qkv") is not None:
        config.refuse("clip_qkv", "only null is")
    return keys.plain(config) | experts(config, "num_experts") | {
        "expert_weights_norm": config.flag("norm_topk_prob"),
    }  # fmt: skip


def granite_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, perhaps beside an MLP that all rows share."""
    metadata = keys.granite(config) | experts(config, "num_local_experts")
    if config.get("shared_intermediate_size"):
        metadata["expert_shared_feed_forward_length"] = config.size("shared_intermediate_size")
    return metadata


def ernie4_5_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every so-many-th layer from one on; the weights that choose them have biases."""
    width, layers = config.size("moe_intermediate_size"), config.size("num_hidden_layers")
    config.must_be("moe_layer_end_index", -1, layers - 1)
    shared = config.get("moe_num_shared_experts") or 0
    metadata = keys.plain(config) | experts(config, "num_experts") | {
        "expert_feed_forward_length": width,
        "expert_shared_count": shared,
        "interleave_moe_layer_step": config.size("moe_layer_interval"),
        "leading_dense_block_count": config.id("moe_layer_start_index"),
    }  # fmt: skip
    return metadata | ({"expert_shared_feed_forward_length": width * shared} if shared else {})


def sigmoid_router(config: JsonObject) -> dict[str, Any]:
    """As DeepSeek-V3's; the first layers have no experts."""
    return keys.plain(config) | sigmoid_routing(config) | {
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "leading_dense_block_count": config.id("first_k_dense_replace"),
    }  # fmt: skip


def sigmoid_routing(config: JsonObject) -> dict[str, Any]:
    """Weights by sigmoid, chosen with biases from the best groups, scaled."""
    return experts(config, "n_routed_experts") | _groups(config) | {
        "expert_shared_count": config.get("n_shared_experts") or 0,
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": config.flag("norm_topk_prob"),
        "expert_weights_scale": config.positive("routed_scaling_factor"),
    }  # fmt: skip


def _groups(config: JsonObject) -> dict[str, Any]:
    if (config.get("n_group") or 1) == 1:
        return {}
    return {
        "expert_group_count": config.size("n_group"),
        "expert_group_used_count": config.size("topk_group"),
    }


def dots1(config: JsonObject) -> dict[str, Any]:
    """No windows."""
    full = ["full_attention"] * config.size("num_hidden_layers")
    config.must_be("layer_types", full)
    if config.get("layer_types") is None and config.get("sliding_window") is not None:
        config.must_be("max_window_layers", len(full))
    return sigmoid_router(config)


def gpt_oss(config: JsonObject) -> dict[str, Any]:
    """A window in every other layer, the first included; a clamped SwiGLU of two known numbers."""
    keys.check_layers(config, lambda layer: keys.FULL if layer % 2 else keys.SLIDING)
    config.must_be("swiglu_limit", 7.0)
    config.must_be("swiglu_alpha", 1.702)
    return keys.plain(config) | experts(config, "num_local_experts") | {
        "attention.sliding_window": config.size("sliding_window"),
        "expert_feed_forward_length": config.size("intermediate_size"),
    }  # fmt: skip


def hunyuan_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, all of the same width, beside an MLP that all rows share."""
    one = config.meant({"num_experts_per_tok": "moe_topk"}, {}).alike(
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_shared_expert"
    )
    config.must_be("use_mixed_mlp_moe", True)
    width = config.size("intermediate_size")
    if one.get("moe_intermediate_size") is not None:
        one.must_be("moe_intermediate_size", width)
    one.must_be("num_shared_expert", 1)
    return keys.plain(config) | experts(one, "num_experts") | {
        "expert_feed_forward_length": width,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": width,
    }  # fmt: skip
