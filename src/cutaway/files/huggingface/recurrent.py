"""The families in which layers have a recurrent state.

As `families`, of which this is a part. Knows no files.
"""

from collections.abc import Mapping
from dataclasses import replace

from cutaway.files.huggingface import recurrent_keys as keys
from cutaway.files.huggingface.draft_head import NEXTN, NEXTN_NORMS
from cutaway.files.huggingface.family import ATTENTION, OUTSIDE, TEXT, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    Rewrite,
    RowParts,
    Squeezed,
    Tiled,
    TiledColumns,
    add_one,
    minus_exp,
)

_MLP = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_DENSE = {f"mlp.{old}": f"ffn_{new}" for old, new in _MLP.items()}
_EXPERTS = {f"mlp.experts.{{}}.{old}": f"ffn_{new}_exps" for old, new in _MLP.items()}
_MOST = 1 << 16


# -- short convolutions ----------------------------------------------------------------------------


def _lfm2(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"conv": Squeezed()}


_LFM2 = Family(
    architecture="lfm2", own=keys.lfm2, rewrites=_lfm2,
    outside={**OUTSIDE, "embedding_norm": "token_embd_norm"},
    layer={
        "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
        "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv",
        "conv.out_proj": "shortconv.out_proj",
        "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
        "feed_forward.w2": "ffn_down",
    },
    names={"rms_norm_eps": "norm_eps"}, own_width=True,
)  # fmt: skip
_LFM2_MOE = replace(
    _LFM2, architecture="lfm2moe", own=keys.lfm2_moe,
    layer={
        **_LFM2.layer,
        "feed_forward.gate": "ffn_gate_inp", "feed_forward.expert_bias": "exp_probs_b",
    },
    experts={
        "feed_forward.experts.{}.w1": "ffn_gate_exps",
        "feed_forward.experts.{}.w3": "ffn_up_exps",
        "feed_forward.experts.{}.w2": "ffn_down_exps",
    },
)  # fmt: skip


# -- gated delta nets ------------------------------------------------------------------------------


def _delta_sizes(config: JsonObject) -> tuple[int, int, int, int]:
    """Key heads, value heads, and how many numbers each of both has."""
    names = ("linear_num_key_heads", "linear_num_value_heads")
    k_heads, heads = (config.size(name, _MOST) for name in names)
    if heads % k_heads:
        config.fail("linear_num_value_heads", f"a whole number of times the {k_heads} key heads")
    keys, values = (config.size(f"linear_{kind}_head_dim", _MOST) for kind in ("key", "value"))
    return k_heads, heads, keys, values


_NORMS = (
    "attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "output_norm", *NEXTN_NORMS,
)  # fmt: skip


def _qwen35(config: JsonObject) -> Mapping[str, Rewrite]:
    k_heads, heads, keys, values = _delta_sizes(config)
    one, each = Tiled(k_heads, heads), Tiled(k_heads, heads, values)
    mixed = Tiled(k_heads, heads, values, skip=2 * k_heads * keys)
    return {
        **dict.fromkeys(_NORMS, add_one), "ssm_a": lambda x: one(minus_exp(x)), "ssm_dt": one,
        "ssm_alpha": one, "ssm_beta": one, "attn_qkv": mixed, "ssm_conv1d": Squeezed(mixed),
        "attn_gate": each, "ssm_out": TiledColumns(each),
    }  # fmt: skip


def _qwen3_next(config: JsonObject) -> Mapping[str, Rewrite]:
    """One matrix gives query, key, values and gates, those of a key head side by side."""
    k_heads, heads, keys, values = _delta_sizes(config)
    sizes = (keys, keys, heads // k_heads * values, heads // k_heads * values)
    return {
        **dict.fromkeys(_NORMS, add_one), "ssm_a": minus_exp, "ssm_conv1d": Squeezed(),
        "attn_qkv": RowParts(sizes, (0, 1, 2)), "attn_gate": RowParts(sizes, (3,)),
    }  # fmt: skip


_GATED_ATTENTION = ATTENTION | NEXTN | {
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
_DELTA_NET = {
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}  # fmt: skip
_MIXTURE = {f"mlp.shared_expert.{old}": f"ffn_{new}_shexp" for old, new in _MLP.items()} | {
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
_QWEN35 = Family(
    architecture="qwen35", prefixes=TEXT, outside=OUTSIDE, own=keys.qwen35, partial_rope=True,
    layer=_GATED_ATTENTION | _DELTA_NET | _DENSE | {
        "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
    },
    whole={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"},
    rewrites_of=_qwen35, defaults={"full_attention_interval": 4},
)  # fmt: skip
_QWEN35_MOE = replace(
    _QWEN35, architecture="qwen35moe", own=keys.qwen35_moe, own_width=True,
    layer={**_QWEN35.layer, **_MIXTURE}, experts=_EXPERTS, experts_turned=False,
    defaults={**_QWEN35.defaults, "norm_topk_prob": True},
)  # fmt: skip
_QWEN3_NEXT = replace(
    _QWEN35_MOE, architecture="qwen3next", prefixes=("model.",), own=keys.qwen3_next,
    layer=_GATED_ATTENTION | _DELTA_NET | _MIXTURE | {
        "linear_attn.in_proj_qkvz": "attn_qkv+attn_gate", "linear_attn.in_proj_ba": "ssm_ba",
    },
    rewrites_of=_qwen3_next,
)  # fmt: skip


RECURRENT: Mapping[str, Family] = {
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2_MOE,
    "qwen3_5": _QWEN35,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe": _QWEN35_MOE,
    "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _QWEN3_NEXT,
}
"""By config.json's model_type, or as ``meant`` says."""
