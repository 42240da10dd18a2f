"""Metadata of each family beyond the sizes that all have.

Settings that change the numbers and have no key in GGUF are refused by name.

Each function takes a config and gives metadata without the architecture's prefix.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import settings_of

FULL, SLIDING = "full_attention", "sliding_attention"
_WINDOW = "attention.sliding_window"
GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")  # the first by the normal distribution, else tanh


def plain(config: JsonObject) -> dict[str, Any]:
    """Nothing beyond the sizes."""
    config.must_be("hidden_act", "silu")
    return {}


def mistral(config: JsonObject) -> dict[str, Any]:
    """A window, of all layers."""
    check_layers(config, lambda _: FULL if config.get("sliding_window") is None else SLIDING)
    return plain(config) | _window(config)


def mixtral(config: JsonObject) -> dict[str, Any]:
    """Experts, and perhaps a window."""
    experts = {
        "expert_count": config.size("num_local_experts"),
        "expert_used_count": config.size("num_experts_per_tok"),
    }
    return plain(config) | _window(config) | experts


def mistral3(config: JsonObject) -> dict[str, Any]:
    """Ministral 3's queries grow with their positions, and its yarn has a scale of scores."""
    rope = settings_of(config)
    beta = rope.get("llama_4_scaling_beta")
    if not beta:
        return mistral(config)
    growth = float(np.float32(rope.number("llama_4_scaling_beta")))  # as a file will hold it
    metadata = mistral(config) | {"attention.temperature_scale": growth}
    if rope.get("mscale") == 1 and rope.get("mscale_all_dim"):  # as the converter says it
        weight = rope.positive("mscale_all_dim")
        metadata |= {"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": weight}
    return metadata


def smollm3(config: JsonObject) -> dict[str, Any]:
    """Every fourth layer has no positions: GGUF takes that for granted."""
    layers = config.size("num_hidden_layers")
    flags = config.get("no_rope_layers")
    if flags is None:
        config.must_be("no_rope_layer_interval", 4)
    elif not isinstance(flags, list) or flags[:layers] != [
        int((layer + 1) % 4 != 0) for layer in range(layers)
    ]:
        config.refuse("no_rope_layers", "only 0 in every fourth layer and 1 elsewhere is")
    config.must_be("use_sliding_window", False)
    config.must_be("layer_types", [FULL] * layers)
    return plain(config)


def granite(config: JsonObject) -> dict[str, Any]:
    """Four factors."""
    names = {
        "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
    }  # fmt: skip
    return plain(config) | {new: config.positive(old) for old, new in names.items()}


def qwen(config: JsonObject) -> dict[str, Any]:
    """No window: which layers would have one cannot be said."""
    config.must_be("use_sliding_window", False)
    if SLIDING in (config.get("layer_types") or []):
        config.refuse("layer_types", f"of this family only {FULL} is")
    return plain(config)


def qwen_vl(config: JsonObject) -> dict[str, Any]:
    """For text, whose position is the same three times: how they share a head makes no difference.

    llama.cpp asks for the shares.
    """
    return qwen(config) | {"rope.dimension_sections": sections(config, None)}


def sections(config: JsonObject, default: list[int] | None) -> Any:
    """How three positions share a head, as GGUF has it; default: where config.json does not say."""
    shares = settings_of(config).get("mrope_section") or default
    if not isinstance(shares, list) or not all(type(n) is int for n in shares):
        config.fail("rope_parameters", "an object with an mrope_section, a list of three numbers")
    return np.array([*shares, 0, 0, 0, 0][:4], np.int32)


def qwen3_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer."""
    config.must_be("decoder_sparse_step", 1)
    config.must_be("mlp_only_layers", [])
    count = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    return qwen(config) | {
        "expert_count": config.size(count),
        "expert_used_count": config.size("num_experts_per_tok"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_weights_norm": config.flag("norm_topk_prob"),
    }


def qwen3_vl_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, and positions as the others that read pictures have."""
    return qwen_vl(config) | qwen3_moe(config)


def gemma(config: JsonObject) -> dict[str, Any]:
    """Nothing beyond the sizes; early files name the gate by what it was taken for."""
    if config.get("hidden_activation") is None:
        config.must_be("hidden_act", "gelu_pytorch_tanh", "gelu")
    config.must_be("hidden_activation", "gelu_pytorch_tanh")
    config.must_be("use_bidirectional_attention", False)
    return {}


