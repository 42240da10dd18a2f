"""The format that each tensor gets when a model is quantised.

Knows llama.cpp's mixes: a few tensors get more bits than the mix's name says, since errors in these
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
    """The format that most matrices get, and the number of the mix in a file's metadata."""

    format: str
    file_type: int  # enum llama_ftype


PLAIN_MIXES: Mapping[str, Mix] = MappingProxyType({
    "f16": Mix("F16", 1), "bf16": Mix("BF16", 32), "f32": Mix("F32", 0),
})  # fmt: skip
"""The mixes that quantise nothing."""

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
"""The mixes by their usual names, from many bits to few.

In mxfp4_moe only experts are MXFP4, and other matrices are Q8_0; llama.cpp has no mxfp4.
"""

# These are not quantised: they are small, and errors in them cost much.
_UNQUANTISED = (
    "_norm", "ffn_gate_inp.weight", "ffn_gate_tid2eid", "position_embd", "token_types", "altup",
    "laurel", "per_layer_model_proj", "ssm_conv1d", "shortconv.conv", "indexer.k_proj",
    "indexer.q_proj", "attn_rel_b", ".rel_pos", ".patch_embd", ".patch_merger",
)  # fmt: skip
_TOKENS = ("token_embd.weight", "per_layer_token_embd.weight")
_VALUES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")
# Replacements for rows that are no whole quant blocks of 256: blocks of these formats have 32.
_FALLBACKS = {
    "IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}  # fmt: skip
_LAYER = re.compile(r"blk\.(\d+)")
# Number of layers of the models that llama.cpp treats as those of 70 billion parameters.
_LARGE = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


def is_matrix(info: TensorInfo) -> bool:
    """Whether a tensor is quantised: a matrix or a stack of them, and not one of a few kinds."""
    rows = prod(info.shape[:-1])  # a single row is a vector
    return (
        rows > 1 and info.name.endswith("weight") and not any(p in info.name for p in _UNQUANTISED)
    )


def formats_of(
    mix: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo],
    *, with_importance: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Return the format of each matrix in a mix of MIXES or PLAIN_MIXES, by name.

    A matrix's rows may be no whole quant blocks of its format: see ``fitting``.
    """
    matrices = [info for info in tensors.values() if is_matrix(info)]
    if mix in PLAIN_MIXES:
        return {info.name: PLAIN_MIXES[mix].format for info in matrices}
    chooser = _Chooser(mix, metadata, tensors, with_importance=with_importance)
    return {info.name: chooser.format(info) for info in sorted(matrices, key=_layer_order)}


def fitting(format: str, columns: int) -> str:
    """Return the format, or a replacement if rows are no whole quant blocks of it."""
    for candidate in (format, _FALLBACKS.get(format)):
        if candidate and columns % FORMATS[candidate].quant_block_elements == 0:
            return candidate
    return "F16"


def _layer_order(info: TensorInfo) -> tuple[int, str]:
    return _layer(info.name), info.name


def _layer(name: str) -> int:
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


class _Chooser:
    """Chooses formats matrix by matrix, layer by layer: some rules count matrices of a kind."""

    def __init__(
        self, mix: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo],
        *, with_importance: bool,
    ) -> None:  # fmt: skip
        architecture = metadata.get("general.architecture", "")

        def number(key: str, otherwise: int = 0) -> int:
            value = metadata.get(f"{architecture}.{key}", otherwise)
            plain = isinstance(value, (int, float, str)) or not len(value)
            first = value if plain else value[0]  # some have a list, one for each layer
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
        self._value, self._down = 0, 0  # how many of each kind came before

    def format(self, info: TensorInfo) -> str:
        name = info.name
        if name == "output.weight" or (self._is_tied and name in _TOKENS):
            return self._output_format(info)
        if self._base == "MXFP4":
            is_stack = len(info.shape) > 2 and info.shape[0] > 1
            return "MXFP4" if is_stack or self._mix == "mxfp4" else "Q8_0"
        if _is_values(name):
            format = self._values_format()
            self._value += 1
            return format
        if "ffn_down" in name:
            layer = _layer(name) if self._experts > 1 else self._down
            self._down += 1
            return self._down_format(layer)
        if "attn_k.weight" in name and self._experts == 8:
            return "Q8_0"
        return self._attention_output_format() if "attn_output.weight" in name else self._base

    def _output_format(self, info: TensorInfo) -> str:
        """Return the output matrix's format: its errors are in every logit."""
        fits = info.shape[-1] % FORMATS[self._base].quant_block_elements == 0
        return "Q8_0" if self._base in ("Q8_0", "MXFP4") or not fits else "Q6_K"

    def _values_format(self) -> str:
        """Return the format for values.

        Values that heads share are few, so that their errors do not average out.
        """
        if self._experts == 8:
            return "Q8_0"
        gets_more = self._is_one_of_more(self._value, self._values)
        format = {
            "q2_k": "Q4_K" if self._group >= 4 else "Q3_K",
            "q3_k_m": "Q5_K" if self._value < 2 else "Q4_K",
            "q3_k_l": "Q5_K",
            "q4_k_s": "Q5_K" if self._value < 4 else "Q4_K",
            "q4_k_m": "Q6_K" if gets_more else "Q4_K",
            "q5_k_m": "Q6_K" if gets_more else "Q5_K",
            "iq4_nl": "Q5_K" if self._group >= 4 else "IQ4_NL",
            "iq4_xs": "Q5_K" if self._group >= 4 else "IQ4_XS",
        }.get(self._mix, self._base)
        return "Q5_K" if self._is_large and format in ("Q3_K", "Q4_K") else format

    def _attention_output_format(self) -> str:
        if self._experts == 8:
            low = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m", "iq4_nl", "iq4_xs")
            return "Q5_K" if self._mix in low else self._base
        return {"q2_k": "Q3_K", "q3_k_m": "Q4_K", "q3_k_l": "Q5_K"}.get(self._mix, self._base)

    def _down_format(self, layer: int) -> str:
        """Return the format of the MLP's last matrix: those of the first layers matter most."""
        eighth = layer < self._layers // 8
        format = {
            "q2_k": "Q3_K",
            "q3_k_m": "Q5_K" if layer < self._layers // 16 else "Q4_K",
            "q3_k_l": "Q5_K",
            "q4_k_s": "Q5_K" if eighth else "Q4_K",
            "q4_k_m": "Q6_K" if self._is_one_of_more(layer, self._layers) else "Q4_K",
            "q5_k_m": "Q6_K" if self._is_one_of_more(layer, self._layers) else "Q5_K",
        }.get(self._mix)
        if format is None and eighth:
            without = {"iq4_nl": "Q5_K", "iq4_xs": "Q5_K"}
            format = ({"q4_0": "Q4_1", "q5_0": "Q5_1"} if self._has_importance else without).get(
                self._mix
            )
        return format or self._base

    @staticmethod
    def _is_one_of_more(i: int, count: int) -> bool:
        """Whether a layer gets more bits.

        Those of the first and the last eighth do, and every third layer between them.
        """
        return i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2


def _is_values(name: str) -> bool:
    return any(part in name for part in _VALUES)
