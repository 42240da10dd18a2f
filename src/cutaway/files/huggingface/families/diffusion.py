"""The families of masked diffusion models: another family's body with a different attention.

Knows the keys of their configs, the values that these must have, and whether their rows are
shifted. If neither config nor tokenizer has the mask token, its id here is from papers and code.
The graphs are in ``compute/model/architectures/diffusion.py``, or in the modules of their bodies.

*MDLM's modulation by time*: each block has a shift, a scale and a gate for each of its two halves,
which a matrix computes from an embedding of sigma (DiT's adaLN, Peebles & Xie 2022, arXiv
2212.09748). MDLM's sigma is always 0, so these are constants: LN(x) · w · (1 + scale) + shift is a
norm with a bias, and gate · (W x + b) is a matrix with other rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.families import gpt, keys, llama, mixtures
from cutaway.files.huggingface.families.family import SILU, Family, Variant
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards, Sources, TensorSource

_LLAMA, _QWEN2, _QWEN3 = (llama.ROWS[name] for name in ("llama", "qwen2", "qwen3"))
_MOE, _GPT2 = mixtures.ROWS["qwen3_moe"], gpt.ROWS["gpt2"]
_WRAPPED = "denoise_model."  # before the names of a body in a wrapper that has its embedding beside


# -- keys ------------------------------------------------------------------------------------------


def llada_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model with experts in every layer; refuse groups and shared experts."""
    layers = config.size("num_hidden_layers")
    config.must_be("moe_layer_freq", [1] * layers)
    for name in ("router_num_group", "router_topk_group", "shared_expert_intermediate_size"):
        config.must_be(name, 0, 1, -1, -2)  # some of which its own code writes for none
    if config.get("clip_qkv") is not None:
        config.refuse("clip_qkv", "only null is")
    return keys.qwen3_moe(config)


def mdlm(config: JsonObject) -> dict[str, Any]:
    """Return the keys of MDLM: a GPT-NeoX with gelu_new, once the modulation is folded in."""
    return {
        "use_parallel_residual": False, "hidden_activation": "gelu_new",
        **gpt.width(config),
    }  # fmt: skip


# -- MDLM's modulation, folded into norms and matrices ---------------------------------------------


Array = NDArray[Any]
_ROOT = "backbone."


@dataclass(frozen=True)
class Scaled:
    """A rewrite that multiplies each row of a tensor by a number of its own."""

    by: Array

    def __call__(self, x: Array) -> Array:
        """Return the scaled rows, as float32."""
        return (x * self.by.reshape(-1, *[1] * (x.ndim - 1))).astype(np.float32)


def _fold_modulation(sources: Sources, _: JsonObject, shards: Shards) -> dict[str, Any]:
    """Fold the modulation into norms and matrices, and give the norms biases.

    `FormatError` for a tensor of the modulation that is missing, or does not fit.
    """
    time = _time(shards)
    layers = sum(name.endswith(".attn_norm.weight") for name in sources)
    for p, block in ((f"blk.{i}.", f"{_ROOT}blocks.{i}.") for i in range(layers)):
        six = _modulation(shards, block, time, 6)
        for half, (norm, last) in enumerate(
            (("attn_norm", "attn_output"), ("ffn_norm", "ffn_down"))
        ):
            shift, scale, gate = six[3 * half : 3 * half + 3]
            _fold_norm(sources, f"{p}{norm}", shift, scale)
            for name in (f"{p}{last}.weight", f"{p}{last}.bias"):
                if name in sources:
                    sources[name] = _scale_rows(sources[name], gate)
    shift, scale = _modulation(shards, f"{_ROOT}output_layer.", time, 2)
    _fold_norm(sources, "output_norm", shift, scale)
    return {}


def _fold_norm(sources: Sources, name: str, shift: Array, scale: Array) -> None:
    if f"{name}.weight" in sources:  # else the graph will say what is missing
        sources[f"{name}.weight"] = _scale_rows(sources[f"{name}.weight"], 1 + scale)
        values = shift.astype(np.float32)
        sources[f"{name}.bias"] = TensorSource(
            f"{name}.bias", "F32", values.shape, (), values=values
        )


def _scale_rows(source: TensorSource, by: Array) -> TensorSource:
    if source.shape[0] != len(by):
        raise FormatError(f"{source.name} has {source.shape[0]} rows, and its modulation {len(by)}")
    return replace(source, format="F32", rewrite=Scaled(by))


