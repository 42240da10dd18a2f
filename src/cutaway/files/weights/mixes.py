"""Which tensor becomes what when a model is quantised.

Knows llama.cpp's mixes: few tensors get more bits than the mix is named after, since errors in them
cost more. Does not know how numbers are quantised.

Source: `llama_tensor_get_type_impl` and `tensor_type_fallback` in `llama-quant.cpp` of llama.cpp.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from numbers import Integral
from types import MappingProxyType
from typing import Any

from cutaway.errors import FormatError
from cutaway.files.weights.file import TensorInfo
from cutaway.files.weights.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Mix:
    """The format that most matrices get, and the number by which a file says what it is."""

    format: str
    file_type: int  # enum llama_ftype


PLAIN_MIXES: Mapping[str, Mix] = MappingProxyType({
    "f16": Mix("F16", 1), "bf16": Mix("BF16", 32), "f32": Mix("F32", 0),
})  # fmt: skip
"""Those that quantise nothing."""

MIXES: Mapping[str, Mix] = MappingProxyType({
    "q8_0": Mix("Q8_0", 7), "q6_k": Mix("Q6_K", 18),
    "q5_k_m": Mix("Q5_K", 17), "q5_k_s": Mix("Q5_K", 16), "q5_1": Mix("Q5_1", 9),
    "q5_0": Mix("Q5_0", 8),
    "q4_k_m": Mix("Q4_K", 15), "q4_k_s": Mix("Q4_K", 14), "q4_1": Mix("Q4_1", 3),
    "q4_0": Mix("Q4_0", 2), "iq4_nl": Mix("IQ4_NL", 25), "iq4_xs": Mix("IQ4_XS", 30),
    "mxfp4": Mix("MXFP4", 38), "mxfp4_moe": Mix("MXFP4", 38),
    "q3_k_l": Mix("Q3_K", 13), "q3_k_m": Mix("Q3_K", 12), "q3_k_s": Mix("Q3_K", 11),
    "q2_k": Mix("Q2_K", 10),
})  # fmt: skip
"""By the names that people know them by, from many bits to few.

