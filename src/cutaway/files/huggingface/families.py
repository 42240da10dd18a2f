"""The families of models: GGUF's architecture and the names of tensors and keys for each.

A family's own keys, and what it refuses, are in `family_keys`. Knows no files.

Source: llama.cpp's `conversion/` and `gguf-py/gguf/tensor_mapping.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cutaway.files.huggingface import family_keys as keys
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    Rewrite,
    WithoutFirst,
    add_one,
    interleave_rope_rows,
    queries_keys_values,
    transposed,
)

Names = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model.

    architecture  GGUF's name, and the prefix of its metadata keys
    prefixes      what a tensor's name may begin with
    outside       tensors outside the layers: transformers' name without ".weight" or ".bias" ->
                  GGUF's
    layer         tensors of each layer, likewise
    experts       tensors of each expert of a layer, likewise; {} stands for the expert's number
    skipped       endings of tensors' names that are not read: masks, tables, copies, other heads
    first_position  which row of the matrix of positions is the first position's
    names         config.json's names of keys, where they differ from llama's
    defaults      transformers' values of keys that config.json lacks
    own           gives the family's own metadata, and refuses what GGUF cannot express
    grouped       whether heads may share keys and values; if not, config.json's number is ignored
    layer_norm    whether norms subtract the mean
    attention     "causal"; of a diffusion model "bidirectional", or "block-causal", with blocks of
                  config.json's block_size, and bidirectional where it has none
    shifts        whether rows of a diffusion model predict the next position
    modulated     whether MDLM's modulation is folded into norms and matrices
    """

    architecture: str
    prefixes: tuple[str, ...] = ("model.",)
    outside: Names
    layer: Names
    experts: Names = field(default_factory=dict)
    skipped: tuple[str, ...] = ("rotary_emb.inv_freq",)
    first_position: int = 0
    names: Names = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    own: Callable[[JsonObject], dict[str, Any]] = keys.plain
    rewrites: Callable[[int, int], Mapping[str, Rewrite]] = lambda _heads, _kv_heads: {}
    grouped: bool = True
    layer_norm: bool = False
    rope: bool = True
    partial_rope: bool = False
    longrope: bool = False
    attention: str = "causal"
    shifts: bool = False
    modulated: bool = False


_OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_LAYER = _ATTENTION | _MLP
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
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


def _gpt2(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), transposed)


_ROBERTA_FIRST = 2  # rows before it are of no position: it counts from its padding token's id on


def _roberta(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"position_embd": WithoutFirst(_ROBERTA_FIRST)}


def _gpt_neox(heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"attn_qkv": queries_keys_values(heads)}


# Encoders, with their masked-LM heads or without.
_BESIDES = (
    "embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias",
    "decoder.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias",
)  # fmt: skip
_BERT_BODY = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip
_BERT = Family(
    architecture="bert", prefixes=("bert.",),
    outside=_BERT_BODY | {
        "cls.predictions.transform.dense": "cls", "cls.predictions.transform.LayerNorm": "cls.norm",
        "cls.predictions": "output", "cls.predictions.decoder": "output",
    },
    layer={
        "attention.self.query": "attn_q", "attention.self.key": "attn_k",
        "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    },
    skipped=_BESIDES,
    names={"layer_norm_epsilon": "layer_norm_eps"},
    defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-12, "hidden_act": "gelu"},
    own=keys.bert, grouped=False, layer_norm=True, rope=False,
)  # fmt: skip

# Llama and what descends from it: GGUF stores the rows of q and k interleaved.
_LLAMA = Family(architecture="llama", outside=_OUTSIDE, layer=_LAYER, rewrites=_interleaved)
_GEMMA3 = Family(
    architecture="gemma3",
    prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
    outside=_OUTSIDE, layer=_GEMMA_LAYER | _QK_NORMS, own=keys.gemma3, rewrites=_gemma,
    defaults=_GEMMA_DEFAULTS | {"rope_theta": 1e6, "max_position_embeddings": 131072},
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": replace(
        _LLAMA, own=keys.mistral, defaults={"num_key_value_heads": 8}),
    "mixtral": replace(
        _LLAMA, layer=_ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"},
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
    "qwen2": Family(architecture="qwen2", outside=_OUTSIDE, layer=_LAYER, own=keys.qwen),
    "qwen3": Family(
        architecture="qwen3", outside=_OUTSIDE, layer=_LAYER | _QK_NORMS, own=keys.qwen,
        defaults={"head_dim": 128},
    ),
    "qwen3_moe": Family(
        architecture="qwen3moe", outside=_OUTSIDE,
        layer=_ATTENTION | _QK_NORMS | {"mlp.gate": "ffn_gate_inp"},
        experts={
            "mlp.experts.{}.gate_proj": "ffn_gate_exps",
            "mlp.experts.{}.up_proj": "ffn_up_exps",
            "mlp.experts.{}.down_proj": "ffn_down_exps",
        },
        own=keys.qwen3_moe, defaults={"num_experts_per_tok": 8},
    ),
    "gemma2": Family(
        architecture="gemma2", outside=_OUTSIDE, layer=_GEMMA_LAYER, own=keys.gemma2,
        rewrites=_gemma, defaults=_GEMMA_DEFAULTS,
    ),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "phi3": Family(
        architecture="phi3", outside=_OUTSIDE,
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
    "bert": _BERT,
    "roberta": replace(
        _BERT, prefixes=("roberta.",),
        outside=_BERT_BODY | {
            "lm_head.dense": "cls", "lm_head.layer_norm": "cls.norm",
            "lm_head": "output", "lm_head.decoder": "output",
        },
        own=keys.roberta, rewrites=_roberta, first_position=_ROBERTA_FIRST,
    ),
    "distilbert": replace(
        _BERT, prefixes=("distilbert.",),
        outside=_BERT_BODY | {
            "vocab_transform": "cls", "vocab_layer_norm": "cls.norm", "vocab_projector": "output",
        },
        layer={
            "attention.q_lin": "attn_q", "attention.k_lin": "attn_k", "attention.v_lin": "attn_v",
            "attention.out_lin": "attn_output", "sa_layer_norm": "attn_output_norm",
            "ffn.lin1": "ffn_up", "ffn.lin2": "ffn_down", "output_layer_norm": "layer_output_norm",
        },
        names={
            "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim", "hidden_act": "activation",
        },
    ),
    "modernbert": Family(
        architecture="modern-bert",
        outside={
            "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm",
            "final_norm": "output_norm", "head.dense": "cls", "head.norm": "cls.norm",
            "decoder": "output",
        },
        layer={
            "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output",
            "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
        },
        names={
            "layer_norm_epsilon": "norm_eps", "hidden_act": "hidden_activation",
            "rope_theta": "global_rope_theta",
        },
        defaults={
            "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "hidden_act": "gelu",
            "rope_theta": 160000.0, "max_position_embeddings": 8192, "local_attention": 128,
            "global_attn_every_n_layers": 3,
        },
        own=keys.modern_bert, grouped=False, layer_norm=True,
    ),
    "olmo2": Family(
        architecture="olmo2", outside=_OUTSIDE, own=keys.plain,
        layer={k: v for k, v in _LAYER.items() if k != "input_layernorm"} | _QK_NORMS | _POST_NORMS,
        defaults={"rms_norm_eps": 1e-5},
    ),
}  # fmt: skip
"""By config.json's model_type."""
