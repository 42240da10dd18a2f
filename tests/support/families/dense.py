"""Models that generate text; each layer has attention and one MLP."""

from collections.abc import Mapping

from support.families.row import (
    FOUR_HEADS,
    GEMMA,
    GEMMA4,
    GRANITE,
    LLAMA3_ROPE,
    QWEN_VISION,
    VOCAB,
    WINDOW,
    Row,
    decoder,
    reads_pictures,
    theta,
)

_COHERE = {"tie_word_embeddings": True, "pad_token_id": 0, "logit_scale": 0.25}
_LONG = [1.0 + 0.3 * i for i in range(6)]


# LlamaConfig asks for a hidden size that is a multiple of the heads, whatever head_dim says.
DENSE: Mapping[str, Row] = {
    "llama": decoder("LlamaConfig", "llama", num_attention_heads=8, head_dim=32),
    "llama-tied": decoder("LlamaConfig", "llama", **FOUR_HEADS, tie_word_embeddings=True),
    "llama-biased": decoder(
        "LlamaConfig", "llama", **FOUR_HEADS, attention_bias=True, mlp_bias=True
    ),
    "llama3-rope": decoder("LlamaConfig", "llama", **FOUR_HEADS, rope_parameters=LLAMA3_ROPE),
    "llama-linear-rope": decoder(
        "LlamaConfig", "llama", **FOUR_HEADS,
        rope_parameters={"rope_type": "linear", "rope_theta": 900.0, "factor": 4.0},
    ),
    "llama-yarn": decoder(
        "LlamaConfig", "llama", **FOUR_HEADS,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 16.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": decoder("MistralConfig", "llama", head_dim=32, sliding_window=None),
    "mistral-window": decoder("MistralConfig", "llama", head_dim=32, sliding_window=WINDOW),
    "smollm3": decoder("SmolLM3Config", "smollm3", **FOUR_HEADS, tie_word_embeddings=True),
    "granite": decoder("GraniteConfig", "granite", **FOUR_HEADS, **GRANITE),
    "qwen2": decoder("Qwen2Config", "qwen2", **FOUR_HEADS, **theta(3000.0)),
    "qwen3": decoder("Qwen3Config", "qwen3", head_dim=32, tie_word_embeddings=True),
    "gemma2": decoder(
        "Gemma2Config", "gemma2", **FOUR_HEADS, **GEMMA, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": decoder(
        "Gemma3TextConfig", "gemma3", num_hidden_layers=7, **FOUR_HEADS, **GEMMA,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "gemma4": decoder(  # as E2B: embeddings of layers, and layers that read others' keys
        "Gemma4TextConfig", "gemma4", **FOUR_HEADS, **GEMMA4, num_kv_shared_layers=3,
        use_double_wide_mlp=True, hidden_size_per_layer_input=32, final_logit_softcapping=3.0,
        vocab_size_per_layer_input=VOCAB,
    ),
    "gemma3n": decoder(  # layers that read others' keys, gates that are cut
        "Gemma3nTextConfig", "gemma3n", **FOUR_HEADS, head_dim=32, sliding_window=WINDOW,
        num_hidden_layers=7, num_kv_shared_layers=3, hidden_size_per_layer_input=32,
        laurel_rank=24, altup_num_inputs=3, vocab_size_per_layer_input=VOCAB,
        activation_sparsity_pattern=[0.9, 0.6, 0.0, 0.95, 0.0, 0.0, 0.0],
        layer_types=GEMMA4["layer_types"], final_logit_softcapping=3.0,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "gemma3n-other": decoder(  # another stream is read; tables with fewer rows than tokens
        "Gemma3nTextConfig", "gemma3n", **FOUR_HEADS, head_dim=16, sliding_window=WINDOW,
        num_hidden_layers=6, num_kv_shared_layers=0, hidden_size_per_layer_input=32,
        laurel_rank=8, altup_num_inputs=4, altup_active_idx=2,
        vocab_size_per_layer_input=VOCAB - 64,
    ),
    "hrm_text": decoder(  # two stacks of two layers, 2 · (3 + 1) runs
        "HrmTextConfig", "hrm-text", **FOUR_HEADS, num_hidden_layers=2, head_dim=32, L_cycles=3,
        embedding_scale=7.0,
    ),
    "hrm_text-other": decoder(  # one slow run for each fast one; prompts are read causally
        "HrmTextConfig", "hrm-text", **FOUR_HEADS, num_hidden_layers=1, head_dim=16,
        H_cycles=3, L_cycles=1, initializer_range=0.25, tie_word_embeddings=True, prefix_lm=False,
        **theta(700.0),
    ),
    "phi3": decoder("Phi3Config", "phi3", **FOUR_HEADS, sliding_window=None, pad_token_id=0),
    "phi3-window": decoder(
        "Phi3Config", "phi3", **FOUR_HEADS, sliding_window=WINDOW, pad_token_id=0,
        **theta(10000.0, partial_rotary_factor=0.75),
    ),
    "phi3-longrope": decoder(
        "Phi3Config", "phi3", **FOUR_HEADS, pad_token_id=0,
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
    "gpt_bigcode": Row(
        "GPTBigCodeConfig",
        {
            "vocab_size": VOCAB, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        "starcoder",
    ),
    "gptj": Row(
        "GPTJConfig",
        {
            "vocab_size": VOCAB, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256,
            "rotary_dim": 8, "bos_token_id": 1, "eos_token_id": 2,
        },
        "gptj",
    ),
    "opt": Row(
        "OPTConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "ffn_dim": 96,
            "num_attention_heads": 4, "max_position_embeddings": 256, "word_embed_proj_dim": 64,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        "opt",
    ),
    "bloom": Row(
        "BloomConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 96, "n_layer": 3, "n_head": 6,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        "bloom",
    ),
    "mpt": Row(
        "MptConfig",
        {
            "vocab_size": VOCAB, "d_model": 96, "n_layers": 3, "n_heads": 6, "max_seq_len": 256,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        "mpt",
    ),
    "falcon": Row(  # as 7B
        "FalconConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 256, "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "falcon",
    ),
    "falcon-two-norms": Row(  # as 40B
        "FalconConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True,
            "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
        },
        "falcon",
    ),
    "gpt_neox": decoder(
        "GPTNeoXConfig", "gptneox", **FOUR_HEADS, **theta(10000.0, partial_rotary_factor=0.25)
    ),
    "gpt_neox-serial": decoder(
        "GPTNeoXConfig", "gptneox", **FOUR_HEADS, use_parallel_residual=False,
        **theta(10000.0, partial_rotary_factor=0.5),
    ),
    "olmo2": decoder("Olmo2Config", "olmo2", **FOUR_HEADS),
    "olmo3": decoder(
        "Olmo3Config", "olmo2", **FOUR_HEADS, sliding_window=WINDOW,
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
        },
    ),
    "gemma": decoder(
        "GemmaConfig", "gemma", **FOUR_HEADS, head_dim=32, tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "ministral3": decoder(
        "Ministral3Config", "mistral3", head_dim=32, sliding_window=None, pad_token_id=0,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 16.0,
            "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    ),
    "internlm3": decoder(
        "InternLM3Config", "llama", **FOUR_HEADS, head_dim=32, qkv_bias=True, bias=True,
        pad_token_id=0,
    ),
    "exaone4": decoder("Exaone4Config", "exaone4", **FOUR_HEADS, sliding_window=None,
        layer_types=["full_attention"] * 4,
    ),
    "exaone4-window": decoder("Exaone4Config", "exaone4", **FOUR_HEADS, sliding_window=WINDOW),
    "ernie4_5": decoder("Ernie4_5Config", "ernie4_5", head_dim=32, tie_word_embeddings=True),
    "hunyuan": decoder(
        "HunYuanDenseV1Config", "hunyuan-dense", head_dim=32, pad_token_id=0,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 900.0, "factor": 1.0, "alpha": 50.0},
    ),
    "seed_oss": decoder("SeedOssConfig", "seed_oss", head_dim=32, pad_token_id=0),
    "granite4": decoder(
        "GraniteMoeHybridConfig", "granite", **FOUR_HEADS, **GRANITE, num_local_experts=0,
        shared_intermediate_size=96, layer_types=["attention"] * 4,
        position_embedding_type="rope",
    ),
    "glm": decoder(
        "GlmConfig", "chatglm", head_dim=32, pad_token_id=0,
        **theta(900.0, partial_rotary_factor=0.5),
    ),
    "glm4": decoder(
        "Glm4Config", "glm4", head_dim=32, pad_token_id=0,
        **theta(900.0, partial_rotary_factor=0.5),
    ),
    "cohere": decoder("CohereConfig", "command-r", **FOUR_HEADS, **_COHERE),
    "cohere-normed-heads": decoder(
        "CohereConfig", "command-r", **FOUR_HEADS, **_COHERE, use_qk_norm=True
    ),
    "cohere2": decoder("Cohere2Config", "cohere2", **FOUR_HEADS, **_COHERE, sliding_window=WINDOW),
    "starcoder2": decoder("Starcoder2Config", "starcoder2", **FOUR_HEADS, tie_word_embeddings=True),
    "starcoder2-window": decoder(
        "Starcoder2Config", "starcoder2", **FOUR_HEADS, sliding_window=WINDOW
    ),
    "phi": decoder(
        "PhiConfig", "phi2", **FOUR_HEADS, **theta(10000.0, partial_rotary_factor=0.5)
    ),
    "qwen2_5_vl": reads_pictures(
        "Qwen2_5_VLConfig", "qwen2vl", QWEN_VISION | {"fullatt_block_indexes": [0]},
        **FOUR_HEADS, **theta(3000.0, mrope_section=[2, 3, 3]),
    ),
    "qwen3_vl": reads_pictures(
        "Qwen3VLConfig", "qwen3vl", QWEN_VISION | {"deepstack_visual_indexes": [0]},
        **FOUR_HEADS, head_dim=32, **theta(3000.0, mrope_section=[6, 5, 5]),
    ),
    "mistral3": reads_pictures(
        "Mistral3Config", "mistral3",
        {
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "head_dim": 16,
            "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        },
        model_type="mistral", head_dim=32, sliding_window=None,
    ),
    "muse_glimmer": reads_pictures(
        "MuseGlimmerConfig", "muse-glimmer",
        {
            "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2,
            "num_hidden_layers": 1, "pos_emb_height": 4, "pos_emb_width": 4,
        },
        outside={"out_hidden_size": 128, "projector_hidden_size": 32}, **FOUR_HEADS, head_dim=32,
        num_hidden_layers=6, sliding_window=WINDOW, qk_scale_factor=1.9, output_multiplier=0.6,
        final_logit_softcapping=3.0, **theta(300.0),
    ),
    "ministral": decoder("MinistralConfig", "llama", head_dim=32, sliding_window=WINDOW),
    "iquestcoder": decoder("IQuestCoderConfig", "llama", num_attention_heads=8, head_dim=32),
    "helium": decoder(
        "HeliumConfig", "llama", num_attention_heads=8, head_dim=8, pad_token_id=0
    ),
    "jais2": decoder("Jais2Config", "jais2", **FOUR_HEADS, hidden_act="relu2"),
    "apertus": decoder(
        "ApertusConfig", "apertus", head_dim=32, hidden_act="xielu", rope_parameters=LLAMA3_ROPE
    ),
    "olmo": decoder("OlmoConfig", "olmo", **FOUR_HEADS, clip_qkv=None),
    "cwm": decoder(
        "CwmConfig", "cwm", **FOUR_HEADS, num_hidden_layers=5, head_dim=32, sliding_window=WINDOW,
        rope_parameters=LLAMA3_ROPE, pad_token_id=0,
    ),
    "granite_swa": decoder(
        "GraniteSWAConfig", "granite-swash", **FOUR_HEADS, **GRANITE, num_hidden_layers=5,
        sliding_window=WINDOW, layer_rope_theta=[0, 900.0, 500.0, 900.0, 0], **theta(900.0),
    ),
    "hyperclovax": decoder(
        "HyperCLOVAXConfig", "hyperclovax", **FOUR_HEADS, **GRANITE, use_post_norm=True
    ),
    "hyperclovax-plain": decoder(
        "HyperCLOVAXConfig", "hyperclovax", **FOUR_HEADS, **GRANITE | {
            "attention_multiplier": None}, use_post_norm=False
    ),
    "nanochat": decoder("NanoChatConfig", "nanochat", **FOUR_HEADS, pad_token_id=0),
    "vaultgemma": decoder(
        "VaultGemmaConfig", "vaultgemma", **FOUR_HEADS, **GEMMA, pad_token_id=0,
        attn_logit_softcapping=None, final_logit_softcapping=3.0,
    ),
    "youtu": decoder(
        "YoutuConfig", "deepseek2", kv_lora_rank=32, q_lora_rank=32, qk_rope_head_dim=16,
        qk_nope_head_dim=32, v_head_dim=64, num_key_value_heads=6, tie_word_embeddings=True,
    ),
    "minicpm3": decoder(  # as 4B: its rope has the factors of short texts
        "MiniCPM3Config", "minicpm3", kv_lora_rank=32, q_lora_rank=32, qk_rope_head_dim=16,
        qk_nope_head_dim=32, num_key_value_heads=4, **FOUR_HEADS, v_head_dim=32, scale_emb=3,
        dim_model_base=32, tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0,
            "original_max_position_embeddings": 256,
            "long_factor": [1.0 + 0.3 * i for i in range(8)],
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
        },
    ),
    "bitnet": decoder(
        "BitNetConfig", "bitnet", **FOUR_HEADS, hidden_act="relu2", tie_word_embeddings=True
    ),
    "arcee": decoder("ArceeConfig", "arcee", **FOUR_HEADS, hidden_act="relu2"),
    "nemotron": decoder(
        "NemotronConfig", "nemotron", **FOUR_HEADS, hidden_act="relu2",
        **theta(10000.0, partial_rotary_factor=0.5),
    ),
    "stablelm": decoder(
        "StableLmConfig", "stablelm", **FOUR_HEADS, use_qkv_bias=True,
        **theta(10000.0, partial_rotary_factor=0.25),
    ),
    "stablelm-12b": decoder(
        "StableLmConfig", "stablelm", **FOUR_HEADS, qk_layernorm=True, use_parallel_residual=True,
        **theta(10000.0, partial_rotary_factor=0.25),
    ),
}  # fmt: skip
