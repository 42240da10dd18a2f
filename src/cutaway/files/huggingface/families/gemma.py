"""The families of Gemma, with EmbeddingGemma and DiffusionGemma: names, keys, Gemma 4's layers.

Their graphs are in ``compute/model/architectures/gemma.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.family import (
    HEAD_NORMS,
    LAYER,
    OUTSIDE,
    TEXT,
    Family,
    Variant,
)
from cutaway.files.huggingface.families.keys import FULL, SLIDING
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Rewrite, add_one
from cutaway.files.huggingface.rope import Ropes, settings_of
from cutaway.files.huggingface.shards import Shards, Sources, TensorSource

_BETWEEN_NORMS = LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


# -- keys ------------------------------------------------------------------------------------------


def gemma(config: JsonObject) -> dict[str, Any]:
    """Return no keys beyond the sizes. Early files name another GELU than the model's."""
    if config.get("hidden_activation") is None:
        config.must_be("hidden_act", "gelu_pytorch_tanh", "gelu")
    config.must_be("hidden_activation", "gelu_pytorch_tanh")
    config.must_be("use_bidirectional_attention", False)
    return {}


def gemma2(config: JsonObject) -> dict[str, Any]:
    """Return the keys of caps on scores and logits, and of a window.

    Every other layer has the window, from the first layer on.
    """
    config.must_be("use_bidirectional_attention", False)
    keys.check_layers(config, lambda layer: FULL if layer % 2 else SLIDING)
    caps = {
        "attn_logit_softcapping": config.positive("attn_logit_softcapping"),
        "final_logit_softcapping": config.positive("final_logit_softcapping"),
    }
    return _windows(config) | caps


def vaultgemma(config: JsonObject) -> dict[str, Any]:
    """Return the keys of caps on scores and logits, where there are such, and of windows."""
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    windows = keys.flagged_windows(config, lambda layer: FULL if layer % 2 else SLIDING)
    return _windows(config) | windows | keys.caps(config, *names)