def gemma2(config: JsonObject) -> dict[str, Any]:
    """A window in every other layer, the first included, and caps on scores and logits."""
    config.must_be("use_bidirectional_attention", False)
    check_layers(config, lambda layer: FULL if layer % 2 else SLIDING)
    caps = {
        "attn_logit_softcapping": config.positive("attn_logit_softcapping"),
        "final_logit_softcapping": config.positive("final_logit_softcapping"),
    }
    return _gemma(config) | caps


def gemma3(config: JsonObject) -> dict[str, Any]:
    """A window in five of six layers, which rotate by another base."""
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        config.must_be(name, 6)
    check_layers(config, lambda layer: SLIDING if (layer + 1) % 6 else FULL)
    if config.get("attn_logit_softcapping") is not None:
        config.refuse("attn_logit_softcapping", "only null is")
    metadata = _gemma(config) | {"rope.freq_base_swa": local_base(config, "rope_local_base_freq")}
    if config.get("final_logit_softcapping") is not None:
        metadata["final_logit_softcapping"] = config.positive("final_logit_softcapping")
    return metadata


def local_base(config: JsonObject, old_name: str) -> float:
    """Of the layers with a window; transformers 4 has it beside the scaling of the others."""
    if config.part("rope_parameters").get(SLIDING) is None:
        local = config.meant({"rope_theta": old_name}, {"rope_theta": 1e4})
        return local.positive("rope_theta")
    rope = settings_of(config, SLIDING)
    rope.must_be("rope_type", "default")
    return rope.positive("rope_theta")


def _gemma(config: JsonObject) -> dict[str, Any]:
    config.must_be("hidden_activation", "gelu_pytorch_tanh")
    return _window(config) | {"attention.scale": config.positive("query_pre_attn_scalar") ** -0.5}


def olmo3(config: JsonObject) -> dict[str, Any]:
    """A window in three of four layers, whose rope is never scaled."""
    base = config.get("rope_theta")
    if isinstance(config.part("rope_parameters").get(SLIDING), dict):
        rope = settings_of(config, SLIDING).meant({}, {"rope_theta": base})
        rope.must_be("rope_type", "default")
        base = rope.positive("rope_theta")
    return plain(config) | flagged_windows(config) | {"rope.freq_base_swa": base}


def exaone4(config: JsonObject) -> dict[str, Any]:
    """Without a window, or with one in three of four layers, which alone are rotated."""
    if config.get("sliding_window") is None:
        return plain(config)
    config.must_be("sliding_window_pattern", 4, "LLLG")
    metadata = flagged_windows(config)
    if not metadata[f"{_WINDOW}_pattern"].any():  # GGUF has every layer rotated then
        config.refuse("layer_types", f"beside a sliding_window, only with {SLIDING} in it")
    return plain(config) | metadata


def flagged_windows(config: JsonObject) -> dict[str, Any]:
    """A flag for each layer; unless config.json says otherwise, every fourth sees all."""
    layers = config.size("num_hidden_layers")
    kinds = config.get("layer_types") or [FULL if i % 4 == 3 else SLIDING for i in range(layers)]
    _check_kinds(config, kinds, layers)
    flags = np.array([kind == SLIDING for kind in kinds])
    return _window(config) | {"attention.sliding_window_pattern": flags}


def cohere(config: JsonObject) -> dict[str, Any]:
    """A factor of logits."""
    config.must_be("use_qk_norm", False)
    return plain(config) | {"logit_scale": config.positive("logit_scale")}


def cohere2(config: JsonObject) -> dict[str, Any]:
    """A window in three of four layers, which alone are rotated."""
    config.must_be("sliding_window_pattern", 4)
    check_layers(config, lambda layer: SLIDING if (layer + 1) % 4 else FULL)
    return cohere(config) | _window(config)


def starcoder2(config: JsonObject) -> dict[str, Any]:
    """Perhaps a window, of all layers."""
    config.must_be("hidden_act", "gelu_pytorch_tanh")
    return _window(config)


def apertus(config: JsonObject) -> dict[str, Any]:
    """A plain MLP, whose activation has constants."""
    config.must_be("hidden_act", "xielu")
    return {}


