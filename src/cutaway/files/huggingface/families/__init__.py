"""The families of models: GGUF's architecture and the names of tensors and keys for each.

A row says which family a config.json's model_type is, and what of it is its own. Large kinds have
rows in files of their own here; keys that several share are in `keys`. Knows no files.

Source: llama.cpp's `conversion/` and `gguf-py/gguf/tensor_mapping.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.encoders import ENCODERS
from cutaway.files.huggingface.families.family import ATTENTION, OUTSIDE, TEXT, Family
from cutaway.files.huggingface.families.gemma import GEMMA
from cutaway.files.huggingface.families.ling import LING
from cutaway.files.huggingface.families.mamba import MAMBA
from cutaway.files.huggingface.families.mixtures import MIXTURES
from cutaway.files.huggingface.families.recurrent import RECURRENT
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    Rewrite,
    add_one,
    interleave_rope_rows,
    queries_keys_values,
    transposed,
)
from cutaway.files.huggingface.rope import settings_of

_MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_LAYER = ATTENTION | _MLP
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_SANDWICH = {
    "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip
_GATE_UP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_NORMS_BEHIND = (
    {k: v for k, v in _LAYER.items() if k != "input_layernorm"} | _QK_NORMS | _POST_NORMS
)
_XIELU = tuple(f".mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps"))
_PLAIN_MLP = {"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}


# -- keys ------------------------------------------------------------------------------------------


def mistral(config: JsonObject) -> dict[str, Any]:
    """A window, of all layers."""
    kind = keys.FULL if config.get("sliding_window") is None else keys.SLIDING
    keys.check_layers(config, lambda _: kind)
    return keys.plain(config) | keys.window(config)


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
    config.must_be("layer_types", [keys.FULL] * layers)
    return keys.plain(config)


def qwen_vl(config: JsonObject) -> dict[str, Any]:
    """For text, whose position is the same three times: how they share a head makes no difference.

    llama.cpp asks for the shares.
    """
    return keys.qwen(config) | {"rope.dimension_sections": keys.sections(config, None)}


def qwen3_vl_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, and positions as the others that read pictures have."""
    return qwen_vl(config) | keys.qwen3_moe(config)


def olmo3(config: JsonObject) -> dict[str, Any]:
    """A window in three of four layers, whose rope is never scaled."""
    base = config.get("rope_theta")
    if isinstance(config.part("rope_parameters").get(keys.SLIDING), dict):
        rope = settings_of(config, keys.SLIDING).meant({}, {"rope_theta": base})
        rope.must_be("rope_type", "default")
        base = rope.positive("rope_theta")
    return keys.plain(config) | keys.flagged_windows(config) | {"rope.freq_base_swa": base}


def exaone4(config: JsonObject) -> dict[str, Any]:
    """Without a window, or with one in three of four layers, which alone are rotated."""
    if config.get("sliding_window") is None:
        return keys.plain(config)
    config.must_be("sliding_window_pattern", 4, "LLLG")
    metadata = keys.flagged_windows(config)
    if not metadata[f"{keys.WINDOW}_pattern"].any():  # GGUF has every layer rotated then
        config.refuse("layer_types", f"beside a sliding_window, only with {keys.SLIDING} in it")
    return keys.plain(config) | metadata


def cohere(config: JsonObject) -> dict[str, Any]:
    """A factor of logits."""
    config.must_be("use_qk_norm", False)
    return keys.plain(config) | {"logit_scale": config.positive("logit_scale")}


def cohere2(config: JsonObject) -> dict[str, Any]:
    """A window in three of four layers, which alone are rotated."""
    config.must_be("sliding_window_pattern", 4)
    keys.check_layers(config, lambda layer: keys.SLIDING if (layer + 1) % 4 else keys.FULL)
    return cohere(config) | keys.window(config)


def starcoder2(config: JsonObject) -> dict[str, Any]:
    """Perhaps a window, of all layers."""
    config.must_be("hidden_act", "gelu_pytorch_tanh")
    return keys.window(config)


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
    return keys.plain(config)


