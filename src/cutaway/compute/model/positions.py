"""How a model knows where a token is: rotary positions, or what attention adds by distance.

*Rotary positions* (Su et al. 2021, arXiv 2104.09864): how far each pair of numbers rotates from one
position to the next, how models extend that to longer texts, and GGUF's keys of it.

*Distances*, key minus query, of ALiBi, MPNet's biases and DeBERTa's rows: the numbers for each
head, or which row a distance has. Knows no architecture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log, log2, pi
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
        """By which queries and keys grow, so that attention stays as sharp."""
        return 0.1 * log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def scaled(self, frequencies: list[float], base: float) -> list[float]:
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
            return self.yarn.scaled(plain, self.base)
        return [f / self.linear_factor for f in plain] if self.linear_factor != 1 else plain


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingRope(Rope):
    """Of queries that grow with their positions, as Llama 4's do (Ministral 3).

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
    own = read.number("rope.scaling.attn_factor", 1.0)
    return Rope(
        dim=dim,
        base=read.number("rope.freq_base", 10000.0),
        rotate_half=not interleaved,
        linear_factor=_linear_factor(read) if kind in ("linear", "longrope") else 1.0,
        yarn=yarn,
        attention_factor=own * (_sharpness(read, yarn) if yarn else 1.0),
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

    weight       the tensor of numbers that were learned for it; "": none
    reads_inputs whether it is said by queries and keys, which attention has as two more inputs
    """

    weight: ClassVar[str] = ""
    reads_inputs: ClassVar[bool] = False

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:  # noqa: ARG002
        """(heads, 2 · reach + 1), from distance -reach on; empty where it depends on more.

        weight: what was learned
        """
        return np.empty(0, np.float32)

    def rows(self, reach: int) -> NDArray[np.int32]:  # noqa: ARG002
        """Which row of its inputs each distance has, (2 · reach + 1,), from -reach on."""
        return np.empty(0, np.int32)


NO_BIAS = Bias()


@dataclass(frozen=True, slots=True)
class Alibi(Bias):
    """Minus a slope times the distance, to both sides alike (Press et al. 2021, arXiv 2108.12409).

    largest: of the biases, 8 in the paper; slopes are 2^(-largest · i / heads)
    """

    largest: float = 8.0

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:  # noqa: ARG002
        """See ``Bias``."""
        power = 1 << int(log2(heads))
        slopes = [2 ** (-self.largest * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-self.largest / 2 * (2 * i + 1) / power) for i in range(heads - power)]
        distances = abs(np.arange(-reach, reach + 1, dtype=np.float64))
        return (-np.array(slopes)[:, None] * distances).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Buckets(Bias):
    """A learned number for each head and bucket of distances, as T5 has it (arXiv 1910.10683).

    Half of the buckets are for tokens behind; of each half the first half are single distances,
    the others grow with the logarithm up to ``farthest``.
    """

    weight: ClassVar[str] = "position_bias"
    farthest: int = 128

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:
        """See ``Bias``; weight: (buckets, heads)."""
        assert weight is not None
        assert weight.shape[1] == heads
        half = len(weight) // 2
        buckets = [
            self._bucket(abs(d), half) + (half if d > 0 else 0) for d in range(-reach, reach + 1)
        ]
        return np.ascontiguousarray(weight[buckets].T, np.float32)

    def _bucket(self, distance: int, count: int) -> int:
        exact = count // 2
        if distance < exact:
            return distance
        share = np.float32(log(distance / exact)) / np.float32(log(self.farthest / exact))
        return min(exact + int(share * (count - exact)), count - 1)


@dataclass(frozen=True, slots=True)
class Relative(Bias):
    """Which of 2 · span rows a distance has, query minus key (He et al. 2020, arXiv 2006.03654).

    farthest: up to half of the span each distance has a row of its own, and from there on they
              grow with the logarithm up to this one (v2, v3); 0: all have, up to the span
    """

    reads_inputs: ClassVar[bool] = True
    span: int
    farthest: int = 0

    def rows(self, reach: int) -> NDArray[np.int32]:
        """See ``Bias``."""
        distances = np.arange(-reach, reach + 1)
        buckets = self._buckets(distances) if self.farthest else distances
        return np.clip(buckets + self.span, 0, 2 * self.span - 1).astype(np.int32)

    def _buckets(self, distances: NDArray[np.int64]) -> NDArray[np.int64]:
        """In float32, as the model was trained: a distance near a bucket's end is rounded there."""
        middle = self.span // 2
        apart = np.maximum(abs(distances), middle).astype(np.float32)
        share = np.log(apart / np.float32(middle)) / np.log(
            np.float32((self.farthest - 1) / middle)
        )
        grown = np.ceil(share * np.float32(middle - 1)).astype(np.int64) + middle
        return np.where(abs(distances) <= middle, distances, np.sign(distances) * grown)
