"""A model's rope, read from its file's metadata. Knows GGUF's keys of it, and no architecture."""

from math import log

from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.rope import GrowingRope, Rope, Yarn
from cutaway.errors import FormatError

_ROPE_TYPES = ("none", "linear", "yarn", "longrope")


def rope_of(
    read: MetadataReader, head_dim: int, *, interleaved: bool, yarn_truncates: bool = True,
    sharpens: bool = True,
) -> Rope:  # fmt: skip
    """FormatError for a scaling that is not supported, or numbers that do not fit the head.

    interleaved: whether a rotated pair are neighbours; yarn_truncates: see ``Yarn``;
    sharpens: whether what is rotated grows under yarn; else scores do: ``latent_sharpness``
    """
    dim = read.size("rope.dimension_count", head_dim)
    check_dim(dim, head_dim)
    kind = read.value("rope.scaling.type", "linear")
    if not isinstance(kind, str) or kind not in _ROPE_TYPES:
        raise FormatError(
            f"rope scaling {kind!r:.40} is not supported ({read.prefix}.rope.scaling.type); "
            f"supported: {', '.join(_ROPE_TYPES)}, and llama 3's"
        )
    yarn = _yarn(read, truncates=yarn_truncates) if kind == "yarn" else None
    own = read.number("rope.scaling.attn_factor", 1.0)
    return Rope(
        dim=dim,
        base=read.number("rope.freq_base", 10000.0),
        rotate_half=not interleaved,
        linear_factor=_linear_factor(read) if kind in ("linear", "longrope") else 1.0,
        yarn=yarn,
        attention_factor=own * (_sharpness(read, yarn) if yarn and sharpens else 1.0),
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


def latent_sharpness(read: MetadataReader, rope: Rope) -> float:
    """By whose square scores grow under yarn; files have the weight of the logarithm itself."""
    weight = read.or_zero("rope.scaling.yarn_log_multiplier")
    return 1 + weight * log(rope.yarn.factor) if rope.yarn and rope.yarn.factor > 1 else 1.0


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


def _yarn(read: MetadataReader, *, truncates: bool) -> Yarn:
    return Yarn(
        factor=read.number("rope.scaling.factor"),
        original_context=read.size("rope.scaling.original_context_length"),
        fast=read.number("rope.scaling.yarn_beta_fast", 32.0),
        slow=read.number("rope.scaling.yarn_beta_slow", 1.0),
        truncates=truncates,
    )
