"""Models in which layers have a recurrent state."""

from collections.abc import Mapping

from support.families.row import (
    FOUR_HEADS,
    GRANITE,
    SIZES,
    VOCAB,
    WINDOW,
    Row,
    decoder,
    theta,
)

_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
}  # fmt: skip
_MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 24,
    "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip
_MAMBA1 = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 4, "state_size": 24,
    "conv_kernel": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
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

_INKLING = {
    **SIZES, **FOUR_HEADS, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
    "vocab_size": VOCAB + 6, "unpadded_vocab_size": VOCAB, "sliding_window_size": WINDOW,
    "head_dim": 32, "swa_head_dim": 32, "d_rel": 4, "rel_extent": 12, "log_scaling_n_floor": 16,
    "n_routed_experts": 5, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
    "n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1, "loop_layer_index_end": 3,
    "loop_num_passes": 2, "loop_gate_rank": 8, "route_scale": 0.5, "final_logit_softcapping": 2.0,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
}  # fmt: skip

RECURRENT: Mapping[str, Row] = {
    "inkling2": Row("Inkling2LoopTextConfig", _INKLING, "inkling2"),
    "inkling2-plain": Row(  # without loops
        "Inkling2TextConfig",
        {key: value for key, value in _INKLING.items() if not key.startswith("loop_")},
        "inkling2",
    ),
    "inkling2-last": Row(  # blocks of two layers, one looped; the first layer sees the whole text
        "Inkling2LoopTextConfig",
        {
            **_INKLING, "num_hidden_layers": 5, "n_layers_per_attn_res_block": 2,
            "loop_layer_index_start": 2, "loop_layer_index_end": 4, "loop_num_passes": 3,
            "conv_kernel_size": 3, "log_scaling_alpha": 0.4, "d_rel": 6, "rel_extent": 300,
            "qk_l2_clip_threshold": 3.0, "rel_l2_clip_threshold": 1.5,
            "final_logit_softcapping": 1.5,
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid_sliding", "hybrid", "hybrid"],
        },
        "inkling2",
    ),
    "lfm2": decoder(
        "Lfm2Config", "lfm2", **FOUR_HEADS, tie_word_embeddings=True, num_hidden_layers=5,
        layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
        **theta(3000.0),
    ),
    "lfm2-last": decoder(
        "Lfm2Config", "lfm2", **FOUR_HEADS, tie_word_embeddings=True, conv_L_cache=5,
        conv_bias=True, full_attn_idxs=[1], block_auto_adjust_ff_dim=False,
    ),
    "lfm2_moe": decoder(
        "Lfm2MoeConfig", "lfm2moe", **FOUR_HEADS, tie_word_embeddings=True, num_dense_layers=1,
        layer_types=["conv", "full_attention", "conv", "full_attention"], num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=32, routed_scaling_factor=1.5,
    ),
    "lfm3": decoder(
        "Lfm3Config", "lfm3", head_dim=32, tie_word_embeddings=True, num_hidden_layers=6,
        sliding_window=WINDOW,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "lfm3-plain": decoder(  # without norms after the parts of a layer, and without gates
        "Lfm3Config", "lfm3", head_dim=32, tie_word_embeddings=True, conv_L_cache=5,
        conv_bias=True, sliding_window=WINDOW, use_sandwich_norm=False, use_attention_gate=False,
        layer_types=["conv", "sliding_attention", "conv", "full_attention"],
    ),
    "olmo_hybrid": decoder(  # as 7B, without positions
        "OlmoHybridConfig", "olmo-hybrid", **FOUR_HEADS, **_DELTA,
        rope_parameters={"rope_type": "default", "rope_theta": None},
    ),
    "olmo_hybrid-rotated": decoder(
        "OlmoHybridConfig", "olmo-hybrid", **FOUR_HEADS, linear_allow_neg_eigval=False,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_hidden_layers=3, linear_num_key_heads=2,
        linear_num_value_heads=2, tie_word_embeddings=True, **theta(3000.0),
    ),
    "kimi_linear": Row(
        "KimiLinearConfig",
        {
            **SIZES, **FOUR_HEADS, "num_key_value_heads": None, "linear_head_dim": 16,
            "linear_num_heads": 4, "linear_conv_kernel_dim": 4, "kv_lora_rank": 32,
            "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 16,
            "moe_intermediate_size": 32, "num_shared_experts": 1, "num_local_experts": 6,
            "num_experts_per_tok": 2, "routed_scaling_factor": 1.7,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
        "kimi-linear",
    ),
    "kimi_linear-last": Row(
        "KimiLinearConfig",
        {
            **SIZES, **FOUR_HEADS, "num_key_value_heads": None, "linear_head_dim": 32,
            "linear_num_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "num_hidden_layers": 5,
            "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 16,
            "moe_intermediate_size": 32, "num_shared_experts": 2, "num_local_experts": 8,
            "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "norm_topk_prob": False,
            "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2,
        },
        "kimi-linear",
    ),
    "qwen3_5": decoder(
        "Qwen3_5TextConfig", "qwen35", head_dim=32, num_hidden_layers=5, **_DELTA,
        layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"] * 1
        + ["full_attention"],
        **theta(3000.0, partial_rotary_factor=0.5),
    ),
    "qwen3_5-last": decoder(
        "Qwen3_5TextConfig", "qwen35", head_dim=32, num_hidden_layers=5, **_DELTA | {
            "linear_num_key_heads": 4, "linear_key_head_dim": 24,
            "linear_value_head_dim": 80},
        tie_word_embeddings=True,
    ),
    "qwen3_5_moe": decoder(
        "Qwen3_5MoeTextConfig", "qwen35moe", head_dim=32, **_DELTA, **_SHARED_EXPERT,
        layer_types=["linear_attention", "full_attention"] * 2,
        **theta(3000.0, partial_rotary_factor=0.5),
    ),
    "qwen3_next": decoder(
        "Qwen3NextConfig", "qwen3next", head_dim=32, **_DELTA, **_SHARED_EXPERT,
        layer_types=["linear_attention", "full_attention"] * 2,
        **theta(3000.0, partial_rotary_factor=0.5),
    ),
    "granite4-h": decoder(
        "GraniteMoeHybridConfig", "granitehybrid", **FOUR_HEADS, **GRANITE, **_MAMBA,
        num_local_experts=0, shared_intermediate_size=96,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "granite4-h-moe": decoder(
        "GraniteMoeHybridConfig", "granitehybrid", **FOUR_HEADS, **GRANITE, **_MAMBA,
        num_local_experts=5, intermediate_size=32, shared_intermediate_size=96,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "bamba": decoder(
        "BambaConfig", "granitehybrid", **FOUR_HEADS, **_MAMBA, attn_layer_indices=[1, 3],
    ),
    "mamba2": decoder(
        "Mamba2Config", "mamba2", num_heads=4, head_dim=32, n_groups=1, state_size=24,
        conv_kernel=4, expand=2, pad_token_id=0, tie_word_embeddings=True,
    ),
    "mamba": Row("MambaConfig", _MAMBA1 | {"tie_word_embeddings": False}, "mamba"),
    "falcon_mamba": Row("FalconMambaConfig", _MAMBA1 | {"time_step_rank": 12}, "mamba"),
    "jamba": decoder(
        "JambaConfig", "jamba", **FOUR_HEADS, mamba_d_state=24, attn_layer_period=3,
        attn_layer_offset=1, num_experts=5, num_experts_per_tok=2,
    ),
    "jamba-dense": decoder(
        "JambaConfig", "jamba", **FOUR_HEADS, attn_layer_period=2, attn_layer_offset=1,
        num_experts=1, num_experts_per_tok=1, mamba_conv_bias=False, mamba_proj_bias=True,
    ),
    "falcon_h1": decoder(
        "FalconH1Config", "falcon-h1", head_dim=32, **_FALCON_H1, mamba_rms_norm=True,
        mamba_norm_before_gate=False,
    ),
    "falcon_h1-unnormed": decoder("FalconH1Config", "falcon-h1", head_dim=32, **_FALCON_H1),
    "nemotron_h": decoder(
        "NemotronHConfig", "nemotron_h", **_NEMOTRON_H,
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
    ),
    "nemotron_h_moe": decoder(
        "NemotronHConfig", "nemotron_h_moe", **_NEMOTRON_H, n_routed_experts=8, n_group=4,
        topk_group=2, num_experts_per_tok=3, routed_scaling_factor=1.7, moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=96,
        layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
    ),
}  # fmt: skip
