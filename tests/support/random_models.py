"""Tiny random models of transformers, saved as folders: one or more of each family.

`FAMILIES` is the table. Every row is a transformers config in shapes odd enough to catch a
mistake: heads that are not kv heads, heads of a size of their own, windows shorter than a test's
text, norms that are not one. `save` makes the model and writes it with a tokenizer.

torch and transformers are imported when a model is made, so that the table can be read without.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from support import tiny_ling, tiny_tokenizers

VOCAB = 384
WINDOW = 8  # tokens, shorter than any test's text
IDS: list[int] = np.random.default_rng(1).integers(6, VOCAB, 80).tolist()  # no special tokens

_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


class Row(NamedTuple):
    """A config class of transformers, its values, and GGUF's name of the architecture."""

    config: str
    values: Mapping[str, Any]
    architecture: str
    kind: str = "AutoModelForCausalLM"


def _row(config: str, architecture: str, **values: Any) -> Row:
    return Row(config, {**_SIZES, **values}, architecture)


def _theta(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


_GRANITE = {
    "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}  # fmt: skip
_FOUR_HEADS = {"num_attention_heads": 4}  # where heads must be hidden / heads wide
_GEMMA = {
    "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": WINDOW,
    "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA4 = {
    "head_dim": 32, "global_head_dim": 64, "sliding_window": WINDOW, "num_hidden_layers": 7,
    "tie_word_embeddings": True,
    "layer_types": [f"{k}_attention" for k in ("sliding", "full", "sliding", "sliding", "full",
                                               "sliding", "full")],
}  # fmt: skip
_QWEN_VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
}  # fmt: skip


def _reads_pictures(
    config: str, architecture: str, vision: Mapping[str, Any], **values: Any
) -> Row:
    """The text's values, in a model that has a part for pictures."""
    text = {**_SIZES, **values}
    whole = {"text_config": text, "vision_config": vision, "tie_word_embeddings": False}
    return Row(config, whole, architecture, "AutoModelForImageTextToText")


_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
}  # fmt: skip
_MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 24,
    "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip
_FALCON_H1 = {
    **_MAMBA, "mamba_d_ssm": 128, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.3,
    "mlp_multipliers": [0.7, 0.4], "ssm_multipliers": [0.6, 1.7, 0.9, 1.2, 0.5],
    "key_multiplier": 0.6, "attention_in_multiplier": 1.4, "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.4,
}  # fmt: skip
_NEMOTRON_H = {
    "head_dim": 32, "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2,
    "ssm_state_size": 24, "num_hidden_layers": None, "pad_token_id": 0,
}  # fmt: skip
_SHARED_EXPERT = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
}
_SIGMOID_ROUTER = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 64,
    "num_key_value_heads": 6,  # as many as there are others
}  # fmt: skip
_COHERE = {"tie_word_embeddings": True, "pad_token_id": 0, "logit_scale": 0.25}
_LONG = [1.0 + 0.3 * i for i in range(6)]

