"""How a model encodes positions: by rotation, or by biases that attention adds by distance.

*Rotary positions* (Su et al. 2021, arXiv 2104.09864): how far each pair of numbers rotates from one
position to the next, how models change this for longer texts, and GGUF's keys for it.

*Biases by distance* are added to attention's scores; a distance is a key's position minus the
query's. ALiBi is here; a bias of one architecture is in its module. Knows no architecture.
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
    """Fast pairs keep their frequency, slow pairs divide it by ``factor``, with a ramp between.

    Peng et al. 2023, arXiv 2309.00071.

    original_context  the context that the model was first trained for, in tokens
    fast, slow        a pair is fast if it rotates at least ``fast`` times within that context, and
                      slow if it rotates at most ``slow`` times
    truncates         whether the ramp must begin and end at a pair; False: it may do so between two
                      pairs (gpt-oss)
    """

    factor: float
    original_context: int
    fast: float = 32.0
    slow: float = 1.0
    truncates: bool = True

    @property
    def attention_factor(self) -> float:
        """The factor of queries and keys, which keeps attention as sharp as in short texts."""
        return 0.1 * log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def scale(self, frequencies: list[float], base: float) -> list[float]:
        """Scale the frequencies of all pairs."""
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

    dim               how many numbers of a head are rotated, counted from the first
    rotate_half       whether pair i is (i, i + dim / 2); if not, it is the neighbours (2i, 2i + 1)
    linear_factor     the divisor of positions (Chen et al. 2023, arXiv 2306.15595)
    attention_factor  the factor of the rotated numbers
    """

    dim: int
    base: float
    rotate_half: bool = False
    linear_factor: float = 1.0
    yarn: Yarn | None = None
    attention_factor: float = 1.0

    def frequencies(self, factors: Sequence[float] | None = None) -> list[float]:
        """Return how many radians each pair turns per position: base^(-2i / dim), scaled.

        factors: the model's own divisor for each pair, as in Llama 3.1 and Phi 4
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

    The rotated numbers are also multiplied by 1 + growth · log(1 + ⌊(position + offset) / period⌋).
    is_smooth: whether by 1 + growth · log(max((position + offset) / period, 1)) (Inkling 2)
    turns: whether these numbers are rotated at all; False in Llama 4
    """

    growth: float
    period: int
    offset: int = 0
    turns: bool = True
    is_smooth: bool = False

    def frequencies(self, factors: Sequence[float] | None = None) -> list[float]:
        """See ``Rope``."""
        return Rope.frequencies(self, factors) if self.turns else [0.0] * (self.dim // 2)


# -- rotary positions, read from a file's metadata -------------------------------------------------


_ROPE_TYPES = ("none", "linear", "yarn", "longrope")


def rope_of(read: MetadataReader, head_dim: int, *, interleaved: bool) -> Rope:
    """Read a rope. FormatError for a scaling that is not supported, or sizes that do not fit.

    interleaved: whether the two numbers of a rotated pair are neighbours
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
    """Raise FormatError if ``dim``, how many numbers rotate, is odd or more than a head has."""
    if dim > head_dim or dim % 2:
        raise FormatError(f"rope dimension {dim} does not fit a head of {head_dim}")


def growing(read: MetadataReader, rope: Rope, original: int) -> Rope:
    """Return the rope of queries, which in Ministral 3 grow beyond the original context.

    original: this context in tokens, 0 if the file has no key for it
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
    """Return Yarn's factor of attention, divided by the one by which DeepSeek scales scores."""
    weight = read.or_zero("rope.scaling.yarn_log_multiplier")
    whole = 1 + weight * 0.1 * log(yarn.factor) if yarn.factor > 1 else 1.0
    return yarn.attention_factor / whole


def _linear_factor(read: MetadataReader) -> float:
    """Return the factor of linear rope scaling, as llama.cpp reads it; 1 is no scaling."""
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
        truncates=read.flag("rope.scaling.yarn_truncates", True),  # files have no such key
    )


# -- biases of attention's scores by distance ------------------------------------------------------


Table = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Bias:
    """A bias that is added to scores by distance; this base class adds nothing.

    weight: the name of the tensor with the bias's learned numbers; "": it has none
    reads_keys: whether keys have an input of their own, so that a text must be read in one step
    """

    weight: ClassVar[str] = ""
    reads_keys: ClassVar[bool] = False

    @property
    def per_head(self) -> int:
        """How many numbers a head has in each input of the bias; 0: there are no inputs."""
        return 0

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:  # noqa: ARG002
        """Return biases (heads, 2 · reach + 1) from distance -reach on; none if inputs have them.

        weight: the learned numbers
        """
        return np.empty(0, np.float32)

    def rows(self, reach: int) -> NDArray[np.int32]:  # noqa: ARG002
        """Return an index into a head's numbers for each distance from -reach: (2 · reach + 1,).

        It is empty if only queries have an input: see ``LooksBack``.
        """
        return np.empty(0, np.int32)


NO_BIAS = Bias()


@dataclass(frozen=True, slots=True)
class LooksBack(Bias):
    """Each query's own numbers, by how far back a key is; beyond the last of them, 0 (Inkling 2).

    extent: how many numbers a head has
    """

    extent: int

    @property
    def per_head(self) -> int:
        """See ``Bias``."""
        return self.extent


@dataclass(frozen=True, slots=True)
class Alibi(Bias):
    """-slope · distance, the same to both sides (Press et al. 2021, arXiv 2108.12409).

    largest: sets the slopes, which are 2^(-largest · i / heads) for head i; 8 in the paper
    """

    largest: float = 8.0

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:  # noqa: ARG002
        """See ``Bias``."""
        power = 1 << int(log2(heads))
        slopes = [2 ** (-self.largest * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-self.largest / 2 * (2 * i + 1) / power) for i in range(heads - power)]
        distances = abs(np.arange(-reach, reach + 1, dtype=np.float64))
        return (-np.array(slopes)[:, None] * distances).astype(np.float32)
