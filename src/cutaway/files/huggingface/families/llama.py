"""Llama, its descendants, and models wired nearly like it: names and keys.

Their graphs are in ``compute/model/architectures/llama.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.family import (
    ATTENTION,
    FUSED_EXPERTS,
    HEAD_NORMS,
    LAYER,
    MIXTRAL_EXPERTS,
    NEXTN,
    TEXT,
    Family,
)
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    Rewrite,
    add_one,
    interleave_rope_rows,
    swap_column_halves,
    swap_halves,
)
from cutaway.files.huggingface.rope import PARTIAL, Ropes, settings_of
from cutaway.files.huggingface.shards import Shards, Sources, TensorSource

# -- keys ------------------------------------------------------------------------------------------


def mistral(config: JsonObject) -> dict[str, Any]:
    """Return the length of the window, which all layers must have; {} if there is none."""
    kind = keys.FULL if config.get("sliding_window") is None else keys.SLIDING
    keys.check_layers(config, lambda _: kind)
    return keys.window(config)


def mistral3(config: JsonObject) -> dict[str, Any]:
    """Return Mistral's keys, and those that Ministral 3 has in addition.

    Ministral 3's queries grow with their positions, and its YaRN has a factor for scores.
    """
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
    """Return no keys: GGUF assumes that every fourth layer has no positions."""
    layers = config.size("num_hidden_layers")
    flags = config.get("no_rope_layers")
    if flags is None:
        config.must_be("no_rope_layer_interval", 4)
    elif not isinstance(flags, list) or flags[:layers] != [
        int((layer + 1) % 4 != 0) for layer in range(layers)
    ]:
        config.refuse("no_rope_layers", "only 0 in every fourth layer and 1 elsewhere is")
    config.must_be("use_sliding_window", False)
    config.must_be("layer_types", [keys.FULL] * layers)
    return {}


def qwen_vl(config: JsonObject) -> dict[str, Any]:
    """Return how three positions share a head, since llama.cpp requires it.

    For text the three are equal, so that the shares make no difference.
    """
    return keys.qwen(config) | {"rope.dimension_sections": keys.sections(config, None)}


def qwen3_vl_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of experts in every layer, and how three positions share a head."""
    return qwen_vl(config) | keys.qwen3_moe(config)


def olmo3(config: JsonObject) -> dict[str, Any]:
    """Return the keys of windows, which three of four layers have; their rope is never scaled."""
    base = config.get("rope_theta")
    if isinstance(config.part("rope_parameters").get(keys.SLIDING), dict):
        rope = settings_of(config, keys.SLIDING).with_defaults({}, {"rope_theta": base})
        rope.must_be("rope_type", "default")
        base = rope.positive("rope_theta")
    return keys.flagged_windows(config) | {"rope.freq_base_swa": base}


def exaone4(config: JsonObject) -> dict[str, Any]:
    """Return the keys of windows; {} if the config has none.

    Three of four layers have a window, and only these layers are rotated.
    """
    if config.get("sliding_window") is None:
        return {}
    config.must_be("sliding_window_pattern", 4, "LLLG")
    metadata = keys.flagged_windows(config)
    if not metadata[f"{keys.WINDOW}_pattern"].any():  # GGUF has every layer rotated then
        config.refuse("layer_types", f"beside a sliding_window, only with {keys.SLIDING} in it")
    return metadata


def cohere(config: JsonObject) -> dict[str, Any]:
    """Return the factor of logits."""
    return {"logit_scale": config.positive("logit_scale")}


def cohere2(config: JsonObject) -> dict[str, Any]:
    """Return the factor of logits, and the length of the window.

    Three of four layers have the window, and only these layers are rotated.
    """
    config.must_be("sliding_window_pattern", 4)
    keys.check_layers(config, keys.last_of_four)
    return cohere(config) | keys.window(config)


def olmo(config: JsonObject) -> dict[str, Any]:
    """Return no keys; refuse clipped queries, keys and values."""
    if config.get("clip_qkv") is not None:
        config.refuse("clip_qkv", "only null is")
    return {}


def cwm(config: JsonObject) -> dict[str, Any]:
    """Return the keys of windows, which three of four layers have."""
    return keys.flagged_windows(config, keys.first_of_four)


