"""GPT-2, GPT-NeoX and what descends from them, OPT, BLOOM, MPT, Falcon: names and keys.

Their graphs are in ``compute/model/architectures/gpt.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.family import ATTENTION, OUTSIDE, Family, Variant
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    Rewrite,
    RowParts,
    WithoutFirst,
    add_one,
    queries_keys_values,
    transpose,
)
from cutaway.files.huggingface.rope import PARTIAL

# -- keys ------------------------------------------------------------------------------------------


def width(config: JsonObject) -> dict[str, Any]:
    """Return the MLP's width: four times the model's if config.json has none."""
    is_set = config.get("intermediate_size") is not None
    inner = config.size("intermediate_size") if is_set else 4 * config.size("hidden_size")
    return {"feed_forward_length": inner}


def gpt_neox(config: JsonObject) -> dict[str, Any]:
    """Return whether attention and feed-forward read the same input."""
    return {"use_parallel_residual": config.flag("use_parallel_residual", True)}


def one_kv_head(config: JsonObject) -> dict[str, Any]:
    """Return the MLP's width, and that all heads share one key and one value."""
    return width(config) | {"attention.head_count_kv": 1}


def gptj(config: JsonObject) -> dict[str, Any]:
    """Return the MLP's width, and how many numbers of a head are rotated."""
    return width(config) | {"rope.dimension_count": config.size("rotary_dim")}


def opt(config: JsonObject) -> dict[str, Any]:
    """Return no keys; refuse embeddings that are narrower than the model (350M)."""
    config.must_be("word_embed_proj_dim", config.size("hidden_size"))
    return {}


def mpt(config: JsonObject) -> dict[str, Any]:
    """Return the width of the MLP, which is four times the model's, and that ALiBi is used."""
    config.must_be("expansion_ratio", 4)
    attention = config.part("attn_config")
    for key, value in (
        ("alibi", True), ("alibi_bias_max", 8), ("qk_ln", False), ("prefix_lm", False),
        ("attn_type", "multihead_attention"),
    ):  # fmt: skip
        attention.must_be(key, value)
    for key in ("clip_qkv", "softmax_scale"):
        if attention.get(key) is not None:
            attention.refuse(key, "only null is")
    return {
        "feed_forward_length": 4 * config.size("hidden_size"), "attention.max_alibi_bias": 8.0,
    }  # fmt: skip


def falcon(config: JsonObject) -> dict[str, Any]:
    """Return the MLP's width, and the number of heads of keys and values."""
    if not config.flag("new_decoder_architecture"):
        config.must_be("parallel_attn", True)
        config.must_be("num_ln_in_parallel_attn", None, 1)
    return width(config) | {"attention.head_count_kv": _falcon_kv_heads(config)}


def _falcon_kv_heads(config: JsonObject) -> int:
    heads = config.size("num_attention_heads")
    if config.flag("new_decoder_architecture"):
        return config.size("num_kv_heads") if config.get("num_kv_heads") else heads
    return 1 if config.flag("multi_query", True) else heads


# -- names and rewrites of tensors -----------------------------------------------------------------


def _nemotron(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("output_norm", "attn_norm", "ffn_norm"), add_one)


def _gpt2(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), transpose)


