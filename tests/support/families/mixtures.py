"""Models whose layers have experts."""

from collections.abc import Mapping

from support.families.row import (
    FOUR_HEADS,
    GEMMA4,
    GRANITE,
    LLAMA3_ROPE,
    QWEN_VISION,
    WINDOW,
    Row,
    decoder,
    reads_pictures,
    theta,
)

_SIGMOID_ROUTER = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 64,
    "num_key_value_heads": 6,  # as many as attention heads
}  # fmt: skip

MIXTURES: Mapping[str, Row] = {
    "qwen3_moe": decoder(
        "Qwen3MoeConfig", "qwen3moe", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, norm_topk_prob=True,
    ),
    "qwen3_moe-unnormed": decoder(
        "Qwen3MoeConfig", "qwen3moe", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, norm_topk_prob=False,
    ),
    "mixtral": decoder(
        "MixtralConfig", "llama", **FOUR_HEADS, num_local_experts=3, num_experts_per_tok=2
    ),
    "qwen2_moe": decoder(
        "Qwen2MoeConfig", "qwen2moe", **FOUR_HEADS, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=96, norm_topk_prob=False,
    ),
    "olmoe": decoder(
        "OlmoeConfig", "olmoe", **FOUR_HEADS, num_experts=5, num_experts_per_tok=2,
    ),
    "granitemoe": decoder(
        "GraniteMoeConfig", "granitemoe", **FOUR_HEADS, **GRANITE, num_local_experts=5,
    ),
    "granitemoeshared": decoder(  # two experts' rows are as many as its columns
        "GraniteMoeSharedConfig", "granitemoe", **FOUR_HEADS, **GRANITE, num_local_experts=5,
        intermediate_size=32, shared_intermediate_size=96,
    ),
    "ernie4_5_moe": decoder(
        "Ernie4_5_MoeConfig", "ernie4_5-moe", **FOUR_HEADS, moe_num_experts=6, moe_k=2,
        moe_intermediate_size=32, moe_layer_start_index=2,
    ),
    "glm4_moe": decoder(
        "Glm4MoeConfig", "glm4moe", head_dim=32, **_SIGMOID_ROUTER, n_group=4, topk_group=2,
        attention_bias=True, num_nextn_predict_layers=0,
        **theta(900.0, partial_rotary_factor=0.5),
    ),
    "glm4_moe-normed-heads": decoder(
        "Glm4MoeConfig", "glm4moe", head_dim=32, **_SIGMOID_ROUTER, use_qk_norm=True,
        norm_topk_prob=False, num_nextn_predict_layers=0,
        **theta(900.0, partial_rotary_factor=0.5),
    ),
    "dots1": decoder(
        "Dots1Config", "dots1", head_dim=32, **_SIGMOID_ROUTER | {"n_routed_experts": 5},
        norm_topk_prob=True,
    ),
    "gpt_oss": decoder(  # all sides of its experts are equal, as in the published one
        "GptOssConfig", "gpt-oss", head_dim=32, intermediate_size=64, num_local_experts=5,
        num_experts_per_tok=2, sliding_window=WINDOW,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 64,
        },
    ),
    "granitemoe_swa": decoder(
        "GraniteMoeSWAConfig", "granite-swash", **FOUR_HEADS, **GRANITE, num_local_experts=5,
        intermediate_size=32, shared_intermediate_size=96, sliding_window=WINDOW, **theta(900.0),
        layer_rope_theta=[0, 900.0, 900.0, 900.0],
    ),
    "solar_open": decoder(
        "SolarOpenConfig", "glm4moe", head_dim=32,
        **{k: v for k, v in _SIGMOID_ROUTER.items() if k != "first_k_dense_replace"},
    ),
    "minimax_m2": decoder(
        "MiniMaxM2Config", "minimax-m2", head_dim=32, intermediate_size=32, num_local_experts=5,
        num_experts_per_tok=2, **theta(900.0, partial_rotary_factor=0.5),
    ),
    "mellum": decoder(
        "MellumConfig", "mellum", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        },
    ),
    "laguna": decoder(
        "LagunaConfig", "laguna", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=48, sliding_window=WINDOW,
        num_attention_heads_per_layer=[4, 6, 2, 6], moe_routed_scaling_factor=1.7,
        layer_types=["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"],
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0,
                "original_max_position_embeddings": 64, "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        },
    ),
    "laguna-element": decoder(  # gates of each number of a head, as in Laguna M
        "LagunaConfig", "laguna", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=48, gating="per-element",
        mlp_layer_types=["dense", "dense", "sparse", "sparse"],
    ),
    "mimo_v2_flash": decoder(  # keys of 32 numbers, values of 16
        "MiMoV2FlashConfig", "mimo2", head_dim=32, v_head_dim=16, num_attention_heads=8,
        num_key_value_heads=2, n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=32, sliding_window=WINDOW,
        layer_types=["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"],
        rope_parameters={
            f"{kind}_attention": {
                "rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.5,
            } for kind, base in (("full", 900.0), ("sliding", 700.0))
        },
    ),
    "mimo_v2_flash-groups": decoder(  # values wider than keys, not a whole 16 of numbers
        "MiMoV2FlashConfig", "mimo2", head_dim=24, v_head_dim=40, num_attention_heads=4,
        num_key_value_heads=1, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
        moe_intermediate_size=32, sliding_window=WINDOW, routed_scaling_factor=1.7,
        mlp_layer_types=["sparse", "dense", "sparse", "sparse"], attention_bias=True,
    ),
    "exaone_moe": decoder(
        "ExaoneMoeConfig", "exaone-moe", **FOUR_HEADS, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=32, num_shared_experts=2, sliding_window=WINDOW,
    ),
    "flex_olmo": decoder(
        "FlexOlmoConfig", "flex-olmo", **FOUR_HEADS, num_experts=5, num_experts_per_tok=2,
        intermediate_size=32,
    ),
    "phimoe": decoder(
        "PhimoeConfig", "phimoe", **FOUR_HEADS, num_local_experts=5, attention_bias=True,
        lm_head_bias=True, original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "long_mscale": 1.2,
            "short_mscale": 1.2, "original_max_position_embeddings": 64,
            "long_factor": [1.0 + 0.3 * i for i in range(8)],
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
        },
    ),
    "afmoe": decoder(
        "AfmoeConfig", "afmoe", head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, num_shared_experts=2, num_dense_layers=1, route_scale=1.7,
        sliding_window=WINDOW, mup_enabled=True,
    ),
    "llama4": decoder(  # in GGUF's way: every fourth layer has no positions
        "Llama4TextConfig", "llama4", head_dim=32, num_hidden_layers=5, num_local_experts=5,
        num_experts_per_tok=2, intermediate_size=32, intermediate_size_mlp=96, floor_scale=16,
        interleave_moe_layer_step=2, attention_chunk_size=WINDOW, attn_scale=0.3,
        rope_parameters=LLAMA3_ROPE,
    ),
    "deepseek_v2": decoder(  # as V2-Lite: queries by one matrix
        "DeepseekV2Config", "deepseek2", **_LATENT | FOUR_HEADS | {"num_key_value_heads": 4},
        q_lora_rank=None, n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=2, first_k_dense_replace=1,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64,
        },
    ),
    "deepseek_v2-groups": decoder(
        "DeepseekV2Config", "deepseek2", **_LATENT | FOUR_HEADS | {"num_key_value_heads": 4},
        q_lora_rank=32, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=1, n_group=4, topk_group=2, topk_method="group_limited_greedy",
        routed_scaling_factor=1.7,
    ),
    "deepseek_v3": decoder(
        "DeepseekV3Config", "deepseek2", **_LATENT, **_SIGMOID_ROUTER, q_lora_rank=32, n_group=4,
        topk_group=2, num_nextn_predict_layers=0,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "glm4_moe_lite": decoder(
        "Glm4MoeLiteConfig", "deepseek2", **_LATENT,
        **{k: v for k, v in _SIGMOID_ROUTER.items() if k != "first_k_dense_replace"},
        q_lora_rank=32, mlp_layer_types=["dense", "dense", "sparse", "sparse"],
    ),
    "hunyuan_moe": decoder(
        "HunYuanMoEV1Config", "hunyuan-moe", head_dim=32, pad_token_id=0, num_experts=5,
        moe_topk=2,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 900.0, "factor": 1.0, "alpha": 50.0},
    ),
    "gemma4-moe": decoder(  # as 26B-A4B: values are keys where all of a text is seen
        "Gemma4TextConfig", "gemma4", **FOUR_HEADS, **GEMMA4, attention_k_eq_v=True,
        num_global_key_value_heads=1, enable_moe_block=True, num_experts=5, top_k_experts=2,
        moe_intermediate_size=32, hidden_size_per_layer_input=0,
    ),
    "qwen3_vl_moe": reads_pictures(
        "Qwen3VLMoeConfig", "qwen3vlmoe", QWEN_VISION | {"deepstack_visual_indexes": [0]},
        **FOUR_HEADS, head_dim=32, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=96, **theta(3000.0, mrope_section=[6, 5, 5]),
    ),
}  # fmt: skip