In mxfp4_moe only experts are MXFP4, and the others Q8_0; llama.cpp has no mxfp4.
"""

# Their numbers stay as they are: they are small, and much depends on them.
_KEPT = (
    "_norm", "ffn_gate_inp.weight", "ffn_gate_tid2eid", "position_embd", "token_types", "altup",
    "laurel", "per_layer_model_proj", "ssm_conv1d", "shortconv.conv", "indexer.k_proj",
    "indexer.q_proj", "attn_rel_b", ".rel_pos", ".patch_embd", ".patch_merger",
)  # fmt: skip
_TOKENS = ("token_embd.weight", "per_layer_token_embd.weight")
_VALUES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")
# Where rows are no whole quant blocks of 256, these have 32.
_FALLBACKS = {
    "IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}  # fmt: skip
_LAYER = re.compile(r"blk\.(\d+)")
# How many layers models have that llama.cpp counts as those of 70 billion parameters.
_LARGE = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


def is_matrix(info: TensorInfo) -> bool:
    """Whether a tensor is quantised: a matrix or a stack of them, and not one of a few kinds."""
    rows = prod(info.shape[:-1])  # one alone is a vector
    return rows > 1 and info.name.endswith("weight") and not any(p in info.name for p in _KEPT)


def formats_of(
    mix: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo],
    *, with_importance: bool = False,
) -> dict[str, str]:  # fmt: skip
    """The format that each matrix gets in a mix of MIXES or PLAIN_MIXES, by name.

    It may be one that the matrix's rows do not fit into: see ``fitting``.
    """
    matrices = [info for info in tensors.values() if is_matrix(info)]
    if mix in PLAIN_MIXES:
        return {info.name: PLAIN_MIXES[mix].format for info in matrices}
    chooser = _Chooser(mix, metadata, tensors, with_importance=with_importance)
    return {info.name: chooser.format(info) for info in sorted(matrices, key=_by_layer)}


def fitting(format: str, columns: int) -> str:
    """The same format, or what a matrix gets whose rows are no whole quant blocks of it."""
    for each in (format, _FALLBACKS.get(format)):
        if each and columns % FORMATS[each].quant_block_elements == 0:
            return each
    return "F16"


def _by_layer(info: TensorInfo) -> tuple[int, str]:
    return _layer(info.name), info.name


def _layer(name: str) -> int:
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


class _Chooser:
    """Goes through the matrices layer by layer, since some rules count those of their kind."""

    def __init__(
        self, mix: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo],
        *, with_importance: bool,
    ) -> None:  # fmt: skip
        architecture = metadata.get("general.architecture", "")

        def number(key: str, otherwise: int = 0) -> int:
            value = metadata.get(f"{architecture}.{key}", otherwise)
            plain = isinstance(value, (int, float, str)) or not len(value)
            first = value if plain else value[0]  # some have one for each layer
            if not isinstance(first, Integral):
                raise FormatError(f"{architecture}.{key} must be a whole number, not {first!r:.40}")
            return int(first)

        self._mix, self._base = mix, MIXES[mix].format
        self._layers, self._experts = number("block_count"), number("expert_count")
        heads = number("attention.head_count")
        kv_heads = number("attention.head_count_kv", heads)
        self._group = heads // kv_heads if kv_heads else 0  # query heads that share keys and values
        large = _LARGE.get(architecture) == self._layers
        self._is_large = large and (architecture != "llama" or heads != kv_heads)
        self._is_tied = "output.weight" not in tensors
        self._has_importance = with_importance
        self._values = sum(_is_values(name) for name in tensors)
        self._value, self._down = 0, 0  # how many of their kind came before

    def format(self, info: TensorInfo) -> str:
        name = info.name
        if name == "output.weight" or (self._is_tied and name in _TOKENS):
            return self._of_output(info)
        if self._base == "MXFP4":
            is_stack = len(info.shape) > 2 and info.shape[0] > 1
            return "MXFP4" if is_stack or self._mix == "mxfp4" else "Q8_0"
        if _is_values(name):
            found = self._of_values()
            self._value += 1
            return found
        if "ffn_down" in name:
            layer = _layer(name) if self._experts > 1 else self._down
            self._down += 1
            return self._of_down(layer)
        if "attn_k.weight" in name and self._experts == 8:
            return "Q8_0"
        return self._of_attention_output() if "attn_output.weight" in name else self._base

    def _of_output(self, info: TensorInfo) -> str:
        """Of the output matrix, whose errors are those of every logit."""
        fits = info.shape[-1] % FORMATS[self._base].quant_block_elements == 0
        return "Q8_0" if self._base in ("Q8_0", "MXFP4") or not fits else "Q6_K"

    def _of_values(self) -> str:
        """Of what makes values: small where heads share them, and their errors are not averaged."""
        if self._experts == 8:
            return "Q8_0"
        many = self._is_one_of_more(self._value, self._values)
        found = {
            "q2_k": "Q4_K" if self._group >= 4 else "Q3_K",
            "q3_k_m": "Q5_K" if self._value < 2 else "Q4_K",
            "q3_k_l": "Q5_K",
            "q4_k_s": "Q5_K" if self._value < 4 else "Q4_K",
            "q4_k_m": "Q6_K" if many else "Q4_K",
            "q5_k_m": "Q6_K" if many else "Q5_K",
            "iq4_nl": "Q5_K" if self._group >= 4 else "IQ4_NL",
            "iq4_xs": "Q5_K" if self._group >= 4 else "IQ4_XS",
        }.get(self._mix, self._base)
        return "Q5_K" if self._is_large and found in ("Q3_K", "Q4_K") else found

    def _of_attention_output(self) -> str:
        if self._experts == 8:
            low = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m", "iq4_nl", "iq4_xs")
            return "Q5_K" if self._mix in low else self._base
        return {"q2_k": "Q3_K", "q3_k_m": "Q4_K", "q3_k_l": "Q5_K"}.get(self._mix, self._base)

    def _of_down(self, layer: int) -> str:
        """Of the MLP's last matrix: the first layers' matter most."""
        eighth = layer < self._layers // 8
        found = {
            "q2_k": "Q3_K",
            "q3_k_m": "Q5_K" if layer < self._layers // 16 else "Q4_K",
            "q3_k_l": "Q5_K",
            "q4_k_s": "Q5_K" if eighth else "Q4_K",
            "q4_k_m": "Q6_K" if self._is_one_of_more(layer, self._layers) else "Q4_K",
            "q5_k_m": "Q6_K" if self._is_one_of_more(layer, self._layers) else "Q5_K",
        }.get(self._mix)
        if found is None and eighth:
            without = {"iq4_nl": "Q5_K", "iq4_xs": "Q5_K"}
            found = ({"q4_0": "Q4_1", "q5_0": "Q5_1"} if self._has_importance else without).get(
                self._mix
            )
        return found or self._base

    @staticmethod
    def _is_one_of_more(i: int, count: int) -> bool:
        """Whether it is one of those that get more bits: the first, the last, and every third."""
        return i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2


def _is_values(name: str) -> bool:
    return any(part in name for part in _VALUES)
