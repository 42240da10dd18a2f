"""MiMo-V2: names and keys. Its graph is in ``compute/model/architectures/mimo.py``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys, mixtures
from cutaway.files.huggingface.families.family import EXPERTS, LAYER, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import PARTIAL, settings_of, share_of

_MAX_HEADS = 1 << 16


def mimo_v2_flash(config: JsonObject) -> dict[str, Any]:
    """Return the keys of values, experts, and windows, whose layers have heads of their own.

    The publisher's files have numbers where transformers has the names of kinds, and two more keys
    for the sizes of layers with a window, which transformers does not read.
    """
    head, value = config.size("head_dim"), config.size("v_head_dim")
    kv_heads = config.size("num_key_value_heads", _MAX_HEADS)
    for name, size in (
        ("swa_head_dim", head), ("swa_v_head_dim", value),
        ("swa_num_attention_heads", config.size("num_attention_heads", _MAX_HEADS)),
        ("swa_num_key_value_heads", 2 * kv_heads),
        ("layernorm_epsilon", config.positive("rms_norm_eps")),
    ):  # fmt: skip
        config.must_be(name, size)
    config.must_be("add_full_attention_sink_bias", False)
    config.must_be("add_swa_attention_sink_bias", True)
    config.must_be("scoring_func", "sigmoid")
    settings_of(config, keys.FULL).must_be("rope_type", "default")
    windows = keys.flagged_windows(_with_kinds(config), _usual_kind)
    seen = config.get("sliding_window_size")  # before a token; the window has the token, too
    if seen is not None:
        windows[keys.WINDOW] = config.size("sliding_window_size") + 1
    slides = windows["attention.sliding_window_pattern"]
    rotated = int(head * share_of(config, keys.SLIDING))
    return windows | mixtures.experts(config, "n_routed_experts") | mixtures.groups(config) | {
        "attention.head_count_kv": np.where(slides, 2 * kv_heads, kv_heads).astype(np.int32),
        "attention.value_length": value,
        "attention.value_scale": config.positive("attention_value_scale"),
        "rope.freq_base_swa": keys.local_base(config, "swa_rope_theta"),
        "rope.dimension_count_swa": rotated,
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_gating_func": mixtures.SIGMOID,
        "expert_weights_norm": config.flag("norm_topk_prob"),
        "expert_weights_scale": config.positive("routed_scaling_factor"),
    }  # fmt: skip


def _usual_kind(layer: int) -> str:
    return keys.SLIDING if layer and (layer + 1) % 6 else keys.FULL


def _with_kinds(config: JsonObject) -> JsonObject:
    """Return the config with ``layer_types`` where it has the publisher's pattern of numbers."""
    numbers = config.get("hybrid_layer_pattern")
    if config.get("layer_types") is not None or numbers is None:
        return config
    kinds = {0: keys.FULL, 1: keys.SLIDING}
    if not isinstance(numbers, list) or any(
        type(number) is not int or number not in kinds for number in numbers
    ):
        config.fail("hybrid_layer_pattern", "0 or 1 for each layer")
    return config.with_defaults({}, {"layer_types": [kinds[n] for n in numbers]})


ROWS: Mapping[str, Family] = {
    "mimo_v2_flash": Family(
        architecture="mimo2", metadata=mimo_v2_flash, rope=PARTIAL, experts=EXPERTS,
        layer=LAYER | mixtures.ROUTER | mixtures.CHOOSING | {
            "self_attn.attention_sink_bias": "attn_sinks",
        },
    ),
}  # fmt: skip

UNSUPPORTED = {
    "mimo_v2": "MiMo-V2.5 and 2.6 are not supported: one matrix in FP8 has the queries, keys and "
    "values in as many parts as there are heads of keys (attention_projection_layout), and others "
    "that save it again put them in another order under the same name"
}
