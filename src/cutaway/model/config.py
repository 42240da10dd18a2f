"""ModelConfig: the sizes and constants of one model, read from its file's metadata.

Knows the metadata keys that the architectures share and refuses, by name, what is
not supported. Refuses to know how the layers are wired (architectures/).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.errors import FormatError

MAX_CONTEXT = 2**24
"""Tokens. No model has more, and its KV cache would not fit into any machine."""

_LARGEST = 1e15  # so that neither a number nor its inverse leaves float32

# What would change the text: the values of the key that change nothing, and what others mean.
_VARIANTS: Mapping[str, tuple[tuple[str | int, ...], str]] = {
    "expert_count": ((0,), "a mixture of experts"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers that a graph is built from. Sizes are in elements, context in tokens."""

    architecture: str
    context_length: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    rope_base: float
    rope_stretch: float  # positions count as so many times less: linear rope scaling
    norm_eps: float


class _Reader:
    """Typed look-ups with one clear sentence where a key is missing or absurd."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self.metadata, self.prefix = metadata, prefix

    def number(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if value is None:
            raise FormatError(f"the model file lacks the metadata key {self.prefix}.{key}")
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.flat[0].item()  # one value per layer, all the same
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if known and 1 / _LARGEST <= value <= _LARGEST:  # which NaN is not
            return float(value)
        raise FormatError(
            f"metadata key {self.prefix}.{key} must be a positive number of an ordinary size"
        )

    def size(self, key: str, default: int | None = None, most: int = 2**31) -> int:
        value = self.number(key, default)
        if value != int(value) or value > most:
            raise FormatError(
                f"metadata key {self.prefix}.{key} must be a whole number up to {most}"
            )
        return int(value)

    def refuse_variants(self) -> None:
        for key, (neutral, variant) in _VARIANTS.items():
            value = self.metadata.get(f"{self.prefix}.{key}", neutral[0])
            if not isinstance(value, (str, int, float)) or value not in neutral:
                raise FormatError(
                    f"{variant} is not supported ({self.prefix}.{key} is {value!r:.40}); "
                    "use a model without it"
                )

    def rope_stretch(self) -> float:
        """The factor of linear rope scaling, as llama.cpp reads it; 1 is none."""
        kind = self.metadata.get(f"{self.prefix}.rope.scaling.type", "linear")
        if not isinstance(kind, str) or kind not in ("none", "linear"):
            raise FormatError(
                f"rope scaling is not supported in this form ({self.prefix}.rope.scaling.type is "
                f"{kind!r:.40}); use a model with none, linear, or llama 3's"
            )
        for key in ("rope.scaling.factor", "rope.scale_linear"):
            value = self.metadata.get(f"{self.prefix}.{key}")
            if kind == "linear" and value is not None:
                none = isinstance(value, (int, float)) and value == 0
                return 1.0 if none else self.number(key)
        return 1.0


def config_from_gguf(metadata: Mapping[str, Any]) -> ModelConfig:
    """Read the sizes from GGUF metadata (keys as in llama.cpp's ``gguf-py/constants.py``).

    Raises FormatError naming the key that is missing, absurd or not supported.
    """
    architecture: str = metadata["general.architecture"]
    read = _Reader(metadata, architecture)
    read.refuse_variants()
    hidden, heads = read.size("embedding_length"), read.size("attention.head_count")
    head_dim = read.size("attention.key_length", max(hidden // heads, 1))
    kv_heads = read.size("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise FormatError(f"{heads} heads cannot be shared evenly by {kv_heads} kv heads")
    if read.size("attention.value_length", head_dim) != head_dim:
        raise FormatError("values whose head size differs from the keys' are not supported")
    rope_dim = read.size("rope.dimension_count", head_dim)
    if rope_dim > head_dim or rope_dim % 2:
        raise FormatError(f"rope dimension {rope_dim} does not fit a head of {head_dim}")
    return ModelConfig(
        architecture=architecture,
        context_length=read.size("context_length", most=MAX_CONTEXT),
        layers=read.size("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_dim=rope_dim,
        rope_base=read.number("rope.freq_base", 10000.0),
        rope_stretch=read.rope_stretch(),
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
    )