def gemma3(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a window in five of six layers, and the base by which these rotate."""
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        config.must_be(name, 6)
    keys.check_layers(config, lambda layer: SLIDING if (layer + 1) % 6 else FULL)
    if config.get("attn_logit_softcapping") is not None:
        config.refuse("attn_logit_softcapping", "only null is")
    base = keys.local_base(config, "rope_local_base_freq")
    return _windows(config) | {"rope.freq_base_swa": base} | keys.caps(config)


def _windows(config: JsonObject) -> dict[str, Any]:
    config.must_be("hidden_activation", "gelu_pytorch_tanh")
    scale = config.positive("query_pre_attn_scalar") ** -0.5
    return keys.window(config) | {"attention.scale": scale}


def gemma_embedding(config: JsonObject) -> dict[str, Any]:
    """Return Gemma 3's keys, with tokens that also see the tokens after them."""
    return gemma3(config) | {"attention.causal": False}


def gemma4(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Gemma 4, in which windows, heads and MLPs differ from layer to layer.

    Some layers read the keys and values of earlier layers. Some models have experts.
    """
    config.must_be("hidden_activation", "gelu_pytorch_tanh")
    config.must_be("use_bidirectional_attention", "vision", None)  # the same for text
    layers, width = config.size("num_hidden_layers"), config.size("intermediate_size")
    slides = np.array([kind == SLIDING for kind in _kinds(config, layers)])
    again = config.id("num_kv_shared_layers")
    wide = width * 2 if config.flag("use_double_wide_mlp") else width
    kv_heads, full = config.size("num_key_value_heads"), _full_size(config, "num_key_value_heads")
    head = config.size("head_dim")
    rope = settings_of(config, SLIDING).with_defaults({}, {"rope_theta": 1e4})
    rope.must_be("rope_type", "default")
    metadata: dict[str, Any] = {
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": slides,
        "attention.head_count_kv": np.where(slides, kv_heads, full).astype(np.int32),
        "attention.key_length_swa": head,
        "attention.value_length_swa": head,
        "attention.shared_kv_layers": again,
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        "feed_forward_length": np.where(np.arange(layers) < layers - again, width, wide).astype(
            np.int32
        ),
        "rope.freq_base_swa": rope.positive("rope_theta"),
        "rope.dimension_count_swa": head,
        **keys.caps(config),
    }
    if config.flag("enable_moe_block"):
        metadata |= {
            "expert_count": config.size("num_experts"),
            "expert_used_count": config.size("top_k_experts"),
            "expert_feed_forward_length": config.size("moe_intermediate_size"),
        }
    return metadata


def embedding_gemma2(config: JsonObject) -> dict[str, Any]:
    """Return Gemma 4's keys, for tokens that also see the tokens after them.

    GGUF has the size of both sides of a window together, config.json that of one.
    """
    config.must_be("sliding_window_pattern", 6)
    metadata = gemma4(config)
    window = 2 * metadata[keys.WINDOW]
    return metadata | {"attention.causal": False, keys.WINDOW: window}


def _kinds(config: JsonObject, layers: int) -> list[str]:
    kinds = config.get("layer_types") or [
        FULL if (i + 1) % 6 == 0 or i == layers - 1 else SLIDING for i in range(layers)
    ]
    keys.check_kinds(config, kinds, FULL, SLIDING)
    return [*kinds[:-1], FULL]  # transformers makes the last layer full, whatever the config says


def _full_size(config: JsonObject, key: str) -> int:
    """Return a size of the layers that see all of a text, by the old names or the new ones."""
    per_layer = config.part("per_layer_config")
    if per_layer:
        kinds = _kinds(config, config.size("num_hidden_layers"))
        layers = [per_layer.part(name) for name in per_layer.values]
        places = [config if layer.get(key) is None else layer for layer in layers]
        sizes = {place.size(key) for place in places}
        numbers = [i for i, kind in enumerate(kinds) if kind == FULL]
        if _numbers(per_layer) != numbers or len(sizes) != 1:
            config.refuse("per_layer_config", "only layers of one kind that are all alike are")
        return sizes.pop()
    if key == "head_dim":
        return config.size("global_head_dim")
    shares = config.flag("attention_k_eq_v") and config.get("num_global_key_value_heads")
    return config.size("num_global_key_value_heads" if shares else key)


def _numbers(per_layer: JsonObject) -> list[int]:
    """Return the object's keys as layer numbers: transformers writes "05" if there is a "10"."""
    return sorted(
        int(name) if name.isdecimal() and len(name) < 9 else -1 for name in per_layer.values
    )


def _head_dim(config: JsonObject) -> int:
    return _full_size(config, "head_dim")


# -- names and rewrites of tensors -----------------------------------------------------------------


def _norms(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    norms = [name for name in (_BETWEEN_NORMS | HEAD_NORMS).values() if name.endswith("norm")]
    return dict.fromkeys(["output_norm", *norms], add_one)


_GEMMA3 = Family(
    architecture="gemma3", must_be={}, prefixes=TEXT, layer=_BETWEEN_NORMS | HEAD_NORMS,
    metadata=gemma3, rewrites=_norms,
)  # fmt: skip
GEMMA4 = Family(
    architecture="gemma4", must_be={}, prefixes=TEXT, metadata=gemma4, head_dim=_head_dim,
    rope=Ropes(proportional=True),
    outside=OUTSIDE | {
        "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
    },
    layer={
        **_BETWEEN_NORMS, **HEAD_NORMS,
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm", "router.proj": "ffn_gate_inp",
        "experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps", "experts.down_proj": "ffn_down_exps",
    },
    whole={
        "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
    },
    experts_turned=False,
    defaults={"global_head_dim": 512},
)  # fmt: skip

_EMBEDDING_GEMMA2 = replace(
    GEMMA4, architecture="embedding-gemma2", metadata=embedding_gemma2,
    outside=OUTSIDE | {
        "ple.per_layer_model_projection": "per_layer_model_proj",
        "ple.per_layer_projection_norm": "per_layer_proj_norm",
        "embedding_projection": "output_proj",
    },
    layer={
        **_BETWEEN_NORMS, **HEAD_NORMS, "ple_block.per_layer_input_gate": "inp_gate",
        "ple_block.per_layer_projection": "proj",
        "ple_block.post_per_layer_input_norm": "post_norm",
    },
    whole={"layer_scalar": "layer_output_scale.weight"},
    defaults={  # as its class gives the layers that see the whole text heads of their own
        "global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
    },
)  # fmt: skip


def _scale_regions(sources: Sources, config: JsonObject, shards: Shards) -> dict[str, Any]:
    """Add DiffusionGemma's numbers that multiply layers' outputs: a prompt's and a canvas's."""
    for i in range(config.size("num_hidden_layers")):
        for part, name in (("decoder", ""), ("encoder.language_model", "enc_")):
            source, new = (
                f"model.{part}.layers.{i}.layer_scalar",
                f"blk.{i}.{name}layer_output_scale.weight",
            )
            sources[new] = TensorSource(new, "F32", shards.info(source).shape, (source,))
    return {}


_DIFFUSION_GEMMA = replace(
    GEMMA4, architecture="diffusion-gemma", prefixes=("model.decoder.",),
    outside=OUTSIDE | {
        f"self_conditioning.{old}": f"self_cond_{new}"
        for old, new in (
            ("pre_norm", "pre_norm"), ("gate_proj", "gate"), ("up_proj", "up"),
            ("down_proj", "down"),
        )
    },
    skipped=("rotary_emb.inv_freq", "layer_scalar"), rebuild=_scale_regions,
    defaults={
        **GEMMA4.defaults, "attention_k_eq_v": True, "enable_moe_block": True,
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
    },
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "gemma": Family(architecture="gemma", must_be={}, metadata=gemma, rewrites=_norms),
    "gemma2": Family(
        architecture="gemma2", must_be={}, layer=_BETWEEN_NORMS, metadata=gemma2, rewrites=_norms
    ),
    "vaultgemma": Family(
        architecture="vaultgemma",
        must_be={},
        metadata=vaultgemma,
        rewrites=_norms,
        layer=LAYER | {"pre_feedforward_layernorm": "ffn_norm"},
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma_embedding": replace(_GEMMA3, architecture="gemma-embedding", metadata=gemma_embedding),
    "embedding_gemma2": _EMBEDDING_GEMMA2,
    "embedding_gemma2_text": _EMBEDDING_GEMMA2,
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "gemma4_unified": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "diffusion_gemma": _DIFFUSION_GEMMA,
}


VARIANTS: Mapping[str, Variant] = dict.fromkeys(
    ("gemma3", "gemma3_text"),
    lambda config, _: (
        ROWS["gemma_embedding"] if config.get("use_bidirectional_attention") else None
    ),
)
