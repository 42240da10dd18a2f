"""The families of masked diffusion models: each has another family's body, and another attention.

Knows what their configs call things and must say, whether their rows are shifted, and which token
masks where neither config nor tokenizer says so: papers and code do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cutaway.files.huggingface.families import FAMILIES, keys
from cutaway.files.huggingface.families.family import Family
from cutaway.files.huggingface.families.ling import LLADA2
from cutaway.files.huggingface.json_object import JsonObject

_LLAMA, _QWEN3, _MOE = FAMILIES["llama"], FAMILIES["qwen3"], FAMILIES["qwen3_moe"]
_GPT2 = FAMILIES["gpt2"]
_WRAPPED = "denoise_model."  # before the names of a body in a wrapper that has its embedding beside


# -- keys ------------------------------------------------------------------------------------------


def llada(config: JsonObject) -> dict[str, Any]:
    """OLMo's settings, of which those of a llama alone are supported."""
    config.must_be("block_type", "llama")
    config.must_be("layer_norm_type", "rms")
    config.must_be("rope", True)
    config.must_be("block_group_size", 1)
    config.must_be("layer_norm_with_affine", True)
    for name in (
        "alibi", "attention_layer_norm", "input_emb_norm", "multi_query_attention", "scale_logits",
    ):  # fmt: skip
        config.must_be(name, False)
    return keys.plain(config)


def llada_moe(config: JsonObject) -> dict[str, Any]:
    """Experts in every layer, without groups or shared ones."""
    layers = config.size("num_hidden_layers")
    config.must_be("moe_layer_freq", [1] * layers)
    config.must_be("qk_layernorm", True)
    config.must_be("moe_router_score_function", "softmax")
    config.must_be("moe_router_enable_expert_bias", False)
    config.must_be("routed_scaling_factor", 1)
    for name in ("router_num_group", "router_topk_group", "shared_expert_intermediate_size"):
        config.must_be(name, 0, 1, -1, -2)  # some of which its own code writes for none
    if config.get("clip_qkv") is not None:
        config.refuse("clip_qkv", "only null is")
    return keys.qwen3_moe(config)


def mdlm(config: JsonObject) -> dict[str, Any]:
    """A GPT-NeoX with the other GELU, once it needs no time."""
    config.must_be("time_conditioning", False)
    return {"use_parallel_residual": False, "hidden_activation": "gelu_new"}


def dream(config: JsonObject) -> dict[str, Any]:
    """Qwen 2."""
    config.must_be("use_mrope", False)
    return keys.qwen(config)


# -- names -----------------------------------------------------------------------------------------


def _masked_by(token_id: int, family: Family, **more: Any) -> Family:
    return replace(family, defaults={**family.defaults, "mask_token_id": token_id, **more})


_SEES_ALL_SHIFTED: dict[str, Any] = {"attention": "bidirectional", "shifts": True}

