"""Laguna: names and keys. Its graph is in ``compute/model/architectures/laguna.py``."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys, mixtures
from cutaway.files.huggingface.families.family import (
    EXPERTS,
    HEAD_NORMS,
    LAYER,
    Family,
    mlp,
)
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import PARTIAL, settings_of

_MAX_HEADS = 1 << 16


def laguna(config: JsonObject) -> dict[str, Any]:
    """Return the keys of heads and experts, and of windows, whose layers have a rope of their own.

    The width of a gate's matrix says whether it is of heads or of their numbers.
    """
    config.must_be("gating", True, "per-head", "per-element")
    config.must_be("moe_router_logit_softcapping", 0.0)
    config.must_be("moe_apply_router_weight_on_input", False)
    layers, usual = config.size("num_hidden_layers"), config.size("num_attention_heads", _MAX_HEADS)
    heads = config.get("num_attention_heads_per_layer") or [usual] * layers
    if not (isinstance(heads, list) and len(heads) == layers and all(map(_is_size, heads))):
        config.fail("num_attention_heads_per_layer", f"a size for each of {layers} layers")
    kinds = config.get("mlp_layer_types") or ["dense"]
    dense = (
        len(list(takewhile(lambda kind: kind == "dense", kinds))) if isinstance(kinds, list) else 0
    )
    config.must_be("mlp_layer_types", ["dense"] * dense + ["sparse"] * (layers - dense))
    rope = settings_of(config, keys.SLIDING).with_defaults({}, {"partial_rotary_factor": 1.0})
    share = rope.positive("partial_rotary_factor")
    windows = keys.flagged_windows(config, lambda _: keys.FULL)
    return windows | mixtures.experts(config, "num_experts") | {
        "attention.head_count": np.array(heads, np.int32),
        "rope.freq_base_swa": keys.local_base(config, "rope_local_base_freq"),
        "rope.dimension_count_swa": int(config.size("head_dim") * share),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.size("shared_expert_intermediate_size"),
        "expert_gating_func": mixtures.SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": config.positive("moe_routed_scaling_factor"),
        "leading_dense_block_count": dense,
    }  # fmt: skip


def _is_size(number: object) -> bool:
    return type(number) is int and 1 <= number <= _MAX_HEADS


ROWS: Mapping[str, Family] = {
    "laguna": Family(
        architecture="laguna", metadata=laguna, rope=PARTIAL, experts=EXPERTS,
        layer=LAYER | HEAD_NORMS | mixtures.ROUTER | mixtures.SHARED | mixtures.CHOOSING
        | mlp("mlp.shared_expert", "_shexp") | {
            "self_attn.g_proj": "attn_gate",
            "mlp.experts.e_score_correction_bias": "exp_probs_b",
        },
    ),
}  # fmt: skip
