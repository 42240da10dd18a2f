"""Apertus: names and keys, and the learned constants of its activation.

Its graph is in ``compute/model/architectures/apertus.py``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cutaway.errors import FormatError
from cutaway.files.huggingface.families.family import HEAD_NORMS, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards, Sources
from cutaway.files.weights.cursor import quote

_XIELU = ("alpha_p", "alpha_n", "beta", "eps")


def _constants(_: Sources, config: JsonObject, shards: Shards) -> dict[str, Any]:
    """Read the learned constants of Apertus' activation: each layer has a tensor for each."""
    layers, name = config.size("num_hidden_layers"), "model.layers.{}.mlp.act_fn.{}"
    return {
        f"xielu.{key}": np.array(
            [_number(shards, name.format(i, key)) for i in range(layers)], np.float32
        )
        for key in _XIELU
    }


def _number(shards: Shards, name: str) -> float:
    if name not in shards:
        raise FormatError(f"the tensor {quote(name)} is missing; download the model again")
    numbers = shards.part(name)
    if numbers.size != 1:
        raise FormatError(f"the tensor {quote(name)} has {numbers.size} numbers, not one")
    return float(numbers.reshape(-1)[0])


ROWS: Mapping[str, Family] = {
    "apertus": Family(
        architecture="apertus", must_be={"hidden_act": "xielu"}, rebuild=_constants,
        skipped=tuple(f".mlp.act_fn.{key}" for key in _XIELU),
        layer={
            "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
            "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
            "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        } | HEAD_NORMS,
    ),
}  # fmt: skip