DIFFUSION: Mapping[str, Family] = {
    # Nie et al. 2025, arXiv 2502.09992; the names are OLMo's
    "llada": replace(
        _LLAMA, architecture="llada", prefixes=("model.transformer.",), attention="bidirectional",
        outside={"wte": "token_embd", "ln_f": "output_norm", "ff_out": "output"},
        layer={
            "attn_norm": "attn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
            "attn_out": "attn_output", "ff_norm": "ffn_norm", "ff_proj": "ffn_gate",
            "up_proj": "ffn_up", "ff_out": "ffn_down",
        },
        names={
            "hidden_size": "d_model", "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads", "num_hidden_layers": "n_layers",
            "intermediate_size": "mlp_hidden_size", "hidden_act": "activation_type",
            "max_position_embeddings": "max_sequence_length",
            "tie_word_embeddings": "weight_tying",
        },
        defaults={
            "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "hidden_act": "swiglu",
            "block_type": "sequential", "layer_norm_type": "default", "rope": False,
            "mask_token_id": 126336,
        },
        own=llada,
    ),
    "lladamoe": _masked_by(
        156895,
        replace(
            _MOE, architecture="llada-moe", attention="bidirectional", own=llada_moe,
            names={
                "intermediate_size": "dense_intermediate_size",
                "moe_intermediate_size": "expert_intermediate_size",
            },
        ),
        rms_norm_eps=1e-5,
    ),
    # Ye et al. 2025, arXiv 2508.15487; and DiffuCoder
    "Dream": _masked_by(
        151666,
        replace(FAMILIES["qwen2"], architecture="dream", own=dream, **_SEES_ALL_SHIFTED),
    ),
    # Cheng et al. 2025, arXiv 2510.06303
    "sdar": _masked_by(151669, replace(_QWEN3, attention="block-causal"), block_size=4),
    "sdar_moe": _masked_by(151669, replace(_MOE, attention="block-causal"), block_size=4),
    "llada2_moe": LLADA2,
    # of dLLM, arXiv 2602.22661; those made with BD3-LM's objective see blocks
    "a2d-llama": replace(_LLAMA, attention="block-causal"),
    "a2d-qwen2": replace(FAMILIES["qwen2"], attention="block-causal"),
    "a2d-qwen3": replace(_QWEN3, attention="block-causal"),
    # Gong et al. 2024, arXiv 2410.17891; the mask is a word of the vocabulary
    "diffugpt": replace(
        _GPT2, prefixes=(_WRAPPED, *_GPT2.prefixes),
        outside={**_GPT2.outside, "embed_tokens": "token_embd"}, **_SEES_ALL_SHIFTED,
    ),
    "diffullama": _masked_by(
        811, replace(_LLAMA, prefixes=(_WRAPPED, *_LLAMA.prefixes), **_SEES_ALL_SHIFTED)
    ),
    "rnd1": _masked_by(
        151669, replace(_MOE, architecture="rnd1", **_SEES_ALL_SHIFTED), head_dim=128
    ),
    # Sahoo et al. 2024, arXiv 2406.07524: a DiT, whose mask is behind GPT-2's vocabulary
    "mdlm": Family(
        architecture="gptneox", prefixes=("backbone.",), attention="bidirectional", modulated=True,
        outside={
            "vocab_embed": "token_embd", "output_layer.norm_final": "output_norm",
            "output_layer.linear": "output",
        },
        layer={
            "norm1": "attn_norm", "attn_qkv": "attn_qkv", "attn_out": "attn_output",
            "norm2": "ffn_norm", "mlp.0": "ffn_up", "mlp.2": "ffn_down",
        },
        skipped=(
            "rotary_emb.inv_freq", "adaLN_modulation.weight", "adaLN_modulation.bias",
            "sigma_map.mlp.0.weight", "sigma_map.mlp.0.bias",
            "sigma_map.mlp.2.weight", "sigma_map.mlp.2.bias",
        ),
        names={
            "hidden_size": "hidden_dim", "num_hidden_layers": "n_blocks",
            "num_attention_heads": "n_heads", "max_position_embeddings": "model_length",
        },
        defaults={"layer_norm_epsilon": 1e-5}, own=mdlm, grouped=False, layer_norm=True,
    ),
}  # fmt: skip
"""By config.json's model_type, or as ``meant`` says."""

REFUSED = {
    "bd3lm": "BD3-LM", "diffusion_gemma": "DiffusionGemma", "sedd": "SEDD",
}  # fmt: skip
_WRAPPED_AS = {"gpt2": "diffugpt", "llama": "diffullama"}
_GPT2_MASKS = {768: 10541, 1024: 50257}  # of the small and of the medium DiffuGPT, by width


def meant(name: str | None, config: JsonObject, tensors: Iterable[str]) -> str | None:
    """What a model is to be called where its config calls it as another is called."""
    if name == "llada" and config.get("num_experts") is not None:
        return "lladamoe"
    if name is None and isinstance(config.get("graph"), dict) and config.get("noise") is not None:
        return "sedd"
    if name in _WRAPPED_AS and any(tensor.startswith(_WRAPPED) for tensor in tensors):
        return _WRAPPED_AS[name]
    return name


def with_mask(name: str, family: Family, config: JsonObject) -> Family:
    """The family, with the mask of a model that is known by its size."""
    mask = _GPT2_MASKS.get(config.size("n_embd")) if name == "diffugpt" else None
    if name == "mdlm":
        mask = config.size("vocab_size") - 1
    return family if mask is None else _masked_by(mask, family)