def _gpt_neox(heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_qkv": queries_keys_values(heads)}


def _falcon(config: JsonObject) -> Mapping[str, Rewrite]:
    """Return the rewrite of rows: a group of heads has its queries, then its key and value."""
    heads, kv_heads = config.size("num_attention_heads"), _falcon_kv_heads(config)
    size = config.size("hidden_size") // heads
    return {"attn_qkv": RowParts((heads // kv_heads * size, size, size), (0, 1, 2))}


def _positions(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"position_embd": WithoutFirst(2)}  # the table's first two rows are of no position


_QKV_LAYER = {
    "input_layernorm": "attn_norm", "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip
_GPT2_NAMES = {
    "hidden_size": "n_embd", "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner", "hidden_act": "activation_function",
}  # fmt: skip
_GPT2 = Family(
    architecture="gpt2", prefixes=("transformer.",),
    outside={
        "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output",
    },
    layer={
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    skipped=(".attn.bias", ".attn.masked_bias"),
    names=_GPT2_NAMES,
    metadata=width, must_be={
        "hidden_act": "gelu_new", "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
    }, rewrites=_gpt2, grouped=False, layer_norm=True, rope=None,
)  # fmt: skip

_BLOOM = Family(
    architecture="bloom", prefixes=("transformer.",), metadata=width, layer_norm=True,
    rope=None, grouped=False, rewrites=_gpt_neox,
    must_be={"apply_residual_connection_post_layernorm": False},
    names={
        "max_position_embeddings": "seq_length",
        "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
    },
    defaults={"max_position_embeddings": 2048},
    outside={
        "word_embeddings": "token_embd", "word_embeddings_layernorm": "token_embd_norm",
        "ln_f": "output_norm", "lm_head": "output",
    },
    layer=_QKV_LAYER,
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "gpt2": _GPT2,
    "gpt_bigcode": replace(
        _GPT2, architecture="starcoder", rewrites=lambda *_: {}, metadata=one_kv_head,
        must_be={
            "hidden_act": "gelu_pytorch_tanh", "scale_attn_weights": True, "multi_query": True,
            "add_cross_attention": False,
        },
    ),
    "gptj": Family(
        architecture="gptj", prefixes=("transformer.",), names=_GPT2_NAMES, metadata=gptj,
        must_be={"hidden_act": "gelu_new"}, defaults={"rope_theta": 10000.0}, layer_norm=True,
        grouped=False, rope=PARTIAL,
        skipped=(".attn.bias", ".attn.masked_bias", ".embed_positions"),
        outside={"wte": "token_embd", "ln_f": "output_norm", "lm_head": "output"},
        layer={
            "ln_1": "attn_norm", "attn.out_proj": "attn_output",
            **{f"attn.{part}_proj": f"attn_{part}" for part in "qkv"},
            "mlp.fc_in": "ffn_up", "mlp.fc_out": "ffn_down",
        },
    ),
    "opt": Family(
        architecture="opt", prefixes=("model.decoder.", "decoder.", "model."), metadata=opt,
        layer_norm=True, rope=None, grouped=False, rewrites=_positions,
        defaults={"layer_norm_epsilon": 1e-5},
        names={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"},
        must_be={
            "hidden_act": "relu", "do_layer_norm_before": True, "enable_bias": True,
            "layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False,
        },
        outside={
            "embed_tokens": "token_embd", "embed_positions": "position_embd",
            "final_layer_norm": "output_norm", "lm_head": "output",
        },
        layer={
            "self_attn_layer_norm": "attn_norm", "self_attn.out_proj": "attn_output",
            **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
            "final_layer_norm": "ffn_norm", "fc1": "ffn_up", "fc2": "ffn_down",
        },
    ),
    "bloom": _BLOOM,
    "bloom_n_embed": replace(_BLOOM, names={**_BLOOM.names, "hidden_size": "n_embed"}),
    "mpt": Family(
        architecture="mpt", prefixes=("transformer.",), metadata=mpt, layer_norm=True, rope=None,
        grouped=False, must_be={"no_bias": True, "logit_scale": None},
        names={
            "hidden_size": "d_model", "max_position_embeddings": "max_seq_len",
            "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
        },
        outside={"wte": "token_embd", "norm_f": "output_norm", "lm_head": "output"},
        layer={
            "norm_1": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output",
            "norm_2": "ffn_norm", "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down",
        },
    ),
    "falcon": Family(
        architecture="falcon", prefixes=("transformer.",), metadata=falcon, rewrites_of=_falcon,
        layer_norm=True, grouped=False, must_be={"alibi": False, "activation": "gelu"},
        names={"intermediate_size": "ffn_hidden_size"},
        outside={"word_embeddings": "token_embd", "ln_f": "output_norm", "lm_head": "output"},
        layer=_QKV_LAYER | {"ln_mlp": "attn_norm", "ln_attn": "attn_norm_2"},
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
        metadata=gpt_neox, must_be={"hidden_act": "gelu"}, rewrites=_gpt_neox, grouped=False,
        layer_norm=True, rope=PARTIAL,
    ),
    "starcoder2": Family(
        architecture="starcoder2", metadata=keys.window, layer_norm=True,
        must_be={"hidden_act": "gelu_pytorch_tanh"},
        layer=ATTENTION | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        names={"layer_norm_epsilon": "norm_epsilon"},
    ),
    "nemotron": Family(
        architecture="nemotron", must_be={"hidden_act": "relu2"}, layer_norm=True,
        rope=PARTIAL, names={"layer_norm_epsilon": "norm_eps"}, rewrites=_nemotron,
    ),
    "jais2": Family(
        architecture="jais2", must_be={"hidden_act": "relu2"}, layer_norm=True,
        names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    "phi": Family(
        architecture="phi2", layer_norm=True, rope=PARTIAL,
        must_be={"hidden_act": "gelu_new", "qk_layernorm": False},
        outside={**OUTSIDE, "final_layernorm": "output_norm"},
        layer=ATTENTION | {
            "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "self_attn.dense": "attn_output",
        },
        names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    "stablelm": Family(
        architecture="stablelm", layer_norm=True, rope=PARTIAL,
        names={"layer_norm_epsilon": "layer_norm_eps"},
        experts={
            f"self_attn.{x}_layernorm.norms.{{}}": f"attn_{x}_norm" for x in "qk"
        },  # a norm of each head
    ),
}  # fmt: skip

VARIANTS: Mapping[str, Variant] = {
    "bloom": lambda config, _: ROWS["bloom_n_embed"] if config.get("n_embed") else None,
}