def _time(shards: Shards) -> Array:
    """Return the embedding of sigma 0 for the blocks; at 0 all cosines are 1 and all sines 0."""
    first = f"{_ROOT}sigma_map.mlp.0"
    width = _read(shards, f"{first}.weight").shape[-1]
    waves = np.repeat([1.0, 0.0], [width // 2, width - width // 2])
    hidden = _silu(_linear(shards, first, waves))
    return _silu(_linear(shards, f"{_ROOT}sigma_map.mlp.2", hidden))


def _modulation(shards: Shards, part: str, time: Array, count: int) -> list[Array]:
    """Return the modulation, split into `count` vectors."""
    vector = _linear(shards, f"{part}adaLN_modulation", time)
    if len(vector) % count:
        raise FormatError(f"{part}adaLN_modulation has {len(vector)} rows, no {count} equal parts")
    return np.split(vector, count)


def _linear(shards: Shards, name: str, x: Array) -> Array:
    weight, bias = _read(shards, f"{name}.weight"), _read(shards, f"{name}.bias")
    if weight.ndim != 2 or weight.shape != (*bias.shape, len(x)):
        raise FormatError(
            f"{name} has a matrix of {weight.shape} and a bias of {bias.shape}, and {len(x)} inputs"
        )
    product: Array = weight @ x + bias
    return product


def _read(shards: Shards, name: str) -> Array:
    if name not in {*shards}:
        raise FormatError(f"the files lack the tensor {name}; download the model again")
    shape = shards.info(name).shape
    numbers: Array = TensorSource(name, "F32", shape, (name,)).make(shards)[:].view(np.float32)
    return numbers.reshape(shape).astype(np.float64)


def _silu(x: Array) -> Array:
    activation: Array = x / (1 + np.exp(-x))
    return activation


# -- names -----------------------------------------------------------------------------------------


def _masked_by(token_id: int, family: Family, **more: Any) -> Family:
    return replace(family, defaults={**family.defaults, "mask_token_id": token_id, **more})


_SEES_ALL_SHIFTED: dict[str, Any] = {"attention": "bidirectional", "shifts": True}

ROWS: Mapping[str, Family] = {
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
        must_be={
            "hidden_act": "silu", "block_type": "llama", "layer_norm_type": "rms", "rope": True,
            "block_group_size": 1, "layer_norm_with_affine": True, "alibi": False,
            "attention_layer_norm": False, "input_emb_norm": False, "scale_logits": False,
            "multi_query_attention": False,
        },
    ),
    "lladamoe": _masked_by(
        156895,
        replace(
            _MOE, architecture="llada-moe", attention="bidirectional", metadata=llada_moe,
            must_be=SILU | {
                "qk_layernorm": True, "moe_router_score_function": "softmax",
                "moe_router_enable_expert_bias": False, "routed_scaling_factor": 1,
            },
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
        replace(
            _QWEN2, architecture="dream", must_be=SILU | {"use_mrope": False}, **_SEES_ALL_SHIFTED
        ),
    ),
    # Cheng et al. 2025, arXiv 2510.06303
    "sdar": _masked_by(151669, replace(_QWEN3, attention="block-causal"), block_size=4),
    "sdar_moe": _masked_by(151669, replace(_MOE, attention="block-causal"), block_size=4),
    # of dLLM, arXiv 2602.22661; those made with BD3-LM's objective see blocks
    "a2d-llama": replace(_LLAMA, attention="block-causal"),
    "a2d-qwen2": replace(_QWEN2, attention="block-causal"),
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
        architecture="gptneox", prefixes=("backbone.",), attention="bidirectional",
        rebuild=_fold_modulation,
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
        defaults={"layer_norm_epsilon": 1e-5}, metadata=mdlm,
        must_be={"time_conditioning": False}, grouped=False, layer_norm=True,
    ),
}  # fmt: skip

UNSUPPORTED = {"bd3lm": "BD3-LM is not supported", "sedd": "SEDD is not supported"}
_GPT2_MASKS = {768: 10541, 1024: 50257}  # of the small and of the medium DiffuGPT, by width


def _mixture(config: JsonObject, _: Iterable[str]) -> Family | None:
    return ROWS["lladamoe"] if config.get("num_experts") is not None else None


def _mdlm(config: JsonObject, _: Iterable[str]) -> Family:
    return _masked_by(config.size("vocab_size") - 1, ROWS["mdlm"])


def _diffugpt(config: JsonObject, _: Iterable[str] = ()) -> Family:
    """Return the family with a DiffuGPT's mask token, which follows from the model's size."""
    family, mask = ROWS["diffugpt"], _GPT2_MASKS.get(config.size("n_embd"))
    return family if mask is None else _masked_by(mask, family)


def _is_wrapped(tensors: Iterable[str]) -> bool:
    return any(tensor.startswith(_WRAPPED) for tensor in tensors)


VARIANTS: Mapping[str, Variant] = {
    "llada": _mixture,
    "mdlm": _mdlm,
    "diffugpt": _diffugpt,
    "gpt2": lambda config, tensors: _diffugpt(config) if _is_wrapped(tensors) else None,
    "llama": lambda _, tensors: ROWS["diffullama"] if _is_wrapped(tensors) else None,
}