def phi3(config: JsonObject) -> dict[str, Any]:
    """A window, 0 for none as GGUF has it."""
    return keys.plain(config) | {keys.WINDOW: 0} | keys.window(config)


def gpt2(config: JsonObject) -> dict[str, Any]:
    """Attention as it was published."""
    config.must_be("hidden_act", "gelu_new")
    config.must_be("scale_attn_weights", True)
    config.must_be("scale_attn_by_inverse_layer_idx", False)
    config.must_be("add_cross_attention", False)
    return {}


def gpt_neox(config: JsonObject) -> dict[str, Any]:
    """Whether attention and feed-forward read the same input."""
    config.must_be("hidden_act", "gelu")
    return {"use_parallel_residual": config.flag("use_parallel_residual", True)}


# -- names and rewrites of tensors -----------------------------------------------------------------


def _interleaved(heads: int, kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_q": interleave_rope_rows(heads), "attn_k": interleave_rope_rows(kv_heads)}


def _nemotron(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("output_norm", "attn_norm", "ffn_norm"), add_one)


def _gpt2(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), transposed)


def _gpt_neox(heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_qkv": queries_keys_values(heads)}


# Llama and what descends from it: GGUF stores the rows of q and k interleaved.
_LLAMA = Family(architecture="llama", outside=OUTSIDE, layer=_LAYER, rewrites=_interleaved)
_MISTRAL3 = replace(_LLAMA, architecture="mistral3", prefixes=TEXT, own=mistral3)
_QWEN2_VL = Family(
    architecture="qwen2vl", prefixes=TEXT, outside=OUTSIDE, layer=_LAYER, own=qwen_vl
)
_QWEN3_VL = replace(_QWEN2_VL, architecture="qwen3vl", layer=_LAYER | _QK_NORMS)
_OLMO2 = Family(architecture="olmo2", outside=OUTSIDE, layer=_NORMS_BEHIND)
_GLM = Family(
    architecture="chatglm",
    outside=OUTSIDE,
    layer=ATTENTION | _GATE_UP,
    partial_rope=True,
)
_COHERE = Family(
    architecture="command-r",
    outside=OUTSIDE,
    layer=_LAYER,
    own=cohere,
    layer_norm=True,
    names={"layer_norm_epsilon": "layer_norm_eps"},
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": replace(_LLAMA, own=mistral),
    "mixtral": replace(
        _LLAMA, layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"},
        experts={
            "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
            "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
            "block_sparse_moe.experts.{}.w3": "ffn_up_exps",
        },
        own=keys.mixtral,
    ),
    "smollm3": replace(_LLAMA, architecture="smollm3", own=smollm3),
    "granite": replace(_LLAMA, architecture="granite", own=keys.granite),
    "qwen2": Family(architecture="qwen2", outside=OUTSIDE, layer=_LAYER, own=keys.qwen),
    "qwen3": Family(
        architecture="qwen3", outside=OUTSIDE, layer=_LAYER | _QK_NORMS, own=keys.qwen
    ),
    "qwen3_moe": Family(
        architecture="qwen3moe", outside=OUTSIDE,
        layer=ATTENTION | _QK_NORMS | {"mlp.gate": "ffn_gate_inp"},
        experts={
            "mlp.experts.{}.gate_proj": "ffn_gate_exps",
            "mlp.experts.{}.up_proj": "ffn_up_exps",
            "mlp.experts.{}.down_proj": "ffn_down_exps",
        },
        own=keys.qwen3_moe,
    ),
    "phi3": Family(
        architecture="phi3", outside=OUTSIDE,
        layer={
            "input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv",
            "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
            "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        },
        own=phi3, partial_rope=True, longrope=True,
    ),
    "gpt2": Family(
        architecture="gpt2", prefixes=("transformer.",),
        outside={
            "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output",
        },
        layer={
            "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
            "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
        },
        skipped=(".attn.bias", ".attn.masked_bias"),
        names={
            "hidden_size": "n_embd", "max_position_embeddings": "n_positions",
            "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
            "intermediate_size": "n_inner", "hidden_act": "activation_function",
        },
        own=gpt2, rewrites=_gpt2, grouped=False, layer_norm=True, rope=False,
    ),
    "gpt_neox": Family(
        architecture="gptneox", prefixes=("gpt_neox.",),
        outside={
            "embed_in": "token_embd", "final_layer_norm": "output_norm", "embed_out": "output",
        },
        layer={
            "input_layernorm": "attn_norm", "attention.query_key_value": "attn_qkv",
            "attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
            "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
        },
        skipped=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
        names={
            "layer_norm_epsilon": "layer_norm_eps", "rope_theta": "rotary_emb_base",
            "rotary_share": "rotary_pct",
        },
        own=gpt_neox, rewrites=_gpt_neox, grouped=False, layer_norm=True,
        partial_rope=True,
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, own=olmo3),
    "exaone4": replace(_OLMO2, architecture="exaone4", own=exaone4),
    "mistral3": _MISTRAL3,
    "ministral3": _MISTRAL3,
    "ministral": replace(_LLAMA, own=mistral),
    "iquestcoder": _LLAMA,
    "helium": Family(  # its rows of q and k are as GGUF has them
        architecture="llama", outside=OUTSIDE, layer=_LAYER
    ),
    "internlm3": _LLAMA,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": replace(
        _QWEN3_VL, architecture="qwen3vlmoe", own=qwen3_vl_moe,
        layer=ATTENTION | _QK_NORMS | {
            "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
            "mlp.experts.down_proj": "ffn_down_exps",
        },
        defaults={"norm_topk_prob": True},
    ),
    "ernie4_5": Family(architecture="ernie4_5", outside=OUTSIDE, layer=_LAYER),
    "hunyuan_v1_dense": Family(
        architecture="hunyuan-dense", outside=OUTSIDE, ntk_alpha=True,
        layer=_LAYER | {
            "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
        },
    ),
    "seed_oss": Family(
        architecture="seed_oss", outside=OUTSIDE,
        layer=_LAYER | {"post_attention_layernorm": "post_attention_norm"},
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, architecture="glm4", layer={**_GLM.layer, **_SANDWICH}),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, architecture="cohere2", own=cohere2),
    "starcoder2": Family(
        architecture="starcoder2", outside=OUTSIDE, own=starcoder2, layer_norm=True,
        layer=ATTENTION | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        names={"layer_norm_epsilon": "norm_epsilon"},
    ),
    "arcee": replace(_LLAMA, architecture="arcee", own=relu2),
    "nemotron": Family(
        architecture="nemotron", outside=OUTSIDE, layer=_LAYER, own=relu2, layer_norm=True,
        partial_rope=True, names={"layer_norm_epsilon": "norm_eps"}, rewrites=_nemotron,
    ),
    "apertus": Family(
        architecture="apertus", outside=OUTSIDE, own=apertus, skipped=_XIELU,
        layer={
            "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
            "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
            "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        } | _QK_NORMS,
        scalars={f"model.layers.{{}}{name}": f"xielu.{name.rpartition('.')[2]}" for name in _XIELU},
    ),
    "jais2": Family(
        architecture="jais2", outside=OUTSIDE, layer=_LAYER, own=relu2, layer_norm=True,
        names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    "phi": Family(
        architecture="phi2", own=phi, layer_norm=True, partial_rope=True,
        outside={**OUTSIDE, "final_layernorm": "output_norm"},
        layer=ATTENTION | _PLAIN_MLP | {"self_attn.dense": "attn_output"},
        names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    "stablelm": Family(
        architecture="stablelm", outside=OUTSIDE, layer=_LAYER, own=stablelm,
        layer_norm=True, partial_rope=True, names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    **GEMMA,
    **MIXTURES,
    **LING,
    **RECURRENT,
    **MAMBA,
    **ENCODERS,
}  # fmt: skip
"""By config.json's model_type."""
