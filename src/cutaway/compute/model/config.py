"""A model's config: its sizes and constants, what its architecture takes for granted, its metadata.

``ModelConfig`` knows not where it was read. Reading knows the metadata keys that the architectures
share, and refuses, by name, what is not supported. What an architecture takes for granted where its
files do not say is a row of ``ARCHITECTURES``; what each layer has is read by `layers`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.layers import (
    Attention,
    Latent,
    OwnHeads,
    StateHeads,
    Xielu,
    heads_of,
    latent_of,
    own_heads_of,
    recurrent_layers,
    state_heads,
    windows_of,
    xielu_of,
)
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture, mixture_of
from cutaway.compute.model.positions import (
    Relative,
    Rope,
    check_dim,
    growing,
    latent_sharpness,
    rope_of,
)
from cutaway.errors import FormatError

# -- sizes and constants ---------------------------------------------------------------------------


MAX_CONTEXT = 2**24
"""Tokens. No model has more, and its KV cache would not fit into any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers that a graph is built from. Sizes are in elements, context in tokens.

    attention          which tokens a token attends to: "causal", itself and those before it;
                       "bidirectional", all of its text; a number, block-causal: all to the end of
                       its own block of this many tokens, counted from the first
    shift              whether a row predicts the next position, where attention is not causal
    learned_positions  whether positions are vectors that are added, not rotations
    rope, rope_local   of the layers that see the whole text, and of those that see a window
    unrun_layers       blocks after these that guess tokens ahead (MTP): a draft head at most
    rope_queries       of the queries of layers that see the whole text
    extends_context    whether texts may be longer than the model was first trained for
    windows            tokens that a row of each layer attends to, its own included, or where
                       attention is bidirectional how many to each side; 0: all
    recurrent          whether each layer has a recurrent state instead of attention
    state_heads        of layers that are gated delta nets or Mamba 2; None where none is
    relative           how distances have rows of a matrix (DeBERTa); None where they have none
    is_rotated         whether attention has rotary positions
    own_heads          of each layer where layers differ, and head_dim is the largest; else empty
    latent             what is stored of a token in place of keys and values; None where these are
    activation         of an MLP: "gelu", "gelu_tanh", "silu"; "" where it is the wiring's own
    xielu              of an MLP with xIELU, its constants by layer; else empty
    temperature_*      of queries in layers without positions: see ``GrowingRope``; 0: they stay
    attention_scale    of scores before the softmax
    *_softcap          largest score or logit, approached smoothly; 0: none
    *_scale            of the embedding and of what a layer adds; logits are divided by logit_scale
    experts            of a layer that has some; 0 where none has
    mixture            how they are chosen; None where there are none
    """

    architecture: str
    context_length: int
    attention: Attention
    shift: bool
    layers: int
    unrun_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    learned_positions: bool
    rope: Rope
    rope_queries: Rope
    rope_local: Rope
    extends_context: bool
    windows: tuple[int, ...]
    recurrent: tuple[bool, ...]
    state_heads: StateHeads | None
    relative: Relative | None
    is_rotated: bool
    own_heads: tuple[OwnHeads, ...]
    latent: Latent | None
    activation: str
    xielu: tuple[Xielu, ...]
    temperature_growth: float
    temperature_period: int
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    norm_eps: float
    is_parallel: bool  # attention and MLP of a layer read the same input
    experts: int
    mixture: Mixture | None

    @property
    def experts_used(self) -> int:
        """How many experts of a layer compute a token."""
        return self.mixture.used if self.mixture else 0

    @property
    def is_causal(self) -> bool:
        """Whether a token attends to itself and those before it alone, so that texts can grow."""
        return self.attention == "causal"


# -- how models of one name are wired, and what their files leave unsaid ---------------------------


_MIXTURE = Mixture(used=1)  # as most are: a softmax, normed


@dataclass(frozen=True, slots=True)
class Architecture:
    """How an architecture is wired, and what its files leave unsaid, as llama.cpp has it.

    build                adds its ops to a graph; returns the logits, or the rows of a head
    layer_norm           norms subtract the mean; files name their epsilon differently
    learned_positions    vectors that are added to the tokens', not rotations
    interleaved_rope     a rotated pair are neighbours, not a half of the rotated numbers apart
    yarn_truncates       see ``Yarn``
    is_causal, shift, is_parallel, window, *_softcap  see ``ModelConfig``
    mixture              what files do not say of it: how many experts are used, they do
    biased_gating        GGUF's number of the gating of files that do not say it, and add a bias for
                         the choice of experts (DeepSeek V3, not V2); 0: the same as of others
    full_every           of this many layers one sees the whole text: the last, or the first
    has_own_heads        layers differ in their heads: ``OwnHeads``
    has_latent           what is stored of a token is a latent: ``Latent``
    has_relative         distances have rows of a matrix: ``Relative``
    has_states           layers without kv heads keep a recurrent state instead, or all do
    attends_every        or all do but every so-many-th, unless files say another number
    activations          of an MLP: GGUF's name -> ``ModelConfig.activation``, the usual one first
    local_base           of the rope of layers that see a window; 0: the same as of the others
    multiplies_logits    files have the factor of logits, not the divisor
    attention_scale      of scores; 0: by the heads' width
    scaled_by_width_at   layers of the one model of the family that scales attention's scores by
                         hidden / heads, not by the heads' own width
    temperature          of layers without positions: how much queries grow, after how many tokens
    layer                adds one layer by its number, of those whose files may have a draft head
    must_be              keys of which other values would be another graph; the first is the usual
    """

    build: Callable[[Graph, ModelConfig], Tensor]
    _: KW_ONLY
    layer_norm: bool = False
    learned_positions: bool = False
    interleaved_rope: bool = False
    yarn_truncates: bool = True
    is_causal: bool = True
    shift: bool = False
    is_parallel: bool = False
    mixture: Mixture = _MIXTURE
    biased_gating: int = 0
    window: int = 0
    full_every: int = 0
    full_first: bool = False
    has_own_heads: bool = False
    has_latent: bool = False
    has_relative: bool = False
    has_states: bool = False
    attends_every: int = 0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    activations: Mapping[str, str] = field(default_factory=dict)
    local_base: float = 10000.0
    multiplies_logits: bool = False
    attention_scale: float = 0.0
    scaled_by_width_at: int = 0
    temperature: tuple[float, int] = (0.0, 0)
    layer: Callable[[Graph, ModelConfig, Tensor, int], Tensor] | None = None
    must_be: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


# -- reading a file's metadata ---------------------------------------------------------------------


_MOST_LAYERS = 10_000
_HEADS = "attention.head_count"

# What would change the numbers in a way that no graph here has; the first value is the usual one.
_MUST_BE: Mapping[str, tuple[float, ...]] = {
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "router_logit_softcapping": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
}


def config_from_gguf(
    metadata: Mapping[str, Any], row: Architecture, context: int | None = None
) -> ModelConfig:
    """Read the sizes from GGUF metadata (keys as in llama.cpp's ``gguf-py/constants.py``).

    row: the file's architecture
    context: the tokens that texts may have; None is as many as the model can.
    Raises FormatError naming the key that is missing, absurd or not supported.
    """
    read = MetadataReader(metadata, metadata["general.architecture"])
    growth, period = _temperature(read, row)
    for key, values in {**_MUST_BE, **row.must_be}.items():
        read.must_be(key, *values)
    hidden, (layers, unrun) = read.size("embedding_length"), _layers(read)
    attention = _attention(read, row)
    latent = latent_of(read) if row.has_latent else None
    windows = _windows(read, row, layers, attention)
    own_heads = own_heads_of(read, windows) if row.has_own_heads else ()
    heads, kv_heads, head_dim = _heads(read, row, latent, own_heads)
    width = head_dim or 2  # where nothing attends, none is rotated either
    longest = read.size("context_length", most=MAX_CONTEXT)
    original = read.size_or_zero("rope.scaling.original_context_length")
    rope = _rope(read, row, width, latent)
    experts = read.size_or_zero("expert_count")
    return ModelConfig(
        architecture=read.prefix, context_length=longest, attention=attention,
        shift=MetadataReader(metadata, "diffusion").flag("shift_logits", row.shift),
        layers=layers, unrun_layers=unrun, hidden=hidden,
        heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        learned_positions=row.learned_positions, rope=rope,
        rope_local=_local(read, row, rope, width),
        rope_queries=rope if period else growing(read, rope, original),
        extends_context=(context or longest) > (original or longest),
        windows=windows, recurrent=_recurrent(read, row, layers, attention),
        state_heads=state_heads(read), relative=_relative(read) if row.has_relative else None,
        is_rotated=read.flag("rope.scaling.finetuned", True),
        own_heads=own_heads, latent=latent,
        activation=_activation(read, row), xielu=xielu_of(metadata, layers),
        temperature_growth=growth, temperature_period=period,
        attention_scale=_scale(
            read, row, rope, latent, hidden / heads if layers == row.scaled_by_width_at else width
        ),
        attention_softcap=read.or_zero("attn_logit_softcapping", row.attention_softcap),
        logit_softcap=read.or_zero("final_logit_softcapping", row.logit_softcap),
        embedding_scale=read.or_zero("embedding_scale") or 1.0,
        residual_scale=read.or_zero("residual_scale") or 1.0,
        logit_scale=_logit_scale(read, row),
        norm_eps=read.number(f"attention.layer_norm{'' if row.layer_norm else '_rms'}_epsilon"),
        is_parallel=read.flag("use_parallel_residual", row.is_parallel),
        experts=experts, mixture=mixture_of(read, row.mixture, experts) if experts else None,
    )  # fmt: skip


def _layers(read: MetadataReader) -> tuple[int, int]:
    """Those of the model, and those behind them that guess tokens ahead; files count both."""
    layers = read.size("block_count", most=_MOST_LAYERS)
    unrun = read.size_or_zero("nextn_predict_layers")
    if unrun >= layers:
        raise FormatError(
            f"{read.prefix}.nextn_predict_layers is {unrun} of {layers} layers, which leaves none"
        )
    return layers - unrun, unrun


def _recurrent(
    read: MetadataReader, row: Architecture, layers: int, attention: Attention
) -> tuple[bool, ...]:
    """Whether each layer has a state."""
    found = recurrent_layers(
        read, layers, has_states=row.has_states, attends_every=row.attends_every
    )
    if any(found) and attention != "causal":
        raise FormatError(
            f"{read.prefix}: layers with a recurrent state read no token after theirs"
        )
    return found


def _windows(
    read: MetadataReader, row: Architecture, layers: int, attention: Attention
) -> tuple[int, ...]:
    """Of each layer; see ``ModelConfig``."""
    return windows_of(
        read, layers, attention,
        usual=row.window, full_every=row.full_every, full_first=row.full_first,
    )  # fmt: skip


def _heads(
    read: MetadataReader, row: Architecture, latent: Latent | None, own: Sequence[OwnHeads]
) -> tuple[int, int, int]:
    """Heads of queries, those of keys and values, and numbers of one: the largest, of its own."""
    heads = read.size_or_zero(_HEADS) if row.has_states else read.size(_HEADS)
    if latent:
        return heads, 1, latent.rank + latent.rotated
    if own:
        return heads, own[-1].kv_heads, max(one.head_dim for one in own)
    return heads_of(read, read.size("embedding_length"), has_states=row.has_states)


def _rope(read: MetadataReader, row: Architecture, width: int, latent: Latent | None) -> Rope:
    """Of layers that see the whole text; where a latent is stored, scores grow, not the rope."""
    return rope_of(
        read, width, interleaved=row.interleaved_rope, yarn_truncates=row.yarn_truncates,
        sharpens=latent is None,
    )  # fmt: skip


def _local(read: MetadataReader, row: Architecture, rope: Rope, width: int) -> Rope:
    """Of layers with a window. FormatError where it does not fit their heads."""
    dim = read.size("rope.dimension_count_swa", rope.dim)
    check_dim(dim, read.size("attention.key_length_swa", width) if row.has_own_heads else width)
    return Rope(
        dim=dim,
        base=read.number("rope.freq_base_swa", row.local_base or rope.base),
        rotate_half=rope.rotate_half,
    )


def _scale(
    read: MetadataReader, row: Architecture, rope: Rope, latent: Latent | None, width: float
) -> float:
    """What scores are multiplied by: 1 / √width, mostly, where the file does not say."""
    if told := read.or_zero("attention.scale"):
        return told
    if latent:
        scale: float = (latent.keys + latent.rotated) ** -0.5
        return scale * latent_sharpness(read, rope) ** 2
    return row.attention_scale or width**-0.5


def _logit_scale(read: MetadataReader, row: Architecture) -> float:
    """What logits are divided by; some architectures' files have what they are multiplied by."""
    scale = read.or_zero("logit_scale") or 1.0
    return 1 / scale if row.multiplies_logits else scale


def _relative(read: MetadataReader) -> Relative:
    """How distances have rows."""
    span = read.size("attention.relative_buckets_count", most=MAX_CONTEXT)
    farthest = read.size_or_zero("attention.relative_farthest")
    if farthest and farthest <= span // 2 + 1:
        raise FormatError(
            f"{read.prefix}.attention.relative_farthest is {farthest}, within the {span // 2} "
            "distances that have buckets of their own"
        )
    return Relative(span, farthest)


def _attention(read: MetadataReader, row: Architecture) -> Attention:
    own = MetadataReader(read.metadata, "cutaway")
    if own.value("block_size") is not None:
        return own.size("block_size")
    is_causal = read.flag("attention.causal", row.is_causal)
    return "causal" if is_causal else "bidirectional"


def _temperature(read: MetadataReader, row: Architecture) -> tuple[float, int]:
    """How much the queries of layers without positions grow, and after how many tokens."""
    growth, period = row.temperature
    if not period:
        read.must_be("attention.temperature_length", 0)
        return 0.0, 0
    growth = read.or_zero("attention.temperature_scale", growth)
    return growth, read.size_or_zero("attention.temperature_length", period) if growth else 0


def _activation(read: MetadataReader, row: Architecture) -> str:
    names, key = row.activations, "hidden_activation"
    if not names:
        return ""
    name = read.value(key, next(iter(names)))
    if not isinstance(name, str) or name not in names:
        raise FormatError(
            f"metadata key {read.prefix}.{key} is {name!r:.40}, which is not supported; "
            f"supported: {', '.join(names)}"
        )
    return names[name]
