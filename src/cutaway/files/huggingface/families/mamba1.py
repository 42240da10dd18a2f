"""The families with Mamba 1: Mamba, Falcon-Mamba, Jamba; names of tensors and keys.

Their graphs are in ``compute/model/architectures/mamba1.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from cutaway.files.huggingface.families.family import (
    ATTENTION,
    OUTSIDE,
    SILU,
    Family,
    mlp,
)
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Rewrite, Squeezed, minus_exp

# -- keys ------------------------------------------------------------------------------------------


def mamba(config: JsonObject) -> dict[str, Any]:
    """Return the keys of a model of Mamba 1 alone, which in GGUF has no heads of attention."""
    return _scan(config) | {
        "feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0,
        "attention.key_length": 0, "attention.value_length": 0,
    }  # fmt: skip


def falcon_mamba(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Mamba 1 with norms of steps, keys and queries."""
    return mamba(config) | {
        "ssm.dt_b_c_rms": True, "ssm.dt_b_c_rms_epsilon": config.positive("mixer_rms_eps"),
    }  # fmt: skip


def jamba(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Jamba: which layers attend, and how many experts there are, if any."""
    layers, period = config.size("num_hidden_layers"), config.size("attn_layer_period")
    attends = [layer % period == config.get("attn_layer_offset") for layer in range(layers)]
    kv_heads = config.size("num_key_value_heads")
    metadata = _scan(config) | {
        "attention.head_count_kv": np.array(attends, np.int32) * np.int32(kv_heads)
    }
    if (experts := config.size("num_experts")) > 1:
        used = config.size("num_experts_per_tok")
        metadata |= {"expert_count": experts, "expert_used_count": used}
    return metadata


def _scan(config: JsonObject) -> dict[str, Any]:
    hidden = config.size("hidden_size")
    if config.get("time_step_rank") in (None, "auto"):
        config = config.with_defaults({"time_step_rank": ""}, {"time_step_rank": ceil(hidden / 16)})
    wide = int(config.number("expand") * hidden)
    return {
        "ssm.conv_kernel": config.size("conv_kernel"),
        "ssm.state_size": config.size("state_size"),
        "ssm.time_step_rank": config.size("time_step_rank"),
        "ssm.inner_size": config.with_defaults({}, {"inner_width": wide}).size("inner_width"),
    }


# -- names and rewrites of tensors -----------------------------------------------------------------


def _names(mixer: str) -> dict[str, str]:
    """Return the names of Mamba 1's tensors; mixer: what they begin with."""
    names = {
        "in_proj": "in", "conv1d": "conv1d", "x_proj": "x", "dt_proj": "dt", "out_proj": "out",
        "dt_layernorm": "dt_norm", "b_layernorm": "b_norm", "c_layernorm": "c_norm",
    }  # fmt: skip
    return {f"{mixer}.{old}": f"ssm_{new}" for old, new in names.items()}


def _whole(mixer: str) -> dict[str, str]:
    return {f"{mixer}.A_log": "ssm_a", f"{mixer}.D": "ssm_d"}


_REWRITES: Mapping[str, Rewrite] = {"ssm_a": minus_exp, "ssm_conv1d": Squeezed()}
_MAMBA = Family(
    architecture="mamba", prefixes=("backbone.",), metadata=mamba, rope=None,
    outside={"embeddings": "token_embd", "norm_f": "output_norm", "lm_head": "output"},
    layer={"norm": "attn_norm"} | _names("mixer"), whole=_whole("mixer"),
    rewrites=lambda _heads, _kv_heads: _REWRITES,
    names={"rms_norm_eps": "layer_norm_epsilon", "inner_width": "intermediate_size"},
    defaults={"num_attention_heads": 1, "max_position_embeddings": 2**20},
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "mamba": _MAMBA,
    "falcon_mamba": replace(_MAMBA, metadata=falcon_mamba),
    "jamba": replace(
        _MAMBA, architecture="jamba", prefixes=("model.",), metadata=jamba, must_be=SILU,
        outside=OUTSIDE | {"final_layernorm": "output_norm"},
        layer=ATTENTION | mlp("feed_forward") | _names("mamba") | {
            "pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp",
            "feed_forward.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
            "feed_forward.experts.down_proj": "ffn_down_exps",
        },
        whole=_whole("mamba"), experts=mlp("feed_forward.experts.{}", "_exps"),
        experts_turned=False, defaults={},
        names={
            "state_size": "mamba_d_state", "conv_kernel": "mamba_d_conv",
            "expand": "mamba_expand", "time_step_rank": "mamba_dt_rank",
        },
    ),
}  # fmt: skip
