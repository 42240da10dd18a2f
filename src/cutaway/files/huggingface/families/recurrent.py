"""The families in which layers have a recurrent state: short convolutions and gated delta nets.

Knows which layers have a state, how large the state is, and the names of tensors. The graphs are in
``compute/model/architectures/recurrent.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys, mixtures
from cutaway.files.huggingface.families.family import (
    ATTENTION,
    EXPERTS,
    FUSED_EXPERTS,
    HEAD_NORMS,
    NEXTN,
    NEXTN_NORMS,
    OUTSIDE,
    TEXT,
    Family,
    Variant,
    mlp,
)
from cutaway.files.huggingface.families.keys import FULL, LINEAR, SLIDING
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
from cutaway.files.huggingface.rope import PARTIAL, Ropes
from cutaway.files.huggingface.shards import Shards, Sources, TensorSource

_CONV = "conv"


# -- keys ------------------------------------------------------------------------------------------


def lfm2(config: JsonObject) -> dict[str, Any]:
    """Return the keys of LFM2, whose MLPs all have one width."""
    return _lfm2(config) | {"feed_forward_length": _lfm2_feed_forward(config)}


def _lfm2(config: JsonObject) -> dict[str, Any]:
    """Return which layers attend; the others are short convolutions without kv heads in GGUF."""
    layers = config.size("num_hidden_layers")
    attend, kinds = config.get("full_attn_idxs"), config.get("layer_types")
    if kinds is None:
        attend = range(layers) if attend is None else attend
        if not isinstance(attend, (list, range)) or not all(i in range(layers) for i in attend):
            config.fail("full_attn_idxs", f"a list of layers, each from 0 to {layers - 1}")
        kinds = [FULL if i in attend else _CONV for i in range(layers)]
    return _short_convs(config, kinds, FULL)


def lfm2_encoder(config: JsonObject) -> dict[str, Any]:
    """Return the keys of LFM2.5's encoders, in which tokens see to both sides."""
    is_masked = "ForMaskedLM" in str(config.get("architectures"))
    return lfm2(config) | {"attention.causal": False, "masked_head": is_masked}


def _short_convs(config: JsonObject, kinds: Any, *attend: str) -> dict[str, Any]:
    """Return the key-value heads of each layer, and the length of convolutions.

    kinds: of layers; attend: the kinds of those that attend
    """
    keys.check_kinds(config, kinds, *attend, _CONV)
    kv_heads = config.size("num_key_value_heads")
    counts = np.array([0 if kind == _CONV else kv_heads for kind in kinds], np.int32)
    return {
        "attention.head_count_kv": counts, "shortconv.l_cache": config.size("conv_L_cache"),
    }  # fmt: skip


def lfm3(config: JsonObject) -> dict[str, Any]:
    """Return the keys of LFM3, in which some of the layers that attend have windows."""
    layers = range(config.size("num_hidden_layers"))
    kinds = config.get("layer_types") or [_lfm3_kind(layer) for layer in layers]
    metadata = _short_convs(config, kinds, FULL, SLIDING)
    if SLIDING not in kinds:
        return metadata
    return metadata | {
        keys.WINDOW: config.size("sliding_window"),
        f"{keys.WINDOW}_pattern": np.array([kind == SLIDING for kind in kinds]),
        "rope.freq_base_swa": keys.local_base(config, "rope_local_base_freq"),
    }


def _lfm3_kind(layer: int) -> str:
    """Return a layer's kind by its number, unless config.json says otherwise."""
    if layer % 4 == 2:
        return FULL
    return _CONV if layer % 4 or layer == 0 else SLIDING