# LlamaConfig asks for a hidden size that is a multiple of the heads, whatever head_dim says.
FAMILIES: Mapping[str, Row] = {
    "llama": _row("LlamaConfig", "llama", num_attention_heads=8, head_dim=32),
    "llama-tied": _row("LlamaConfig", "llama", **_FOUR_HEADS, tie_word_embeddings=True),
    "llama-biased": _row(
        "LlamaConfig", "llama", **_FOUR_HEADS, attention_bias=True, mlp_bias=True
    ),
    "llama3-rope": _row("LlamaConfig", "llama", **_FOUR_HEADS, rope_parameters=_LLAMA3_ROPE),
    "llama-linear-rope": _row(
        "LlamaConfig", "llama", **_FOUR_HEADS,
        rope_parameters={"rope_type": "linear", "rope_theta": 900.0, "factor": 4.0},
    ),
    "llama-yarn": _row(
        "LlamaConfig", "llama", **_FOUR_HEADS,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 16.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": _row("MistralConfig", "llama", head_dim=32, sliding_window=None),
    "mistral-window": _row("MistralConfig", "llama", head_dim=32, sliding_window=WINDOW),
    "smollm3": _row("SmolLM3Config", "smollm3", **_FOUR_HEADS, tie_word_embeddings=True),
    "granite": _row("GraniteConfig", "granite", **_FOUR_HEADS, **_GRANITE),
    "qwen2": _row("Qwen2Config", "qwen2", **_FOUR_HEADS, **_theta(3000.0)),
    "qwen3": _row("Qwen3Config", "qwen3", head_dim=32, tie_word_embeddings=True),
    "qwen3_moe": _row(
        "Qwen3MoeConfig", "qwen3moe", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, norm_topk_prob=True,
    ),
    "qwen3_moe-unnormed": _row(
        "Qwen3MoeConfig", "qwen3moe", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, norm_topk_prob=False,
    ),
    "mixtral": _row(
        "MixtralConfig", "llama", **_FOUR_HEADS, num_local_experts=3, num_experts_per_tok=2
    ),
    "qwen2_moe": _row(
        "Qwen2MoeConfig", "qwen2moe", **_FOUR_HEADS, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=96, norm_topk_prob=False,
    ),
    "olmoe": _row(
        "OlmoeConfig", "olmoe", **_FOUR_HEADS, num_experts=5, num_experts_per_tok=2,
    ),
    "granitemoe": _row(
        "GraniteMoeConfig", "granitemoe", **_FOUR_HEADS, **_GRANITE, num_local_experts=5,
    ),
    "granitemoeshared": _row(  # two experts' rows are as many as its columns
        "GraniteMoeSharedConfig", "granitemoe", **_FOUR_HEADS, **_GRANITE, num_local_experts=5,
        intermediate_size=32, shared_intermediate_size=96,
    ),
    "ernie4_5_moe": _row(
        "Ernie4_5_MoeConfig", "ernie4_5-moe", **_FOUR_HEADS, moe_num_experts=6, moe_k=2,
        moe_intermediate_size=32, moe_layer_start_index=2,
    ),
    "glm4_moe": _row(
        "Glm4MoeConfig", "glm4moe", head_dim=32, **_SIGMOID_ROUTER, n_group=4, topk_group=2,
        attention_bias=True, num_nextn_predict_layers=0,
        **_theta(900.0, partial_rotary_factor=0.5),
    ),
    "glm4_moe-normed-heads": _row(
        "Glm4MoeConfig", "glm4moe", head_dim=32, **_SIGMOID_ROUTER, use_qk_norm=True,
        norm_topk_prob=False, num_nextn_predict_layers=0,
        **_theta(900.0, partial_rotary_factor=0.5),
    ),
    "dots1": _row(
        "Dots1Config", "dots1", head_dim=32, **_SIGMOID_ROUTER | {"n_routed_experts": 5},
        norm_topk_prob=True,
    ),
    "gpt_oss": _row(  # all sides of its experts are equal, as in the published one
        "GptOssConfig", "gpt-oss", head_dim=32, intermediate_size=64, num_local_experts=5,
        num_experts_per_tok=2, sliding_window=WINDOW,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 64,
        },
    ),
    "phimoe": _row(
        "PhimoeConfig", "phimoe", **_FOUR_HEADS, num_local_experts=5, attention_bias=True,
        lm_head_bias=True, original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "long_mscale": 1.2,
            "short_mscale": 1.2, "original_max_position_embeddings": 64,
            "long_factor": [1.0 + 0.3 * i for i in range(8)],
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
        },
    ),
    "afmoe": _row(
        "AfmoeConfig", "afmoe", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, num_shared_experts=2, num_dense_layers=1, route_scale=1.7,
        sliding_window=WINDOW, mup_enabled=True,
    ),
    "llama4": _row(  # in GGUF's way: every fourth layer has no positions
        "Llama4TextConfig", "llama4", head_dim=32, num_hidden_layers=5, num_local_experts=5,
        num_experts_per_tok=2, intermediate_size=32, intermediate_size_mlp=96, floor_scale=16,
        interleave_moe_layer_step=2, attention_chunk_size=WINDOW, attn_scale=0.3,
        rope_parameters=_LLAMA3_ROPE,
    ),
    "deepseek_v2": _row(  # as V2-Lite: queries by one matrix
        "DeepseekV2Config", "deepseek2", **_LATENT | _FOUR_HEADS | {"num_key_value_heads": 4},
        q_lora_rank=None, n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=2, first_k_dense_replace=1,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64,
        },
    ),
    "deepseek_v2-groups": _row(
        "DeepseekV2Config", "deepseek2", **_LATENT | _FOUR_HEADS | {"num_key_value_heads": 4},
        q_lora_rank=32, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=1, n_group=4, topk_group=2, topk_method="group_limited_greedy",
        routed_scaling_factor=1.7,
    ),
    "deepseek_v3": _row(
        "DeepseekV3Config", "deepseek2", **_LATENT, **_SIGMOID_ROUTER, q_lora_rank=32, n_group=4,
        topk_group=2, num_nextn_predict_layers=0,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "glm4_moe_lite": _row(
        "Glm4MoeLiteConfig", "deepseek2", **_LATENT,
        **{k: v for k, v in _SIGMOID_ROUTER.items() if k != "first_k_dense_replace"},
        q_lora_rank=32, mlp_layer_types=["dense", "dense", "sparse", "sparse"],
    ),
    "hunyuan_moe": _row(
        "HunYuanMoEV1Config", "hunyuan-moe", head_dim=32, pad_token_id=0, num_experts=5,
        moe_topk=2,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 900.0, "factor": 1.0, "alpha": 50.0},
    ),
    "gemma2": _row(
        "Gemma2Config", "gemma2", **_FOUR_HEADS, **_GEMMA, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": _row(
        "Gemma3TextConfig", "gemma3", num_hidden_layers=7, **_FOUR_HEADS, **_GEMMA,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "gemma4": _row(  # as E2B: embeddings of layers, and layers that read others' keys
        "Gemma4TextConfig", "gemma4", **_FOUR_HEADS, **_GEMMA4, num_kv_shared_layers=3,
        use_double_wide_mlp=True, hidden_size_per_layer_input=32, final_logit_softcapping=3.0,
        vocab_size_per_layer_input=VOCAB,
    ),
    "gemma4-moe": _row(  # as 26B-A4B: values are keys where all of a text is seen
        "Gemma4TextConfig", "gemma4", **_FOUR_HEADS, **_GEMMA4, attention_k_eq_v=True,
        num_global_key_value_heads=1, enable_moe_block=True, num_experts=5, top_k_experts=2,
        moe_intermediate_size=32, hidden_size_per_layer_input=0,
    ),
    "phi3": _row("Phi3Config", "phi3", **_FOUR_HEADS, sliding_window=None, pad_token_id=0),
    "phi3-window": _row(
        "Phi3Config", "phi3", **_FOUR_HEADS, sliding_window=WINDOW, pad_token_id=0,
        **_theta(10000.0, partial_rotary_factor=0.75),
    ),
    "phi3-longrope": _row(
        "Phi3Config", "phi3", **_FOUR_HEADS, pad_token_id=0,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "long_factor": _LONG, "short_factor": [1.0 + 0.1 * i for i in range(6)],
        },
    ),
    "gpt2": Row(
        "GPT2Config",
        {
            "vocab_size": VOCAB, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        "gpt2",
    ),
    "gpt_neox": _row(
        "GPTNeoXConfig", "gptneox", **_FOUR_HEADS, **_theta(10000.0, partial_rotary_factor=0.25)
    ),
    "gpt_neox-serial": _row(
        "GPTNeoXConfig", "gptneox", **_FOUR_HEADS, use_parallel_residual=False,
        **_theta(10000.0, partial_rotary_factor=0.5),
    ),
    "olmo2": _row("Olmo2Config", "olmo2", **_FOUR_HEADS),
    "olmo3": _row(
        "Olmo3Config", "olmo2", **_FOUR_HEADS, sliding_window=WINDOW,
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
        },
    ),
    "gemma": _row(
        "GemmaConfig", "gemma", **_FOUR_HEADS, head_dim=32, tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "ministral3": _row(
        "Ministral3Config", "mistral3", head_dim=32, sliding_window=None, pad_token_id=0,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 16.0,
            "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    ),
    "internlm3": _row(
        "InternLM3Config", "llama", **_FOUR_HEADS, head_dim=32, qkv_bias=True, bias=True,
        pad_token_id=0,
    ),
    "exaone4": _row("Exaone4Config", "exaone4", **_FOUR_HEADS, sliding_window=None,
        layer_types=["full_attention"] * 4,
    ),
    "exaone4-window": _row("Exaone4Config", "exaone4", **_FOUR_HEADS, sliding_window=WINDOW),
    "ernie4_5": _row("Ernie4_5Config", "ernie4_5", head_dim=32, tie_word_embeddings=True),
    "hunyuan": _row(
        "HunYuanDenseV1Config", "hunyuan-dense", head_dim=32, pad_token_id=0,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 900.0, "factor": 1.0, "alpha": 50.0},
    ),
    "seed_oss": _row("SeedOssConfig", "seed_oss", head_dim=32, pad_token_id=0),
    "granite4": _row(
        "GraniteMoeHybridConfig", "granite", **_FOUR_HEADS, **_GRANITE, num_local_experts=0,
        shared_intermediate_size=96, layer_types=["attention"] * 4,
        position_embedding_type="rope",
    ),
    "glm": _row(
        "GlmConfig", "chatglm", head_dim=32, pad_token_id=0,
        **_theta(900.0, partial_rotary_factor=0.5),
    ),
    "glm4": _row(
        "Glm4Config", "glm4", head_dim=32, pad_token_id=0,
        **_theta(900.0, partial_rotary_factor=0.5),
    ),
    "cohere": _row("CohereConfig", "command-r", **_FOUR_HEADS, **_COHERE),
    "cohere2": _row("Cohere2Config", "cohere2", **_FOUR_HEADS, **_COHERE, sliding_window=WINDOW),
    "starcoder2": _row("Starcoder2Config", "starcoder2", **_FOUR_HEADS, tie_word_embeddings=True),
    "starcoder2-window": _row(
        "Starcoder2Config", "starcoder2", **_FOUR_HEADS, sliding_window=WINDOW
    ),
    "phi": _row(
        "PhiConfig", "phi2", **_FOUR_HEADS, **_theta(10000.0, partial_rotary_factor=0.5)
    ),
    "qwen2_5_vl": _reads_pictures(
        "Qwen2_5_VLConfig", "qwen2vl", _QWEN_VISION | {"fullatt_block_indexes": [0]},
        **_FOUR_HEADS, **_theta(3000.0, mrope_section=[2, 3, 3]),
    ),
    "qwen3_vl": _reads_pictures(
        "Qwen3VLConfig", "qwen3vl", _QWEN_VISION | {"deepstack_visual_indexes": [0]},
        **_FOUR_HEADS, head_dim=32, **_theta(3000.0, mrope_section=[6, 5, 5]),
    ),
    "qwen3_vl_moe": _reads_pictures(
        "Qwen3VLMoeConfig", "qwen3vlmoe", _QWEN_VISION | {"deepstack_visual_indexes": [0]},
        **_FOUR_HEADS, head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=96, **_theta(3000.0, mrope_section=[6, 5, 5]),
    ),
    "mistral3": _reads_pictures(
        "Mistral3Config", "mistral3",
        {
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "head_dim": 16,
            "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        },
        model_type="mistral", head_dim=32, sliding_window=None,
    ),
    "ministral": _row("MinistralConfig", "llama", head_dim=32, sliding_window=WINDOW),
    "iquestcoder": _row("IQuestCoderConfig", "llama", num_attention_heads=8, head_dim=32),
    "helium": _row(
        "HeliumConfig", "llama", num_attention_heads=8, head_dim=8, pad_token_id=0
    ),
    "jais2": _row("Jais2Config", "jais2", **_FOUR_HEADS, hidden_act="relu2"),
    "apertus": _row(
        "ApertusConfig", "apertus", head_dim=32, hidden_act="xielu", rope_parameters=_LLAMA3_ROPE
    ),
    "arcee": _row("ArceeConfig", "arcee", **_FOUR_HEADS, hidden_act="relu2"),
    "nemotron": _row(
        "NemotronConfig", "nemotron", **_FOUR_HEADS, hidden_act="relu2",
        **_theta(10000.0, partial_rotary_factor=0.5),
    ),
    "lfm2": _row(
        "Lfm2Config", "lfm2", **_FOUR_HEADS, tie_word_embeddings=True, num_hidden_layers=5,
        layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
        **_theta(3000.0),
    ),
    "lfm2-last": _row(
        "Lfm2Config", "lfm2", **_FOUR_HEADS, tie_word_embeddings=True, conv_L_cache=5,
        conv_bias=True, full_attn_idxs=[1], block_auto_adjust_ff_dim=False,
    ),
    "lfm2_moe": _row(
        "Lfm2MoeConfig", "lfm2moe", **_FOUR_HEADS, tie_word_embeddings=True, num_dense_layers=1,
        layer_types=["conv", "full_attention", "conv", "full_attention"], num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=32, routed_scaling_factor=1.5,
    ),
    "qwen3_5": _row(
        "Qwen3_5TextConfig", "qwen35", head_dim=32, num_hidden_layers=5, **_DELTA,
        layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"] * 1
        + ["full_attention"],
        **_theta(3000.0, partial_rotary_factor=0.5),
    ),
    "qwen3_5-last": _row(
        "Qwen3_5TextConfig", "qwen35", head_dim=32, num_hidden_layers=5, **_DELTA | {
            "linear_num_key_heads": 4, "linear_key_head_dim": 24,
            "linear_value_head_dim": 80},
        tie_word_embeddings=True,
    ),
    "qwen3_5_moe": _row(
        "Qwen3_5MoeTextConfig", "qwen35moe", head_dim=32, **_DELTA, **_SHARED_EXPERT,
        layer_types=["linear_attention", "full_attention"] * 2,
        **_theta(3000.0, partial_rotary_factor=0.5),
    ),
    "qwen3_next": _row(
        "Qwen3NextConfig", "qwen3next", head_dim=32, **_DELTA, **_SHARED_EXPERT,
        layer_types=["linear_attention", "full_attention"] * 2,
        **_theta(3000.0, partial_rotary_factor=0.5),
    ),
    "granite4-h": _row(
        "GraniteMoeHybridConfig", "granitehybrid", **_FOUR_HEADS, **_GRANITE, **_MAMBA,
        num_local_experts=0, shared_intermediate_size=96,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "granite4-h-moe": _row(
        "GraniteMoeHybridConfig", "granitehybrid", **_FOUR_HEADS, **_GRANITE, **_MAMBA,
        num_local_experts=5, intermediate_size=32, shared_intermediate_size=96,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "bamba": _row(
        "BambaConfig", "granitehybrid", **_FOUR_HEADS, **_MAMBA, attn_layer_indices=[1, 3],
    ),
    "mamba2": _row(
        "Mamba2Config", "mamba2", num_heads=4, head_dim=32, n_groups=1, state_size=24,
        conv_kernel=4, expand=2, pad_token_id=0, tie_word_embeddings=True,
    ),
    "falcon_h1": _row(
        "FalconH1Config", "falcon-h1", head_dim=32, **_FALCON_H1, mamba_rms_norm=True,
        mamba_norm_before_gate=False,
    ),
    "falcon_h1-unnormed": _row("FalconH1Config", "falcon-h1", head_dim=32, **_FALCON_H1),
    "nemotron_h": _row(
        "NemotronHConfig", "nemotron_h", **_NEMOTRON_H,
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
    ),
    "nemotron_h_moe": _row(
        "NemotronHConfig", "nemotron_h_moe", **_NEMOTRON_H, n_routed_experts=8, n_group=4,
        topk_group=2, num_experts_per_tok=3, routed_scaling_factor=1.7, moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=96,
        layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
    ),
    "stablelm": _row(
        "StableLmConfig", "stablelm", **_FOUR_HEADS, use_qkv_bias=True,
        **_theta(10000.0, partial_rotary_factor=0.25),
    ),
}  # fmt: skip

RECURRENT = [
    name
    for name, made in FAMILIES.items()
    if made.architecture.startswith(
        ("lfm2", "qwen35", "qwen3next", "granitehybrid", "nemotron_h", "falcon-h1", "mamba2")
    )
]
"""Those in which layers have a state."""

_BERT = _SIZES | _FOUR_HEADS | {"tie_word_embeddings": True, "num_hidden_layers": 3}

_MODERN = _SIZES | _FOUR_HEADS | {
    "tie_word_embeddings": True, "local_attention": 2 * WINDOW + 1,
    "cls_token_id": 1, "sep_token_id": 2, "pad_token_id": 0,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip

ENCODERS: Mapping[str, Row] = {
    "bert": Row("BertConfig", {**_BERT, "bos_token_id": None, "eos_token_id": None}, "bert"),
    "roberta": Row(
        "RobertaConfig",
        {**_BERT, "pad_token_id": 1, "max_position_embeddings": 258, "type_vocab_size": 1},
        "bert",
    ),
    "bert-tanh": Row("BertConfig", {**_BERT, "hidden_act": "gelu_new"}, "bert"),
    "modernbert": Row("ModernBertConfig", _MODERN, "modern-bert"),
    "modernbert-other": Row(
        "ModernBertConfig",
        _MODERN | {
            "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
            "decoder_bias": False, "hidden_activation": "silu", "tie_word_embeddings": False,
            "layer_types": [f"{k}_attention" for k in ("sliding", "full", "sliding", "sliding")],
        },
        "modern-bert",
    ),
    "distilbert": Row(
        "DistilBertConfig",
        {
            "vocab_size": VOCAB, "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4,
            "max_position_embeddings": 256,
        },
        "bert",
    ),
}  # fmt: skip
"""Those with a head that predicts masked tokens."""


_BODY = _BERT | {"pad_token_id": 1, "num_labels": 1}
_DEBERTA = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm",
    "position_biased_input": False, "share_att_key": True, "position_buckets": 16,
    "type_vocab_size": 0, "pad_token_id": 0,
}  # fmt: skip
_FROM_TWO = {"max_position_embeddings": 258, "type_vocab_size": 1}  # RoBERTa's first rows


def _body(config: str, architecture: str, **values: Any) -> Row:
    return Row(config, _BODY | values, architecture, "AutoModel")


BODIES: Mapping[str, Row] = {
    "xlm-roberta": _body("XLMRobertaConfig", "bert", **_FROM_TWO),
    "electra": _body("ElectraConfig", "bert", embedding_size=32),
    "albert": _body("AlbertConfig", "bert", embedding_size=32),
    "mpnet": _body("MPNetConfig", "mpnet", max_position_embeddings=258),
    "deberta": _body("DebertaV2Config", "deberta-v2", **_DEBERTA),
    "deberta-own": _body(  # matrices of its own for distances, each of which has a row
        "DebertaV2Config", "deberta-v2",
        **_DEBERTA | {"share_att_key": False, "position_buckets": -1},
    ),
    "nomic_bert": _body("NomicBertConfig", "nomic-bert"),
    "gte": _body("GteConfig", "gte"),
    "jina_v3": _body("JinaEmbeddingsV3Config", "jina-bert-v3"),
    "eurobert": _body(
        "EuroBertConfig", "eurobert", num_key_value_heads=2, mask_token_id=4,
        tie_word_embeddings=False,
    ),
    "gemma_embedding": _body(
        "Gemma3TextConfig", "gemma-embedding", num_hidden_layers=7, **_GEMMA,
        use_bidirectional_attention=True,
    ),
}  # fmt: skip
"""Encoders without a head."""

_MODERN_PAIR = _MODERN | {"num_labels": 1, "num_hidden_layers": 2}
RANKERS: Mapping[str, Row] = {
    name: made._replace(kind="AutoModelForSequenceClassification")
    for name, made in {
        "rank-bert": _body("BertConfig", "bert"),
        "rank-distilbert": Row(
            "DistilBertConfig", {**ENCODERS["distilbert"].values, "num_labels": 1}, "bert"
        ),
        **{
            f"rank-{name}": BODIES[name]
            for name in (
                "xlm-roberta",
                "electra",
                "albert",
                "mpnet",
                "deberta",
                "nomic_bert",
                "gte",
                "jina_v3",
            )
        },
        "rank-modernbert": Row(
            "ModernBertConfig", _MODERN_PAIR | {"classifier_pooling": "mean"}, "modern-bert"
        ),
        "rank-modernbert-cls": Row(
            "ModernBertConfig", _MODERN_PAIR | {"classifier_pooling": "cls"}, "modern-bert"
        ),
    }.items()
}
"""Those with a head that scores pairs of texts."""


FORMULAS: Mapping[str, Row] = {
    "ling": Row("not there", tiny_ling.CONFIGS["ling"], "bailingmoe"),
    "ling2": Row("not there", tiny_ling.CONFIGS["ling2"], "bailingmoe2"),
}
"""Those that transformers has not: what is right says `tiny_ling`."""

ROWS = {**FAMILIES, **FORMULAS, **ENCODERS, **BODIES, **RANKERS}


def row(name: str) -> Row:
    """By its name."""
    return ROWS[name]


def context(name: str) -> int | None:
    """What makes cutaway choose as transformers does by the length of a test's text.

    Texts that may be no longer than what a model was first trained for take its short factors.
    """
    return 64 if name in ("phi3-longrope", "phimoe") else None


def save(
    name: str,
    folder: Path,
    *,
    dtype: str = "float32",
    tokenizer: Callable[[], Any] = tiny_tokenizers.byte_level,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Write the family's model into a folder; the answer is transformers' model, in eval mode.

    dtype: of the saved weights, "float32", "bfloat16" or "float16"; the model answered with is
    float32 and has exactly the saved numbers. options: of save_pretrained (max_shard_size).
    """
    made = row(name)
    if name in FORMULAS:
        return tiny_ling.save(name, folder, seed, tokenizer)
    kind = "AutoModelForMaskedLM" if name in ENCODERS else made.kind
    return save_row(made._replace(kind=kind), folder, dtype, tokenizer(), seed, **options)


def save_row(
    made: Row,
    folder: Path,
    dtype: str,
    tokenizer: Any,
    seed: int = 0,
    **options: Any,
) -> Any:
    """As `save`, of a model that is in no table."""
    import torch
    import transformers

    torch.manual_seed(seed)
    transformers.utils.logging.disable_progress_bar()
    config = getattr(transformers, made.config)(**made.values)
    model = getattr(transformers, made.kind).from_config(config).eval()
    _shake(model, np.random.default_rng(seed))
    model.to(getattr(torch, dtype)).save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tiny_tokenizers.save(tokenizer, folder)
    # Read again: a model that is made smaller and larger again has lost digits of its rope table.
    read = getattr(transformers, made.kind).from_pretrained(folder, dtype=torch.float32)
    return read.eval()


def _shake(model: Any, rng: np.random.Generator) -> None:
    """Other numbers than those that a model begins with: those hide scales, norms and biases."""
    import torch

    for name, weight in model.named_parameters():
        drawn = rng.normal(size=tuple(weight.shape))
        if weight.ndim == 1:
            centre = 1.0 if name.endswith("weight") and not _about_zero(model) else 0.0
            drawn = centre + 0.3 * drawn if name.endswith("weight") else 0.3 * drawn
        else:
            drawn = drawn * 1.5 / np.sqrt(64)
        with torch.no_grad():
            weight.copy_(torch.from_numpy(drawn))
    for name, numbers in model.named_buffers():
        if name.endswith(("layer_scalar", "e_score_correction_bias")):
            centre = 1.0 if name.endswith("scalar") else 0.0
            drawn = centre + 0.2 * rng.normal(size=tuple(numbers.shape))
            numbers.copy_(torch.from_numpy(drawn))


def _about_zero(model: Any) -> bool:
    """Gemma's and Nemotron's norms are what is added to 1."""
    name = str(model.config.model_type)
    if name in ("nemotron_h", "gemma4_text"):
        return False
    return name.startswith(("gemma", "nemotron", "qwen3_5", "qwen3_next"))


def logits(model: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    """transformers' own: float32 (n, vocab)."""
    import torch

    if isinstance(model, tiny_ling.Ling):
        return model.logits(ids)
    with torch.no_grad():
        out: np.ndarray[Any, Any] = model(torch.tensor([ids])).logits[0].float().numpy()
    return out


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values.update(changes)
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
