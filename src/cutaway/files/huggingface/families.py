"""The families of models: GGUF's architecture and the names of tensors and keys for each.

A family's own keys, and what it refuses, are in `family_keys`. Knows no files.

Source: llama.cpp's `conversion/` and `gguf-py/gguf/tensor_mapping.py`.
"""

from collections.abc import Mapping
from dataclasses import replace

from cutaway.files.huggingface import family_keys as keys
from cutaway.files.huggingface.encoder_keys import gemma_embedding
from cutaway.files.huggingface.encoders import ENCODERS
from cutaway.files.huggingface.family import ATTENTION, OUTSIDE, TEXT, Family
from cutaway.files.huggingface.gemma4 import GEMMA4
from cutaway.files.huggingface.ling import LING
from cutaway.files.huggingface.mamba import MAMBA
from cutaway.files.huggingface.mixtures import MIXTURES
from cutaway.files.huggingface.recurrent import RECURRENT
from cutaway.files.huggingface.rewrites import (
    Rewrite,
    add_one,
    interleave_rope_rows,
    queries_keys_values,
    transposed,
)

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
_GEMMA_LAYER = _LAYER | _POST_NORMS | {"pre_feedforward_layernorm": "ffn_norm"}


def _interleaved(heads: int, kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_q": interleave_rope_rows(heads), "attn_k": interleave_rope_rows(kv_heads)}


def _gemma(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    norms = [name for name in (_GEMMA_LAYER | _QK_NORMS).values() if name.endswith("norm")]
    return dict.fromkeys(["output_norm", *norms], add_one)


def _nemotron(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("output_norm", "attn_norm", "ffn_norm"), add_one)


def _gpt2(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), transposed)


def _gpt_neox(heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_qkv": queries_keys_values(heads)}


# Llama and what descends from it: GGUF stores the rows of q and k interleaved.
_LLAMA = Family(architecture="llama", outside=OUTSIDE, layer=_LAYER, rewrites=_interleaved)
_GEMMA3 = Family(
    architecture="gemma3",
    prefixes=TEXT, outside=OUTSIDE, layer=_GEMMA_LAYER | _QK_NORMS,
    own=keys.gemma3, rewrites=_gemma,
)  # fmt: skip

_MISTRAL3 = replace(_LLAMA, architecture="mistral3", prefixes=TEXT, own=keys.mistral3)
_QWEN2_VL = Family(
    architecture="qwen2vl", prefixes=TEXT, outside=OUTSIDE, layer=_LAYER, own=keys.qwen_vl
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
    own=keys.cohere,
    layer_norm=True,
    names={"layer_norm_epsilon": "layer_norm_eps"},
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": replace(_LLAMA, own=keys.mistral),
    "mixtral": replace(
        _LLAMA, layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"},
        experts={
            "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
            "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
            "block_sparse_moe.experts.{}.w3": "ffn_up_exps",
        },
        own=keys.mixtral,
    ),
    "smollm3": replace(_LLAMA, architecture="smollm3", own=keys.smollm3),
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
    "gemma2": Family(
        architecture="gemma2", outside=OUTSIDE, layer=_GEMMA_LAYER, own=keys.gemma2,
        rewrites=_gemma,
    ),
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "gemma4_unified": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "gemma_embedding": replace(
        _GEMMA3, architecture="gemma-embedding", own=gemma_embedding
    ),
    "phi3": Family(
        architecture="phi3", outside=OUTSIDE,
        layer={
            "input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv",
            "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
            "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        },
        own=keys.phi3, partial_rope=True, longrope=True,
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
        own=keys.gpt2, rewrites=_gpt2, grouped=False, layer_norm=True, rope=False,
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
        own=keys.gpt_neox, rewrites=_gpt_neox, grouped=False, layer_norm=True,
        partial_rope=True,
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, own=keys.olmo3),
    "exaone4": replace(_OLMO2, architecture="exaone4", own=keys.exaone4),
    "mistral3": _MISTRAL3,
    "ministral3": _MISTRAL3,
    "ministral": replace(_LLAMA, own=keys.mistral),
    "iquestcoder": _LLAMA,
    "helium": Family(  # its rows of q and k are as GGUF has them
        architecture="llama", outside=OUTSIDE, layer=_LAYER
    ),
    "internlm3": _LLAMA,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": replace(
        _QWEN3_VL, architecture="qwen3vlmoe", own=keys.qwen3_vl_moe,
        layer=ATTENTION | _QK_NORMS | {
            "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
            "mlp.experts.down_proj": "ffn_down_exps",
        },
        defaults={"norm_topk_prob": True},
    ),
    "gemma": Family(
        architecture="gemma", outside=OUTSIDE, layer=_LAYER, own=keys.gemma, rewrites=_gemma
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
    "cohere2": replace(_COHERE, architecture="cohere2", own=keys.cohere2),
    "starcoder2": Family(
        architecture="starcoder2", outside=OUTSIDE, own=keys.starcoder2, layer_norm=True,
        layer=ATTENTION | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        names={"layer_norm_epsilon": "norm_epsilon"},
    ),
    "arcee": replace(_LLAMA, architecture="arcee", own=keys.relu2),
    "nemotron": Family(
        architecture="nemotron", outside=OUTSIDE, layer=_LAYER, own=keys.relu2, layer_norm=True,
        partial_rope=True, names={"layer_norm_epsilon": "norm_eps"}, rewrites=_nemotron,
    ),
    "apertus": Family(
        architecture="apertus", outside=OUTSIDE, own=keys.apertus, skipped=_XIELU,
        layer={
            "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
            "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
            "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        } | _QK_NORMS,
        scalars={f"model.layers.{{}}{name}": f"xielu.{name.rpartition('.')[2]}" for name in _XIELU},
    ),
    "jais2": Family(
        architecture="jais2", outside=OUTSIDE, layer=_LAYER, own=keys.relu2, layer_norm=True,
        names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    "phi": Family(
        architecture="phi2", own=keys.phi, layer_norm=True, partial_rope=True,
        outside={**OUTSIDE, "final_layernorm": "output_norm"},
        layer=ATTENTION | _PLAIN_MLP | {"self_attn.dense": "attn_output"},
        names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    "stablelm": Family(
        architecture="stablelm", outside=OUTSIDE, layer=_LAYER, own=keys.stablelm,
        layer_norm=True, partial_rope=True, names={"layer_norm_epsilon": "layer_norm_eps"},
    ),
    **MIXTURES,
    **LING,
    **RECURRENT,
    **MAMBA,
    **ENCODERS,
}  # fmt: skip
"""By config.json's model_type."""