def _lfm2_feed_forward(config: JsonObject) -> int:
    """Return the MLP's width; config.json has the width that an MLP without a gate would have."""
    name = "block_ff_dim" if config.get("block_ff_dim") is not None else "intermediate_size"
    width = config.size(name)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    if config.get("block_ffn_dim_multiplier") is not None:
        width = int(config.positive("block_ffn_dim_multiplier") * width)
    multiple = config.size("block_multiple_of")
    return -(-width // multiple) * multiple


def lfm2_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of LFM2 with experts, whose weights are computed by a sigmoid.

    Experts are chosen with biases. The first layers have no experts.
    """
    return _lfm2(config) | mixtures.experts(config, "num_experts") | {
        "feed_forward_length": config.size("intermediate_size"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_gating_func": mixtures.SIGMOID,
        "expert_weights_norm": config.flag("norm_topk_prob", True),
        "expert_weights_scale": config.positive("routed_scaling_factor"),
        "leading_dense_block_count": config.id("num_dense_layers"),
    }  # fmt: skip


def qwen35(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Qwen 3.5.

    All layers except every fourth are gated delta nets, unless config.json lists the layers.
    """
    return _delta_nets(config) | {"rope.dimension_sections": keys.sections(config, [11, 11, 10])}


def qwen35_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Qwen 3.5 with experts in every layer.

    All rows share one more expert, which has a gate of its own.
    """
    return qwen35(config) | _experts_beside_a_shared_one(config)


def qwen3_next(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Qwen 3.5 with experts, but without the positions of pictures."""
    return _delta_nets(config) | _experts_beside_a_shared_one(config)


def olmo_hybrid(config: JsonObject) -> dict[str, Any]:
    """Return the keys of OLMo Hybrid, most of whose layers are gated delta nets."""
    return _delta_nets(_olmo_hybrid_sizes(config)) | {
        "ssm.beta_scale": 2.0 if config.flag("linear_allow_neg_eigval") else 1.0,
        "rope.rotates": _has_rotary_base(config),
    }


def _has_rotary_base(config: JsonObject) -> bool:
    """Whether the rotary base is not null; if it is absent, it is the usual one."""
    places = (config.part("rope_parameters").values, config.values)
    return all(place.get("rope_theta", 1.0) is not None for place in places)


def _olmo_hybrid_sizes(config: JsonObject) -> JsonObject:
    """Return the config with the sizes that follow from others where they are absent."""
    layers, heads = config.size("num_hidden_layers"), config.size("num_attention_heads")
    kinds = [FULL if i % 4 == 3 else LINEAR for i in range(layers)]
    usual: dict[str, Any] = {
        "linear_num_key_heads": heads, "linear_num_value_heads": heads,
        "layer_types": kinds if FULL in kinds else [*kinds[:-1], FULL],
    }  # fmt: skip
    config = config.with_defaults({}, usual)
    width = int(0.75 * config.size("hidden_size") / config.size("linear_num_key_heads"))
    config = config.with_defaults({}, {"linear_key_head_dim": width})
    width = 2 * config.size("linear_key_head_dim")
    return config.with_defaults({}, {"linear_value_head_dim": width})


def _experts_beside_a_shared_one(config: JsonObject) -> dict[str, Any]:
    config.must_be("use_sliding_window", False)
    return keys.qwen_experts(config) | {
        "expert_shared_feed_forward_length": config.size("shared_expert_intermediate_size"),
        "feed_forward_length": config.size("moe_intermediate_size"),
    }


def _delta_nets(config: JsonObject) -> dict[str, Any]:
    layers = config.size("num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        interval = config.size("full_attention_interval")
        kinds = [LINEAR if (i + 1) % interval else FULL for i in range(layers)]
    keys.check_kinds(config, kinds, LINEAR, FULL)
    config.must_be("attention_bias", False)
    heads = config.size("linear_num_value_heads")
    return {
        "attention.recurrent_layers": np.array([kind != FULL for kind in kinds]),
        "ssm.conv_kernel": config.size("linear_conv_kernel_dim"),
        "ssm.state_size": config.size("linear_key_head_dim"),
        "ssm.group_count": config.size("linear_num_key_heads"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config.size("linear_value_head_dim"),
    }


# -- names and rewrites of tensors -----------------------------------------------------------------


_MAX_SIZE = 1 << 16


def _lfm2_rewrites(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"conv": Squeezed()}


def _check_parts(sources: Sources, config: JsonObject, _: Shards) -> dict[str, Any]:
    """Refuse norms and gates that config.json has and the files lack, or the other way round."""
    for key, ending in (
        ("use_sandwich_norm", ".post_attention_norm.weight"),
        ("use_attention_gate", ".attn_gate.weight"),
    ):
        config.must_be(key, any(name.endswith(ending) for name in sources))
    return {}


_LFM2 = Family(
    architecture="lfm2", must_be={}, metadata=lfm2, rewrites=_lfm2_rewrites,
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
    names={"rms_norm_eps": "norm_eps"},
)  # fmt: skip
_LFM2_ENCODER = replace(_LFM2, prefixes=("model.", "lfm2."), metadata=lfm2_encoder)
_LFM3 = replace(
    _LFM2, architecture="lfm3", metadata=lfm3, rope=Ropes(proportional=True), rebuild=_check_parts,
    layer={
        **_LFM2.layer, **HEAD_NORMS, "self_attn.o_proj": "attn_output",
        "self_attn.gate_proj": "attn_gate", "self_attn.g_proj": "attn_gate",
        "post_operator_norm": "post_attention_norm", "post_ffn_norm": "post_ffw_norm",
    },
)  # fmt: skip
_LFM2_MOE = replace(
    _LFM2, architecture="lfm2moe", metadata=lfm2_moe,
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


def _delta_sizes(config: JsonObject) -> tuple[int, int, int, int]:
    """Return the number of key heads and of value heads, and the width of each."""
    names = ("linear_num_key_heads", "linear_num_value_heads")
    k_heads, heads = (config.size(name, _MAX_SIZE) for name in names)
    if heads % k_heads:
        config.fail("linear_num_value_heads", f"a whole number of times the {k_heads} key heads")
    keys, values = (config.size(f"linear_{kind}_head_dim", _MAX_SIZE) for kind in ("key", "value"))
    return k_heads, heads, keys, values


_NORMS = (
    "attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "output_norm", *NEXTN_NORMS,
)  # fmt: skip


def _qwen35(config: JsonObject) -> Mapping[str, Rewrite]:
    k_heads, heads, keys, values = _delta_sizes(config)
    per_head, per_value = Tiled(k_heads, heads), Tiled(k_heads, heads, values)
    mixed = Tiled(k_heads, heads, values, skip=2 * k_heads * keys)
    return {
        **dict.fromkeys(_NORMS, add_one), "ssm_a": lambda x: per_head(minus_exp(x)),
        "ssm_dt": per_head, "ssm_alpha": per_head, "ssm_beta": per_head, "attn_qkv": mixed,
        "ssm_conv1d": Squeezed(mixed),
        "attn_gate": per_value, "ssm_out": TiledColumns(per_value),
    }  # fmt: skip


def _qwen3_next(config: JsonObject) -> Mapping[str, Rewrite]:
    """Return the rewrites that split the one matrix of queries, keys, values and gates.

    The rows that belong to a key head are side by side.
    """
    k_heads, heads, keys, values = _delta_sizes(config)
    sizes = (keys, keys, heads // k_heads * values, heads // k_heads * values)
    return {
        **dict.fromkeys(_NORMS, add_one), "ssm_a": minus_exp, "ssm_conv1d": Squeezed(),
        "attn_qkv": RowParts(sizes, (0, 1, 2)), "attn_gate": RowParts(sizes, (3,)),
    }  # fmt: skip


_GATED_ATTENTION = ATTENTION | NEXTN | HEAD_NORMS | {
    "post_attention_layernorm": "post_attention_norm",
}  # fmt: skip
_DELTA_NET = {
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}  # fmt: skip
_MIXTURE = mlp("mlp.shared_expert", "_shexp") | {
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **FUSED_EXPERTS,
}  # fmt: skip
_QWEN35 = Family(
    architecture="qwen35", prefixes=TEXT, metadata=qwen35, rope=PARTIAL,
    layer=_GATED_ATTENTION | _DELTA_NET | mlp() | {
        "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
    },
    whole={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"},
    rewrites_of=_qwen35, defaults={"full_attention_interval": 4},
)  # fmt: skip
_QWEN35_MOE = replace(
    _QWEN35, architecture="qwen35moe", metadata=qwen35_moe,
    layer={**_QWEN35.layer, **_MIXTURE}, experts=EXPERTS, experts_turned=False,
    defaults={**_QWEN35.defaults, "norm_topk_prob": True},
)  # fmt: skip
_QWEN3_NEXT = replace(
    _QWEN35_MOE, architecture="qwen3next", prefixes=("model.",), metadata=qwen3_next,
    layer=_GATED_ATTENTION | _DELTA_NET | _MIXTURE | {
        "linear_attn.in_proj_qkvz": "attn_qkv+attn_gate", "linear_attn.in_proj_ba": "ssm_ba",
    },
    rewrites_of=_qwen3_next,
)  # fmt: skip


def _join_convolutions(sources: Sources, config: JsonObject, shards: Shards) -> dict[str, Any]:
    """Join the three convolutions of a layer.

    transformers writes thirds of the joined one, however wide queries, keys and values are.
    """
    for layer in range(config.size("num_hidden_layers")):
        parts = [sources.pop(f"blk.{layer}.ssm_conv1d_{x}.weight", None) for x in "qkv"]
        numbers = [part.make(shards)[:].view(np.float32) for part in parts if part is not None]
        if len(numbers) == len(parts):
            name, taps = f"blk.{layer}.ssm_conv1d.weight", config.size("linear_conv_kernel_dim")
            values = np.concatenate(numbers).reshape(-1, taps)
            sources[name] = TensorSource(name, "F32", values.shape, (), values=values)
    return {}


_OLMO_HYBRID = Family(
    architecture="olmo-hybrid", metadata=olmo_hybrid,
    layer=HEAD_NORMS | mlp() | {
        **{k: v for k, v in ATTENTION.items() if k.startswith("self_attn")},
        "input_layernorm": "attn_norm", "attention_layer_norm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "feedforward_layer_norm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        **{f"linear_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
        **{f"linear_attn.{name}_conv1d": f"ssm_conv1d_{name}" for name in "qkv"},
        "linear_attn.a_proj": "ssm_alpha", "linear_attn.b_proj": "ssm_beta",
        "linear_attn.g_proj": "attn_gate", "linear_attn.o_norm": "ssm_norm",
        "linear_attn.o_proj": "ssm_out",
    },
    whole={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"},
    rewrites=lambda *_: {
        "ssm_a": minus_exp, **{f"ssm_conv1d_{name}": Squeezed() for name in "qkv"},
    },
    rebuild=_join_convolutions,
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "lfm2": _LFM2,
    "lfm2_bidirectional": _LFM2_ENCODER,
    "lfm2_moe": _LFM2_MOE,
    "lfm3": _LFM3,
    "olmo_hybrid": _OLMO_HYBRID,
    "qwen3_5": _QWEN35,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe": _QWEN35_MOE,
    "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _QWEN3_NEXT,
}


_ENCODERS = ("Lfm2BidirectionalModel", "Lfm2BidirectionalForMaskedLM")


def _lfm2_variant(config: JsonObject, _: Iterable[str]) -> Family | None:
    """Return the encoder's row; the publisher's classes have LFM2's own model_type."""
    name, classes = config.text("model_type"), config.get("architectures")
    if name != "lfm2_bidirectional" and "Bidir" not in str(classes):
        return None
    is_supported = classes is None or classes in ([name] for name in _ENCODERS)
    if name not in ("lfm2", "lfm2_bidirectional") or not is_supported:
        config.refuse("architectures", f"of encoders only {' and '.join(_ENCODERS)} of lfm2 are")
    return _LFM2_ENCODER


VARIANTS: Mapping[str, Variant] = dict.fromkeys(
    ("lfm2", "lfm2_bidirectional", "lfm2_moe", "lfm3"), _lfm2_variant
)
