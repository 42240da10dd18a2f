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
_GEMMA_DEFAULTS = {
    "tie_word_embeddings": True, "head_dim": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}  # fmt: skip


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
    defaults=_GEMMA_DEFAULTS | {"rope_theta": 1e6, "max_position_embeddings": 131072},
)  # fmt: skip

_MISTRAL3 = replace(
    _LLAMA,
    architecture="mistral3",
    prefixes=TEXT,
    own=keys.mistral3,
    defaults={"num_key_value_heads": 8, "head_dim": 128},
)
_QWEN2_VL = Family(
    architecture="qwen2vl", prefixes=TEXT, outside=OUTSIDE, layer=_LAYER, own=keys.qwen_vl
)
_QWEN3_VL = replace(
    _QWEN2_VL, architecture="qwen3vl", layer=_LAYER | _QK_NORMS, defaults={"head_dim": 128}
)
_OLMO2 = Family(
    architecture="olmo2", outside=OUTSIDE, layer=_NORMS_BEHIND, defaults={"rms_norm_eps": 1e-5}
)
_GLM = Family(
    architecture="chatglm",
    outside=OUTSIDE,
    layer=ATTENTION | _GATE_UP,
    partial_rope=True,
    defaults={"head_dim": 128, "rotary_share": 0.5, "rms_norm_eps": 1.5625e-7},
)
_COHERE = Family(
    architecture="command-r",
    outside=OUTSIDE,
    layer=_LAYER,
    own=keys.cohere,
    layer_norm=True,
    names={"layer_norm_epsilon": "layer_norm_eps"},
    defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "logit_scale": 0.0625},
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": replace(
        _LLAMA, own=keys.mistral, defaults={"num_key_value_heads": 8}),
    "mixtral": replace(
        _LLAMA, layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"},
        experts={
            "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
            "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
            "block_sparse_moe.experts.{}.w3": "ffn_up_exps",
        },
        own=keys.mixtral,
        defaults={"num_key_value_heads": 8, "rope_theta": 1e6, "num_experts_per_tok": 2},
    ),
    "smollm3": replace(
        _LLAMA, architecture="smollm3", own=keys.smollm3,
        defaults={"tie_word_embeddings": True, "rope_theta": 2e6},
    ),
    "granite": replace(_LLAMA, architecture="granite", own=keys.granite),
    "qwen2": Family(architecture="qwen2", outside=OUTSIDE, layer=_LAYER, own=keys.qwen),
    "qwen3": Family(
        architecture="qwen3", outside=OUTSIDE, layer=_LAYER | _QK_NORMS, own=keys.qwen,
        defaults={"head_dim": 128},
    ),
    "qwen3_moe": Family(
        architecture="qwen3moe", outside=OUTSIDE,
        layer=ATTENTION | _QK_NORMS | {"mlp.gate": "ffn_gate_inp"},
        experts={
            "mlp.experts.{}.gate_proj": "ffn_gate_exps",
            "mlp.experts.{}.up_proj": "ffn_up_exps",
            "mlp.experts.{}.down_proj": "ffn_down_exps",
        },
        own=keys.qwen3_moe, defaults={"num_experts_per_tok": 8},
    ),
    "gemma2": Family(
        architecture="gemma2", outside=OUTSIDE, layer=_GEMMA_LAYER, own=keys.gemma2,
        rewrites=_gemma, defaults=_GEMMA_DEFAULTS,
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
        defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
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
        defaults={"rotary_share": 0.25, "layer_norm_epsilon": 1e-5},
        own=keys.gpt_neox, rewrites=_gpt_neox, grouped=False, layer_norm=True,
        partial_rope=True,
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, own=keys.olmo3, defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096}),
    "exaone4": replace(_OLMO2, architecture="exaone4", own=keys.exaone4),
    "mistral3": _MISTRAL3,
    "ministral3": _MISTRAL3,
    "ministral": replace(_LLAMA, own=keys.mistral, defaults={"num_key_value_heads": 8}),
    "iquestcoder": replace(_LLAMA, defaults={"head_dim": 128, "num_key_value_heads": 8}),
    "helium": Family(  # its rows of q and k are as GGUF has them
        architecture="llama", outside=OUTSIDE, layer=_LAYER,
        defaults={"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 1e5},
    ),
    "internlm3": replace(_LLAMA, defaults={"head_dim": 128, "num_key_value_heads": 2}),
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": replace(
        _QWEN3_VL, architecture="qwen3vlmoe", own=keys.qwen3_vl_moe,
        layer=ATTENTION | _QK_NORMS | {
            "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
            "mlp.experts.down_proj": "ffn_down_exps",
        },
        defaults={"head_dim": 128, "num_experts_per_tok": 8, "norm_topk_prob": True},
    ),
    "gemma": Family(
        architecture="gemma", outside=OUTSIDE, layer=_LAYER, own=keys.gemma, rewrites=_gemma,
        defaults={"tie_word_embeddings": True, "head_dim": 256, "rms_norm_eps": 1e-6},
    ),
    "ernie4_5": Family(
        architecture="ernie4_5", outside=OUTSIDE, layer=_LAYER,
        defaults={"tie_word_embeddings": True, "head_dim": 128, "rms_norm_eps": 1e-5,
                  "rope_theta": 5e5},
    ),
    "hunyuan_v1_dense": Family(
        architecture="hunyuan-dense", outside=OUTSIDE, ntk_alpha=True,
        layer=_LAYER | {
            "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
        },
    ),
    "seed_oss": Family(
        architecture="seed_oss", outside=OUTSIDE, defaults={"head_dim": 128},
        layer=_LAYER | {"post_attention_layernorm": "post_attention_norm"},
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, architecture="glm4", layer={**_GLM.layer, **_SANDWICH}),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, architecture="cohere2", own=keys.cohere2, defaults={
        **_COHERE.defaults, "sliding_window": 4096}),
    "starcoder2": Family(
        architecture="starcoder2", outside=OUTSIDE, own=keys.starcoder2, layer_norm=True,
        layer=ATTENTION | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        names={"layer_norm_epsilon": "norm_epsilon"},
        defaults={
            "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
    "arcee": replace(_LLAMA, architecture="arcee", own=keys.relu2),
    "nemotron": Family(
        architecture="nemotron", outside=OUTSIDE, layer=_LAYER, own=keys.relu2, layer_norm=True,
        partial_rope=True, names={"layer_norm_epsilon": "norm_eps"}, rewrites=_nemotron,
        defaults={"layer_norm_epsilon": 1e-5, "rotary_share": 0.5, "hidden_act": "relu2"},
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
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 12e6},
    ),
    "jais2": Family(
        architecture="jais2", outside=OUTSIDE, layer=_LAYER, own=keys.relu2, layer_norm=True,
        names={"layer_norm_epsilon": "layer_norm_eps"},
        defaults={"layer_norm_epsilon": 1e-5, "hidden_act": "relu2"},
    ),
    "phi": Family(
        architecture="phi2", own=keys.phi, layer_norm=True, partial_rope=True,
        outside={**OUTSIDE, "final_layernorm": "output_norm"},
        layer=ATTENTION | _PLAIN_MLP | {"self_attn.dense": "attn_output"},
        names={"layer_norm_epsilon": "layer_norm_eps"},
        defaults={"layer_norm_epsilon": 1e-5, "rotary_share": 0.5, "hidden_act": "gelu_new"},
    ),
    "stablelm": Family(
        architecture="stablelm", outside=OUTSIDE, layer=_LAYER, own=keys.stablelm,
        layer_norm=True, partial_rope=True, names={"layer_norm_epsilon": "layer_norm_eps"},
        defaults={"layer_norm_epsilon": 1e-5, "rotary_share": 0.25},
    ),
    **MIXTURES,
    **LING,
    **RECURRENT,
    **MAMBA,
    **ENCODERS,
}  # fmt: skip
"""By config.json's model_type."""
