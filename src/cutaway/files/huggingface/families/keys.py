"""Metadata keys that several families share, beyond the sizes that all families have.

Each function returns metadata of a config, without the architecture's prefix. Settings that
change the numbers and have no key in GGUF are refused by name. A family's own keys lie beside its
row. This module knows no family's tensors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import settings_of

FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR = "linear_attention"  # transformers 5: any layer with a state
WINDOW = "attention.sliding_window"
GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")  # the first by the normal distribution, else tanh


def mixtral(config: JsonObject) -> dict[str, Any]:
    """Return the numbers of experts, and the window's length if the config has one."""
    experts = {
        "expert_count": config.size("num_local_experts"),
        "expert_used_count": config.size("num_experts_per_tok"),
    }
    return window(config) | experts


def granite(config: JsonObject) -> dict[str, Any]:
    """Return Granite's four factors: of attention, embeddings, residuals and logits."""
    names = {
        "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
    }  # fmt: skip
    return {new: config.positive(old) for old, new in names.items()}


def granite_swash(config: JsonObject) -> dict[str, Any]:
    """Return Granite's factors, windows, and the rotary base of each layer; 0: it has none."""
    layers = config.size("num_hidden_layers")
    bases = config.get("layer_rope_theta") or [settings_of(config).positive("rope_theta")] * layers
    config = config.with_defaults({}, {"layer_rope_theta": bases})
    return granite(config) | flagged_windows(config, first_of_four) | {
        "rope.layer_freq_base": np.array(config.numbers("layer_rope_theta", layers), np.float32),
    }  # fmt: skip


def qwen(config: JsonObject) -> dict[str, Any]:
    """Return no keys; refuse a window, since GGUF cannot say which layers would have it."""
    config.must_be("use_sliding_window", False)
    kinds = config.get("layer_types")
    if kinds and kinds != [FULL] * config.size("num_hidden_layers"):
        config.refuse("layer_types", f"of this family only {FULL} is, for each layer")
    return {}


def sections(config: JsonObject, default: list[int] | None) -> Any:
    """Return, as GGUF has it, how three positions share a head.

    default: the shares if config.json has no key for them
    """
    shares = settings_of(config).get("mrope_section") or default
    if not isinstance(shares, list) or not all(type(n) is int and 0 <= n < 2**31 for n in shares):
        config.fail("rope_parameters", "an object with an mrope_section, a list of three numbers")
    return np.array([*shares, 0, 0, 0, 0][:4], np.int32)


def qwen3_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model with experts in every layer."""
    return qwen(config) | qwen_experts(config)


def qwen_experts(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts, which every layer has."""
    config.must_be("decoder_sparse_step", 1)
    config.must_be("mlp_only_layers", [])
    count = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    return {
        "expert_count": config.size(count),
        "expert_used_count": config.size("num_experts_per_tok"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_weights_norm": config.flag("norm_topk_prob"),
    }


def local_base(config: JsonObject, old_name: str) -> float:
    """Return the rotary base of layers with a window, for which transformers 4 has another key."""
    if config.part("rope_parameters").get(SLIDING) is None:
        local = config.with_defaults({"rope_theta": old_name}, {"rope_theta": 1e4})
        return local.positive("rope_theta")
    rope = settings_of(config, SLIDING)
    rope.must_be("rope_type", "default")
    return rope.positive("rope_theta")


def last_of_four(layer: int) -> str:
    """Return a layer's kind where the last of every four layers sees the whole text."""
    return SLIDING if (layer + 1) % 4 else FULL


def first_of_four(layer: int) -> str:
    """Return a layer's kind where the first of every four layers sees the whole text."""
    return SLIDING if layer % 4 else FULL


def flagged_windows(
    config: JsonObject, usual: Callable[[int], str] = last_of_four
) -> dict[str, Any]:
    """Return the window's length, and for each layer whether the layer has the window.

    usual: a layer's kind by its number, unless config.json says otherwise
    """
    layers = config.size("num_hidden_layers")
    kinds = config.get("layer_types") or [usual(layer) for layer in range(layers)]
    check_kinds(config, kinds, FULL, SLIDING)
    flags = np.array([kind == SLIDING for kind in kinds])
    return window(config) | {"attention.sliding_window_pattern": flags}


def pattern(config: JsonObject) -> Any:
    """Return n if the first of every n layers sees the whole text; else a flag for each layer."""
    interval, layers = config.size("global_attn_every_n_layers"), config.size("num_hidden_layers")
    usual = [SLIDING if layer % interval else FULL for layer in range(layers)]
    kinds = config.get("layer_types")
    if kinds is None or kinds == usual:
        return interval
    check_kinds(config, kinds, FULL, SLIDING)
    return np.array([kind == SLIDING for kind in kinds])


def check_kinds(config: JsonObject, kinds: Any, *allowed: str) -> None:
    """Refuse ``layer_types`` that are no list of one of the allowed texts for each layer."""
    layers = config.size("num_hidden_layers")
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or not all(isinstance(kind, str) and kind in allowed for kind in kinds)
    ):
        names = f"{', '.join(allowed[:-1])} and {allowed[-1]}"
        config.refuse("layer_types", f"only {names}, one for each of {layers} layers, are")


def window(config: JsonObject) -> dict[str, Any]:
    """Return the length of the window; {} if config.json has none."""
    length = config.get("sliding_window")
    return {} if length is None else {WINDOW: config.size("sliding_window")}


def caps(config: JsonObject, *names: str) -> dict[str, Any]:
    """Return those of the keys of caps that config.json has; no name: that of the cap of logits."""
    names = names or ("final_logit_softcapping",)
    return {name: config.positive(name) for name in names if config.get(name) is not None}


def check_layers(config: JsonObject, kind: Callable[[int], str]) -> None:
    """Refuse layers whose kinds are not those that the family was published with."""
    kinds = config.get("layer_types")
    if kinds is not None and kinds != [kind(i) for i in range(config.size("num_hidden_layers"))]:
        config.refuse("layer_types", "only the pattern that this family was published with is")
