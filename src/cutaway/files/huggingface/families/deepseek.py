"""DeepSeek V2 and V3, MiniCPM 3, and what descends from them: a latent in place of keys and values.

Knows the sizes of latents, and how the matrices that expand them are stored; the routers are those
of `mixtures`. The graphs are in ``compute/model/architectures/deepseek.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from cutaway.files.huggingface.families.family import (
    ATTENTION,
    EXPERTS,
    LAYER,
    MIXTRAL_EXPERTS,
    NEXTN,
    Family,
    mlp,
)
from cutaway.files.huggingface.families.keys import FULL, LINEAR, check_kinds
from cutaway.files.huggingface.families.mixtures import (
    CHOOSING,
    ROUTER,
    SHARED,
    SOFTMAX,
    sigmoid_router,
)
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    GroupedVector,
    OfHeads,
    Rewrite,
    Squeezed,
    minus_exp,
)
from cutaway.files.huggingface.rope import Ropes, settings_of

# -- keys ------------------------------------------------------------------------------------------


def deepseek_v3(config: JsonObject) -> dict[str, Any]:
    """Return the keys of DeepSeek-V3: its router, and a latent in place of keys and values."""
    config.must_be("rope_interleave", True)
    config.must_be("topk_method", "noaux_tc")
    config.must_be("scoring_func", "sigmoid")
    config.must_be("moe_layer_freq", 1)
    return sigmoid_router(config) | _latent(config)


def youtu(config: JsonObject) -> dict[str, Any]:
    """Return the keys of DeepSeek-V3's latent; no layer has experts."""
    config.must_be("rope_interleave", True)
    return _latent(config)


def minicpm3(config: JsonObject) -> dict[str, Any]:
    """Return the keys of DeepSeek-V3's latent, and MiniCPM's scales; no layer has experts."""
    hidden, layers = config.size("hidden_size"), config.size("num_hidden_layers")
    usual = {
        "v_head_dim": hidden // config.size("num_attention_heads"), "scale_depth": sqrt(layers),
        "dim_model_base": hidden,
    }  # fmt: skip
    config = config.with_defaults({}, usual)
    scales = {
        "embedding_scale": config.positive("scale_emb"),
        "residual_scale": config.positive("scale_depth") / sqrt(layers),
        "logit_scale": hidden / config.positive("dim_model_base"),
    }
    return _latent(config) | {key: float(np.float32(scale)) for key, scale in scales.items()}


def deepseek_v2(config: JsonObject) -> dict[str, Any]:
    """Return the keys of DeepSeek-V2.

    Experts' weights are computed by a softmax, and never normed. Groups of experts are chosen by
    their best expert.
    """
    config.must_be("scoring_func", "softmax")
    config.must_be("moe_layer_freq", 1)
    config.must_be("topk_method", "greedy", "group_limited_greedy")
    config.must_be("norm_topk_prob", False)
    metadata = sigmoid_router(config) | {"expert_gating_func": SOFTMAX}
    if config.get("topk_method") != "group_limited_greedy":
        metadata = {k: v for k, v in metadata.items() if not k.startswith("expert_group_")}
    return metadata | _latent(config)


def glm4_moe_lite(config: JsonObject) -> dict[str, Any]:
    """Return the keys of GLM 4.7 Flash, which are DeepSeek-V3's."""
    return deepseek_v3(_with_dense_first(config))


def _with_dense_first(config: JsonObject) -> JsonObject:
    """Return the config with the number of first layers without experts, from a list of kinds."""
    kinds = config.get("mlp_layer_types")
    if not isinstance(kinds, list):
        return config
    dense = sum(kind == "dense" for kind in kinds)
    config.must_be("mlp_layer_types", ["dense"] * dense + ["sparse"] * (len(kinds) - dense))
    return config.with_defaults({}, {"first_k_dense_replace": dense})


def kimi_linear(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Kimi Linear: DeepSeek-V3's router and latent, and layers with states."""
    config.must_be("moe_router_activation_func", "sigmoid")
    config.must_be("mla_use_nope", True)
    config.must_be("moe_layer_freq", 1)
    kinds = _kimi_kinds(config)
    config, nets = _with_dense_first(config), config.part("linear_attn_config")
    nets = nets.with_defaults({}, {
        "head_dim": config.get("linear_head_dim"),
        "short_conv_kernel_size": config.get("linear_conv_kernel_dim"),
    })  # fmt: skip
    return sigmoid_router(config) | _latent(config) | {
        "attention.head_count_kv": np.array([int(kind == FULL) for kind in kinds], np.int32),
        "ssm.conv_kernel": nets.size("short_conv_kernel_size"),
        "kda.head_dim": nets.size("head_dim"),
    }  # fmt: skip


def _kimi_kinds(config: JsonObject) -> list[str]:
    """Return the layers' kinds; those of the publisher count from 1."""
    layers, numbers = config.size("num_hidden_layers"), config.part("linear_attn_config")
    attend, kinds = numbers.get("full_attn_layers"), config.get("layer_types")
    if kinds is None and attend is not None:
        if not isinstance(attend, list) or not all(n in range(1, layers + 1) for n in attend):
            numbers.fail("full_attn_layers", f"a list of layers, each from 1 to {layers}")
        kinds = [FULL if i + 1 in attend else LINEAR for i in range(layers)]
    if kinds is None:
        kinds = [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)]
    check_kinds(config, kinds, FULL, LINEAR)
    return [*kinds]


