"""GPT-2, GPT-NeoX, StarCoder 2, Nemotron, Jais 2, Phi and StableLM: names and keys.

Their graphs are in ``compute/model/architectures/gpt.py``.
"""

from collections.abc import Mapping
from typing import Any

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.family import ATTENTION, OUTSIDE, SILU, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    Rewrite,
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


# -- names and rewrites of tensors -----------------------------------------------------------------


def _nemotron(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("output_norm", "attn_norm", "ffn_norm"), add_one)


def _gpt2(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), transpose)


def _gpt_neox(heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_qkv": queries_keys_values(heads)}


ROWS: Mapping[str, Family] = {
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
        metadata=width, must_be={
            "hidden_act": "gelu_new", "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
        }, rewrites=_gpt2, grouped=False, layer_norm=True, rope=None,
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
        must_be=SILU | {"use_parallel_residual": False, "qk_layernorm": False},
        names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
}  # fmt: skip