def relu2(config: JsonObject) -> dict[str, Any]:
    """A plain MLP."""
    config.must_be("hidden_act", "relu2")
    return {}


def phi(config: JsonObject) -> dict[str, Any]:
    """Phi 1.5 and 2."""
    config.must_be("hidden_act", "gelu_new")
    config.must_be("qk_layernorm", False)
    return {}


def stablelm(config: JsonObject) -> dict[str, Any]:
    """Those whose MLP comes after attention."""
    config.must_be("use_parallel_residual", False)
    config.must_be("qk_layernorm", False)
    return plain(config)


def phi3(config: JsonObject) -> dict[str, Any]:
    """A window, 0 for none as GGUF has it."""
    return plain(config) | {_WINDOW: 0} | _window(config)


def gpt2(config: JsonObject) -> dict[str, Any]:
    """Attention as it was published."""
    config.must_be("hidden_act", "gelu_new")
    config.must_be("scale_attn_weights", True)
    config.must_be("scale_attn_by_inverse_layer_idx", False)
    config.must_be("add_cross_attention", False)
    return {}


def pattern(config: JsonObject) -> Any:
    """n, where the first of every n layers attends to all; else a flag for each layer."""
    every, layers = config.size("global_attn_every_n_layers"), config.size("num_hidden_layers")
    usual = [SLIDING if layer % every else FULL for layer in range(layers)]
    kinds = config.get("layer_types")
    if kinds is None or kinds == usual:
        return every
    _check_kinds(config, kinds, layers)
    return np.array([kind == SLIDING for kind in kinds])


def _check_kinds(config: JsonObject, kinds: Any, layers: int) -> None:
    if not isinstance(kinds, list) or len(kinds) != layers or {*kinds} - {SLIDING, FULL}:
        config.refuse("layer_types", f"only {SLIDING} and {FULL}, one for each layer, are")


def llada(config: JsonObject) -> dict[str, Any]:
    """OLMo's settings, of which those of a llama alone are supported."""
    config.must_be("block_type", "llama")
    config.must_be("layer_norm_type", "rms")
    config.must_be("rope", True)
    config.must_be("block_group_size", 1)
    config.must_be("layer_norm_with_affine", True)
    for name in (
        "alibi", "attention_layer_norm", "input_emb_norm", "multi_query_attention", "scale_logits",
    ):  # fmt: skip
        config.must_be(name, False)
    return plain(config)


def llada_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, without groups or shared ones."""
    layers = config.size("num_hidden_layers")
    config.must_be("moe_layer_freq", [1] * layers)
    config.must_be("qk_layernorm", True)
    config.must_be("moe_router_score_function", "softmax")
    config.must_be("moe_router_enable_expert_bias", False)
    config.must_be("routed_scaling_factor", 1)
    for name in ("router_num_group", "router_topk_group", "shared_expert_intermediate_size"):
        config.must_be(name, 0, 1, -1, -2)  # some of which its own code writes for none
    if config.get("clip_qkv") is not None:
        config.refuse("clip_qkv", "only null is")
    return qwen3_moe(config)


def mdlm(config: JsonObject) -> dict[str, Any]:
    """A GPT-NeoX with the other GELU, once it needs no time."""
    config.must_be("time_conditioning", False)
    return {"use_parallel_residual": False, "hidden_activation": "gelu_new"}


def dream(config: JsonObject) -> dict[str, Any]:
    """Qwen 2."""
    config.must_be("use_mrope", False)
    return qwen(config)


def gpt_neox(config: JsonObject) -> dict[str, Any]:
    """Whether attention and feed-forward read the same input."""
    config.must_be("hidden_act", "gelu")
    return {"use_parallel_residual": config.flag("use_parallel_residual", True)}


def _window(config: JsonObject) -> dict[str, Any]:
    window = config.get("sliding_window")
    return {} if window is None else {_WINDOW: config.size("sliding_window")}


def check_layers(config: JsonObject, kind: Callable[[int], str]) -> None:
    """Refuse layers of other kinds than the family's own."""
    listed = config.get("layer_types")
    if listed is not None and listed != [kind(i) for i in range(config.size("num_hidden_layers"))]:
        config.refuse("layer_types", "only the pattern that this family was published with is")