def _latent(config: JsonObject) -> dict[str, Any]:
    """Return sizes as if all heads shared one key, whose latent part is the value."""
    rank, rotated = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    rope = settings_of(config)
    metadata: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config.size("qk_nope_head_dim") + rotated,
        "attention.value_length_mla": config.size("v_head_dim"),
    }
    if config.get("q_lora_rank") is not None:
        metadata["attention.q_lora_rank"] = config.size("q_lora_rank")
    if rope.get("rope_type") == "yarn":
        weight = rope.positive("mscale_all_dim")
        if rope.get("mscale") != weight:
            rope.refuse("mscale", f"only mscale_all_dim, {weight}, is")
        if rope.get("attention_factor") is not None:
            rope.refuse("attention_factor", "only null is")
        metadata |= {
            "rope.scaling.attn_factor": 1.0,
            "rope.scaling.yarn_log_multiplier": float(np.float32(0.1 * weight)),
        }
    return metadata


# -- names and rewrites of tensors -----------------------------------------------------------------


def _latent_rewrites(config: JsonObject) -> Mapping[str, Rewrite]:
    heads = config.size("num_attention_heads")
    usual = config.size("hidden_size") // heads
    config = config.with_defaults({}, {"v_head_dim": usual})
    keys, values = (config.size(f"{part}_head_dim") for part in ("qk_nope", "v"))
    return {
        "attn_k_b": OfHeads(heads, 0, keys, is_transposed=True),
        "attn_v_b": OfHeads(heads, keys, keys + values),
    }


_LATENT = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_k_b+attn_v_b",
}  # fmt: skip
_DEEPSEEK = Family(
    architecture="deepseek2", experts=EXPERTS, metadata=deepseek_v3,
    layer=LAYER | ROUTER | SHARED | CHOOSING | NEXTN | _LATENT,
    names={"head_dim": "qk_rope_head_dim"}, rewrites_of=_latent_rewrites,
)  # fmt: skip


def _kimi_rewrites(config: JsonObject) -> Mapping[str, Rewrite]:
    return {
        **_latent_rewrites(config), "ssm_a": GroupedVector(then=minus_exp),
        **{f"ssm_conv1d_{name}": Squeezed(dims=4) for name in "qkv"},
    }  # fmt: skip


def _moe(name: str) -> dict[str, str]:
    """Return the names of MLPs and routers, which are below ``name``."""
    return mlp(name) | mlp(f"{name}.shared_experts", "_shexp") | {
        f"{name}.gate": "ffn_gate_inp", f"{name}.gate.e_score_correction_bias": "exp_probs_b",
    }  # fmt: skip


_KIMI_LINEAR = Family(
    architecture="kimi-linear", metadata=kimi_linear, experts=MIXTRAL_EXPERTS,
    layer=ATTENTION | _LATENT | _moe("mlp") | _moe("block_sparse_moe") | {
        **{f"self_attn.{name}_conv1d": f"ssm_conv1d_{name}" for name in "qkv"},
        **{f"self_attn.{name}_proj": f"ssm_{name}" for name in ("f_a", "f_b", "g_a", "g_b")},
        "self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm",
    },
    whole={"self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias"},
    names={"head_dim": "qk_rope_head_dim", "n_routed_experts": "num_experts"},
    defaults={"first_k_dense_replace": 1}, rewrites_of=_kimi_rewrites,
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v2": replace(_DEEPSEEK, metadata=deepseek_v2),
    "glm4_moe_lite": replace(
        _DEEPSEEK, metadata=glm4_moe_lite, defaults={"first_k_dense_replace": 1}
    ),
    "kimi_linear": _KIMI_LINEAR,
    "youtu": replace(_DEEPSEEK, metadata=youtu),
    "minicpm3": replace(
        _DEEPSEEK, architecture="minicpm3", metadata=minicpm3, rope=Ropes(longrope=True)
    ),
}

UNSUPPORTED = {
    name: f"{model} is not supported: an indexer (index_topk) chooses the tokens that each token "
    "attends to, and cutaway computes attention to all tokens or to a window"
    for name, model in (("deepseek_v32", "DeepSeek V3.2"), ("glm_moe_dsa", "GLM 5"))
}
