"""The families of mixtures: what each has beside the family whose attention it has.

As `families`, of which this is a part. Knows no files.
"""

from collections.abc import Mapping
from dataclasses import replace

from cutaway.files.huggingface import mixture_keys as keys
from cutaway.files.huggingface.draft_head import NEXTN
from cutaway.files.huggingface.family import ATTENTION, OUTSIDE, TEXT, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Half, OfHeads, Rewrite, interleave_rope_rows

_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_ROUTER = {"mlp.gate": "ffn_gate_inp"}
_MLP = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_DENSE = {f"mlp.{old}": f"ffn_{new}" for old, new in _MLP.items()}
_EXPERTS = {f"mlp.experts.{{}}.{old}": f"ffn_{new}_exps" for old, new in _MLP.items()}


def _shared(name: str) -> dict[str, str]:
    """What all rows go through."""
    return {f"mlp.{name}.{old}": f"ffn_{new}_shexp" for old, new in _MLP.items()}


def _granite(heads: int, kv_heads: int) -> Mapping[str, Rewrite]:
    return {
        "attn_q": interleave_rope_rows(heads), "attn_k": interleave_rope_rows(kv_heads),
        "ffn_gate_shexp": Half(0), "ffn_up_shexp": Half(1),
    }  # fmt: skip


_GRANITE_MOE = Family(
    architecture="granitemoe", outside=OUTSIDE, own=keys.granite_moe, rewrites=_granite,
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
    architecture="llama4", prefixes=TEXT, outside=OUTSIDE, own=keys.llama4, own_width=True,
    layer=ATTENTION | {
        **{f"feed_forward.{old}": f"ffn_{new}" for old, new in _MLP.items()},
        **{f"feed_forward.shared_expert.{old}": f"ffn_{new}_shexp" for old, new in _MLP.items()},
        "feed_forward.router": "ffn_gate_inp",
        "feed_forward.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
        "feed_forward.experts.down_proj": "ffn_down_exps",
    },
    experts_turned=True,
)  # fmt: skip
_CHOOSING = {"mlp.gate.e_score_correction_bias": "exp_probs_b"}


def _latent(config: JsonObject) -> Mapping[str, Rewrite]:
    heads = config.size("num_attention_heads")
    keys, values = (config.size(f"{one}_head_dim") for one in ("qk_nope", "v"))
    return {
        "attn_k_b": OfHeads(heads, 0, keys, turned=True),
        "attn_v_b": OfHeads(heads, keys, keys + values),
    }


_DEEPSEEK = Family(
    architecture="deepseek2", outside=OUTSIDE, experts=_EXPERTS, own=keys.deepseek_v3,
    layer=ATTENTION | _DENSE | _ROUTER | _shared("shared_experts") | _CHOOSING | NEXTN | {
        "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_k_b+attn_v_b",
    },
    names={"head_dim": "qk_rope_head_dim"}, rewrites_of=_latent,
)  # fmt: skip

MIXTURES: Mapping[str, Family] = {
    "qwen2_moe": Family(
        architecture="qwen2moe", outside=OUTSIDE, own=keys.qwen2_moe, experts=_EXPERTS,
        layer=ATTENTION | _ROUTER | _shared("shared_expert") | {
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        },
    ),
    "olmoe": Family(
        architecture="olmoe", outside=OUTSIDE, own=keys.olmoe, experts=_EXPERTS,
        layer=ATTENTION | _HEAD_NORMS | _ROUTER,
    ),
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "ernie4_5_moe": Family(
        architecture="ernie4_5-moe", outside=OUTSIDE, own=keys.ernie4_5_moe, experts=_EXPERTS,
        layer=ATTENTION | _DENSE | _ROUTER | _shared("shared_experts") | {
            "mlp.moe_statics.e_score_correction_bias": "exp_probs_b",
        },
        names={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    ),
    "glm4_moe": Family(
        architecture="glm4moe", outside=OUTSIDE, own=keys.sigmoid_router, experts=_EXPERTS,
        layer={
            **ATTENTION, **_HEAD_NORMS, **_DENSE, **_ROUTER, **_shared("shared_experts"),
            **_CHOOSING, **NEXTN, "post_attention_layernorm": "post_attention_norm",
        },
        partial_rope=True,
    ),
    "dots1": Family(
        architecture="dots1", outside=OUTSIDE, own=keys.dots1, experts=_EXPERTS,
        layer={
            **ATTENTION, **_HEAD_NORMS, **_DENSE, **_ROUTER, **_shared("shared_experts"),
            **_CHOOSING,
        },
    ),
    "gpt_oss": Family(
        architecture="gpt-oss", outside=OUTSIDE, own=keys.gpt_oss,
        layer={
            **ATTENTION, "post_attention_layernorm": "post_attention_norm",
            "self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp",
            "mlp.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
            "mlp.experts.down_proj": "ffn_down_exps",
        },
        experts_turned=True, experts_alternate=True, yarn_truncates=False,
    ),
    "phimoe": Family(
        architecture="phimoe", outside=OUTSIDE, own=keys.phimoe, longrope=True,
        layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"},
        experts={
            "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
            "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
            "block_sparse_moe.experts.{}.w3": "ffn_up_exps",
        },
    ),
    "afmoe": Family(
        architecture="afmoe", outside=OUTSIDE, own=keys.afmoe, experts=_EXPERTS,
        layer=ATTENTION | _HEAD_NORMS | _DENSE | _shared("shared_experts") | {
            "post_attention_layernorm": "post_attention_norm",
            "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm",
            "self_attn.gate_proj": "attn_gate",
            "mlp.router.gate": "ffn_gate_inp", "mlp.expert_bias": "exp_probs_b",
        },
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v2": replace(_DEEPSEEK, own=keys.deepseek_v2),
    "glm4_moe_lite": replace(
        _DEEPSEEK, own=keys.glm4_moe_lite, defaults={"first_k_dense_replace": 1}
    ),
    "hunyuan_v1_moe": Family(
        architecture="hunyuan-moe", outside=OUTSIDE, own=keys.hunyuan_moe, experts=_EXPERTS,
        layer=ATTENTION | _shared("shared_mlp") | {
            "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
            "mlp.gate.wg": "ffn_gate_inp",
        },
        ntk_alpha=True,
    ),
}  # fmt: skip
"""By config.json's model_type."""