def hyperclovax(config: JsonObject) -> dict[str, Any]:
    """Return Granite's four factors; of logits it has the factor, and GGUF the divisor."""
    usual = config.size("hidden_size") // config.size("num_attention_heads")
    head = config.size("head_dim") if config.get("head_dim") else usual
    config = config.with_defaults({}, {"attention_multiplier": head**-0.5})
    divisor = float(np.float32(1 / config.positive("logits_scaling")))  # as a file will hold it
    return keys.granite(config) | {"logit_scale": divisor}


def muse_glimmer(config: JsonObject) -> dict[str, Any]:
    """Return the keys of windows, and the factor and the cap of logits.

    Layers with a window rotate, and only these. Counted from the last, every fourth has none.
    """
    layers = config.size("num_hidden_layers")
    config.size("sliding_window")
    windows = keys.flagged_windows(
        config, lambda layer: keys.FULL if (layers - 1 - layer) % 4 == 0 else keys.SLIDING
    )
    bases = config.get("layer_rope_theta") or [(layers - 1 - i) % 4 for i in range(layers)]
    bases = config.with_defaults({}, {"layer_rope_theta": bases}).numbers(
        "layer_rope_theta", layers
    )
    if [base != 0 for base in bases] != windows[f"{keys.WINDOW}_pattern"].tolist():
        config.refuse("layer_rope_theta", "only 0 in layers without a window, and in no other, is")
    return windows | {
        "logit_scale": float(np.float32(config.positive("output_multiplier"))),
        "final_logit_softcapping": config.positive("final_logit_softcapping"),
    }


def phi3(config: JsonObject) -> dict[str, Any]:
    """Return the length of the window; without a window it is 0, as in GGUF."""
    return {keys.WINDOW: 0} | keys.window(config)


# -- names and rewrites of tensors -----------------------------------------------------------------


