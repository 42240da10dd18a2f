"""How a model knows where a token is: rotary positions, or what attention adds by distance.

*Rotary positions* (Su et al. 2021, arXiv 2104.09864): how far each pair of numbers rotates from one
position to the next, how models extend that to longer texts, and GGUF's keys of it.

*Distances*, key minus query: what attention adds to scores by them. A subclass of ``Bias`` is in
the module of the architecture that has it. Knows no architecture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log, pi
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError

# -- rotary positions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """Fast pairs keep their frequency, slow ones are divided by ``factor``, with a ramp between.

    Peng et al. 2023, arXiv 2309.00071.

    original_context  tokens that the model was first trained for
    fast, slow        a pair that rotates at least, or at most, so often within that many tokens is
                      fast, or slow
    truncates         whether the ramp begins and ends at a pair, not in between (gpt-oss)
    """

    factor: float
    original_context: int
    fast: float = 32.0
    slow: float = 1.0
    truncates: bool = True

    @property
    def attention_factor(self) -> float:
        """The factor of queries and keys, which keeps attention as sharp."""
        return 0.1 * log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def scale(self, frequencies: list[float], base: float) -> list[float]:
        """The frequencies of all pairs."""
        last = 2 * len(frequencies) - 1
        low, high = (
            len(frequencies) * log(self.original_context / (rotations * 2 * pi)) / log(base)
            for rotations in (self.fast, self.slow)
        )
        if self.truncates:
            low, high = floor(low), ceil(high)
        first, end = max(low, 0), min(high, last)
        width = max(end - first, 0.001)
        ramps = [min(max((i - first) / width, 0.0), 1.0) for i in range(len(frequencies))]
        pairs = zip(frequencies, ramps, strict=True)
        return [f / self.factor * ramp + f * (1 - ramp) for f, ramp in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How one model rotates its queries and keys.

    dim               numbers of a head that are rotated, the first ones
    rotate_half       whether pair i is (i, i + dim / 2); else the neighbours (2i, 2i + 1)
    linear_factor     positions are divided by it (Chen et al. 2023, arXiv 2306.15595)
    attention_factor  by which the rotated numbers are multiplied
    """

    dim: int
    base: float
    rotate_half: bool = False
    linear_factor: float = 1.0
    yarn: Yarn | None = None
    attention_factor: float = 1.0

    def frequencies(self, factors: Sequence[float] | None = None) -> list[float]:
        """Radians a position of each pair: base^(-2i / dim), scaled.

        factors: the model's own divisor of each pair, as llama 3.1 and phi 4 have them
        """
        plain = [self.base ** (-2.0 * i / self.dim) for i in range(self.dim // 2)]
        if factors is not None:
            if not all(0 < factor < inf for factor in factors):
                raise FormatError(
                    "the model's rope factors must be positive numbers: convert it again"
                )
            plain = [f / float(factor) for f, factor in zip(plain, factors, strict=True)]
        if self.yarn is not None:
            return self.yarn.scale(plain, self.base)
        return [f / self.linear_factor for f in plain] if self.linear_factor != 1 else plain


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingRope(Rope):
    """A rope of queries that grow with their positions, as in Ministral 3 and Llama 4.

    What is rotated is multiplied by 1 + growth · log(1 + ⌊(position + offset) / period⌋), too.
    turns: whether anything is rotated; else that is all (Llama 4)
    """

    growth: float
    period: int
    offset: int = 0
    turns: bool = True

    def frequencies(self, factors: Sequence[float] | None = None) -> list[float]:
        """See ``Rope``."""
        return Rope.frequencies(self, factors) if self.turns else [0.0] * (self.dim // 2)


# -- rotary positions, read from a file's metadata -------------------------------------------------


_ROPE_TYPES = ("none", "linear", "yarn", "longrope")


def rope_of(read: MetadataReader, head_dim: int, *, interleaved: bool) -> Rope:
    """FormatError for a scaling that is not supported, or numbers that do not fit the head.

    interleaved: whether a rotated pair are neighbours
    """
    dim = read.size("rope.dimension_count", head_dim)
    check_dim(dim, head_dim)
    kind = read.value("rope.scaling.type", "linear")
    if not isinstance(kind, str) or kind not in _ROPE_TYPES:
        raise FormatError(
            f"rope scaling {kind!r:.40} is not supported ({read.prefix}.rope.scaling.type); "
            f"supported: {', '.join(_ROPE_TYPES)}, and llama 3's"
        )
    yarn = _yarn(read) if kind == "yarn" else None
    factor = read.number("rope.scaling.attn_factor", 1.0)
    return Rope(
        dim=dim,
        base=read.number("rope.freq_base", 10000.0),
        rotate_half=not interleaved,
        linear_factor=_linear_factor(read) if kind in ("linear", "longrope") else 1.0,
        yarn=yarn,
        attention_factor=factor * (_sharpness(read, yarn) if yarn else 1.0),
    )


def check_dim(dim: int, head_dim: int) -> None:
    """FormatError for a number of rotated numbers that a head has not, or that make no pairs."""
    if dim > head_dim or dim % 2:
        raise FormatError(f"rope dimension {dim} does not fit a head of {head_dim}")


def growing(read: MetadataReader, rope: Rope, original: int) -> Rope:
    """The rope of queries, which in Ministral 3 grow beyond what it was first trained for.

    original: the tokens of that, 0 where the file does not say
    """
    growth = read.or_zero("attention.temperature_scale")
    if not growth:
        return rope
    if not original:
        raise FormatError(
            f"{read.prefix}.attention.temperature_scale is there, and "
            f"{read.prefix}.rope.scaling.original_context_length is not: convert the model again"
        )
    fields = {name: getattr(rope, name) for name in rope.__dataclass_fields__}
    return GrowingRope(**fields, growth=growth, period=original)


def _sharpness(read: MetadataReader, yarn: Yarn) -> float:
    """Yarn's own factor of attention, by the one that DeepSeek and Mistral scale scores by."""
    weight = read.or_zero("rope.scaling.yarn_log_multiplier")
    whole = 1 + weight * 0.1 * log(yarn.factor) if yarn.factor > 1 else 1.0
    return yarn.attention_factor / whole


def _linear_factor(read: MetadataReader) -> float:
    """The factor of linear rope scaling, as llama.cpp reads it; 1 is none."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if read.value(key) is not None:
            return read.or_zero(key) or 1.0
    return 1.0


def _yarn(read: MetadataReader) -> Yarn:
    return Yarn(
        factor=read.number("rope.scaling.factor"),
        original_context=read.size("rope.scaling.original_context_length"),
        fast=read.number("rope.scaling.yarn_beta_fast", 32.0),
        slow=read.number("rope.scaling.yarn_beta_slow", 1.0),
        truncates=read.flag("rope.scaling.yarn_truncates", True),  # files do not say it
    )


# -- what attention adds to scores by how far a token is -------------------------------------------


Table = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to scores: nothing, unless a subclass says so.

    weight: the tensor of numbers that were learned for it; "": none
    """

    weight: ClassVar[str] = ""

    @property
    def per_head(self) -> int:
        """Numbers that each head's query and key have for it, as two more inputs; 0: none."""
        return 0

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:  # noqa: ARG002
        """Return (heads, 2 · reach + 1), from distance -reach on; empty where inputs have it.

        weight: what was learned
        """
        return np.empty(0, np.float32)

    def rows(self, reach: int) -> NDArray[np.int32]:  # noqa: ARG002
        """Return which number of its inputs each distance has, (2 · reach + 1,), from -reach on."""
        return np.empty(0, np.int32)


NO_BIAS = Bias()
