"""RWKV-7's folders, as flash-linear-attention writes them: names and keys.

transformers has no such model. The graph is in ``compute/model/architectures/rwkv.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cutaway.errors import FormatError
from cutaway.files.huggingface.families.family import Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import flat
from cutaway.files.huggingface.shards import Shards, Sources

_MIXES = "rwkvag"  # in the order of GGUF's tensor
_RANKS = {"w": "decay", "a": "iclr", "v": "value_residual_mix", "g": "gate"}  # GGUF's names


def _rwkv7(config: JsonObject) -> dict[str, Any]:
    """Return the keys of RWKV-7, which has no attention."""
    config.must_be("norm_first", True)
    config.must_be("norm_bias", True)
    config.must_be("attn", None)
    hidden, size = config.size("hidden_size"), config.size("head_dim")
    if config.get("value_dim") != [hidden] * config.size("num_hidden_layers"):
        config.must_be("value_dim", hidden)
    width = int(hidden * config.positive("hidden_ratio"))
    config = config.with_defaults({}, {"intermediate_size": -(-width // 32) * 32})
    return {
        "attention.head_count": 0, "attention.head_count_kv": 0, "attention.key_length": 0,
        "attention.value_length": 0, "wkv.head_size": size, "token_shift_count": 2,
        "attention.group_norm_epsilon": size * config.positive("layer_norm_epsilon"),
        "context_length": 2**20,  # a state takes no more room for a longer text
        "feed_forward_length": config.size("intermediate_size"),
    }  # fmt: skip


def _as_in_gguf(sources: Sources, config: JsonObject, _: Shards) -> dict[str, Any]:
    """Join the six vectors by which a layer mixes tokens; return the ranks of narrow matrices.

    llama.cpp wants matrices for the first layer's values, too, which nothing reads.
    """
    hidden = config.size("hidden_size")
    for layer in range(config.size("num_hidden_layers")):
        p = f"blk.{layer}.time_mix_"
        fused, names = f"{p}lerp_fused.weight", [f"{p}lerp_{mix}.weight" for mix in _MIXES]
        if fused in sources:  # of folders until 2025
            names = [fused]
        parts = [sources.pop(name) for name in names if name in sources]
        if len(parts) < len(names):
            raise FormatError(f"layer {layer} lacks one of the tensors attn.x_r, x_w, … x_g")
        shape, of_all = (6, 1, 1, hidden), tuple(part.sources[0] for part in parts)
        sources[fused] = replace(parts[0], name=fused, shape=shape, sources=of_all)
    for i in range(3):
        name = f"blk.0.time_mix_v{i}.weight"
        if source := sources.get(f"blk.0.time_mix_a{i}.weight"):
            sources.setdefault(name, replace(source, name=name))
    last = f"blk.{config.size('num_hidden_layers') - 1}.time_mix_{{}}1.weight"
    return {
        f"rwkv7.attention.{name}_lora_rank": sources[last.format(part)].shape[0]
        for part, name in _RANKS.items() if last.format(part) in sources
    }  # fmt: skip


_RWKV7 = Family(
    architecture="rwkv7", metadata=_rwkv7, rope=None, layer_norm=True, rebuild=_as_in_gguf,
    must_be={"hidden_act": "sqrelu"},
    outside={
        "embeddings": "token_embd", "layers.0.pre_norm": "token_embd_norm", "norm": "output_norm",
        "lm_head": "output",
    },
    layer={
        "attn_norm": "attn_norm", "ffn_norm": "attn_norm_2", "attn.g_norm": "time_mix_ln",
        "attn.r_proj": "time_mix_receptance", "attn.k_proj": "time_mix_key",
        "attn.v_proj": "time_mix_value", "attn.o_proj": "time_mix_output",
        "ffn.key": "channel_mix_key", "ffn.value": "channel_mix_value",
        **{f"attn.{part}_lora.lora.0": f"time_mix_{part}1" for part in _RANKS},
        **{f"attn.{part}_lora.lora.2": f"time_mix_{part}2" for part in _RANKS},
    },
    whole={
        **{f"attn.{part}_lora.lora.2.bias": f"time_mix_{part}0.weight" for part in "wav"},
        **{f"attn.x_{mix}": f"time_mix_lerp_{mix}.weight" for mix in _MIXES},
        **{f"attn.{name}": f"time_mix_{name}.weight" for name in ("k_k", "k_a", "r_k")},
        "attn.x_x": "time_mix_lerp_fused.weight", "ffn.x_k": "channel_mix_lerp_k.weight",
    },
    rewrites=lambda *_: dict.fromkeys(
        ("time_mix_r_k", "channel_mix_lerp_k", "time_mix_lerp_fused",
         *(f"time_mix_lerp_{mix}" for mix in _MIXES)), flat,
    ),
    names={"layer_norm_epsilon": "norm_eps"},
    defaults={
        "num_attention_heads": 1, "hidden_act": "sqrelu", "layer_norm_epsilon": 1e-5,
        "head_dim": 64, "hidden_ratio": 4, "max_position_embeddings": 2048, "norm_first": True,
        "norm_bias": True, "tie_word_embeddings": False,
    },
)  # fmt: skip

ROWS: Mapping[str, Family] = {"rwkv7": _RWKV7, "rwkv7_fla": _RWKV7}