_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_SANDWICH = {
    "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip
_GATE_UP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_NORMS_BEHIND = (
    {k: v for k, v in LAYER.items() if k != "input_layernorm"} | HEAD_NORMS | _POST_NORMS
)


def _interleave(heads: int, kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_q": interleave_rope_rows(heads), "attn_k": interleave_rope_rows(kv_heads)}


def _swap_halves(heads: int, kv_heads: int) -> Mapping[str, Rewrite]:
    """nanochat turns pairs the other way, which is the usual way for the halves swapped."""
    return {"attn_q": swap_halves(heads), "attn_k": swap_halves(kv_heads)}


def _hidden_first(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    """MiMo's draft head reads the hidden state before the embedding; GGUF has it behind."""
    return {"eh_proj": swap_column_halves}


def _muse_glimmer(heads: int, kv_heads: int) -> Mapping[str, Rewrite]:
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    return {**_interleave(heads, kv_heads), **dict.fromkeys(norms, add_one)}


def _head_norms(sources: Sources, config: JsonObject, _: Shards) -> dict[str, Any]:
    """Give norms of heads the weights that GGUF has: for queries, a factor of config.json's."""
    width, factor = config.size("head_dim"), config.positive("qk_scale_factor")
    for layer in range(config.size("num_hidden_layers")):
        for part, weight in (("q", factor), ("k", 1.0)):
            values = np.full(width, weight, np.float32)
            name = f"blk.{layer}.attn_{part}_norm.weight"
            sources[name] = TensorSource(name, "F32", values.shape, (), values=values)
    return {}


# Llama and what descends from it: GGUF stores the rows of q and k interleaved.
_LLAMA = Family(architecture="llama", rewrites=_interleave)
_MISTRAL3 = replace(_LLAMA, architecture="mistral3", prefixes=TEXT, metadata=mistral3)
_QWEN2_VL = Family(architecture="qwen2vl", prefixes=TEXT, metadata=qwen_vl)
_QWEN3_VL = replace(_QWEN2_VL, architecture="qwen3vl", layer=LAYER | HEAD_NORMS)
_OLMO2 = Family(architecture="olmo2", layer=_NORMS_BEHIND)
_MUSE_GLIMMER = Family(
    architecture="muse-glimmer", prefixes=TEXT, metadata=muse_glimmer, rewrites=_muse_glimmer,
    rebuild=_head_norms, must_be={"hidden_activation": "silu", "post_norm_eps": 1e-8},
    layer=LAYER | _POST_NORMS | {
        "pre_feedforward_layernorm": "ffn_norm", "self_attn.gate_proj": "attn_gate",
    },
)  # fmt: skip
_GLM = Family(architecture="chatglm", layer=ATTENTION | _GATE_UP, rope=PARTIAL)
_COHERE = Family(
    architecture="command-r", metadata=cohere, layer_norm=True, layer=LAYER | HEAD_NORMS,
    names={"layer_norm_epsilon": "layer_norm_eps"},
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": replace(_LLAMA, metadata=mistral),
    "mixtral": replace(
        _LLAMA, layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"},
        experts=MIXTRAL_EXPERTS, metadata=keys.mixtral,
    ),
    "smollm3": replace(_LLAMA, architecture="smollm3", metadata=smollm3),
    "granite": replace(_LLAMA, architecture="granite", metadata=keys.granite),
    "qwen2": Family(architecture="qwen2", metadata=keys.qwen),
    "mimo": Family(
        architecture="qwen2", metadata=keys.qwen, layer=LAYER | NEXTN, rewrites=_hidden_first
    ),
    "qwen3": Family(architecture="qwen3", layer=LAYER | HEAD_NORMS, metadata=keys.qwen),
    "phi3": Family(
        architecture="phi3",
        layer={
            "input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv",
            "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
            "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        },
        metadata=phi3, rope=Ropes(partial=True, longrope=True),
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, metadata=olmo3),
    "exaone4": replace(_OLMO2, architecture="exaone4", metadata=exaone4),
    "mistral3": _MISTRAL3,
    "ministral3": _MISTRAL3,
    "ministral": replace(_LLAMA, metadata=mistral),
    "iquestcoder": _LLAMA,
    "helium": Family(architecture="llama"),  # its rows of q and k are as GGUF has them
    "internlm3": _LLAMA,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": replace(
        _QWEN3_VL, architecture="qwen3vlmoe", metadata=qwen3_vl_moe,
        layer=ATTENTION | HEAD_NORMS | FUSED_EXPERTS | {"mlp.gate": "ffn_gate_inp"},
        defaults={"norm_topk_prob": True},
    ),
    "ernie4_5": Family(architecture="ernie4_5"),
    "hunyuan_v1_dense": Family(
        architecture="hunyuan-dense", rope=Ropes(ntk_alpha=True),
        layer=LAYER | {
            "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
        },
    ),
    "seed_oss": Family(
        architecture="seed_oss",
        layer=LAYER | {"post_attention_layernorm": "post_attention_norm"},
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, architecture="glm4", layer={**_GLM.layer, **_SANDWICH}),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, architecture="cohere2", metadata=cohere2),
    "exaone": Family(
        architecture="exaone", prefixes=("transformer.",), must_be={"activation_function": "silu"},
        names={"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"},
        outside={"wte": "token_embd", "ln_f": "output_norm", "lm_head": "output"},
        layer={
            "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.attention.out_proj": "attn_output",
            **{f"attn.attention.{part}_proj": f"attn_{part}" for part in "qkv"},
            "mlp.c_fc_0": "ffn_gate", "mlp.c_fc_1": "ffn_up", "mlp.c_proj": "ffn_down",
        },
    ),
    "olmo": replace(
        _LLAMA, architecture="olmo", metadata=olmo, layer_norm=True,
        defaults={"layer_norm_epsilon": 1e-5},
    ),
    "cwm": Family(architecture="cwm", metadata=cwm),
    "granite_swa": Family(
        architecture="granite-swash", metadata=keys.granite_swash,
        layer=LAYER | {"self_attn.sinks": "attn_sinks"},
    ),
    "muse_glimmer": _MUSE_GLIMMER,
    "muse_glimmer_text": _MUSE_GLIMMER,
    "hyperclovax": Family(
        architecture="hyperclovax", metadata=hyperclovax,
        layer=LAYER | {"post_norm1": "post_attention_norm", "post_norm2": "post_ffw_norm"},
    ),
    "nanochat": Family(
        architecture="nanochat", metadata=keys.caps, rewrites=_swap_halves,
        must_be={"hidden_act": "relu2"},
        layer=ATTENTION | {"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    ),
    "bitnet": Family(
        architecture="bitnet", must_be={"hidden_act": ("relu2", "silu")},
        metadata=lambda config: {"hidden_activation": config.text("hidden_act")},
        layer=LAYER | {
            "self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm",
        },
    ),
    "arcee": replace(_LLAMA, architecture="arcee", must_be={"hidden_act": "relu2"}),
}  # fmt: skip
