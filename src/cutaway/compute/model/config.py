"""A model's config: its sizes and constants, its architecture's defaults, and how both are read.

``ModelConfig`` does not know where it was read. The reader knows the metadata keys that
architectures share, and refuses, by name, those that are not supported. An architecture's defaults
for absent keys, and the keys that only it has, are beside its graph in `architectures`; `layers`
reads the properties of each layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, TypeVar

from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.layers import (
    Attention,
    heads_of,
    recurrent_layers,
    windows_of,
)
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture, mixture_of
from cutaway.compute.model.ops.attention import Heads
from cutaway.compute.model.positions import Rope, check_dim, growing, rope_of
from cutaway.errors import FormatError

Kind = TypeVar("Kind", bound="ModelConfig")

# -- sizes and constants ---------------------------------------------------------------------------


MAX_CONTEXT = 2**24
"""Tokens. No model has more, and its KV cache would not fit into any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers that a graph is built from. Sizes are in elements, context in tokens.

    The fields of a single architecture are in a subclass, beside its graph.

    attention          which tokens a token attends to: "causal": itself and those before it;
                       "bidirectional": all tokens of its text; a number (block-causal): all up to
                       the end of its block, where blocks have this many tokens; "canvas" and
                       "prefix-lm": see ``Limits``
    shift              whether a row predicts the next position, if attention is not causal
    learned_positions  whether positions are vectors that are added, not rotations
    rope, rope_local   the ropes of layers that see the whole text, and of layers with a window
    unrun_layers       how many blocks after the layers draft tokens (MTP); this graph has none
    rope_queries       the rope of queries in layers that see the whole text
    extends_context    whether texts may be longer than those on which the model was first trained
    windows            for each layer, how many tokens a row attends to, its own included; if
                       attention is bidirectional, how many to each side; 0: all
    recurrent          for each layer, whether it has a recurrent state instead of attention
    activation         the activation of an MLP: "gelu", "gelu_tanh", "silu"; "" if the graph fixes
                       it
    attention_scale    the factor of scores before the softmax
    *_softcap          the bound that scores or logits approach smoothly; 0: they have none
    *_scale            the factor of the embedding, and of what a layer adds to the residual stream;
                       logits are divided by logit_scale
    experts            how many experts a layer with experts has; 0 if no layer has experts
    mixture            how experts are chosen; None without experts
    noise              how a canvas of random tokens is denoised; None for other models
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
    activation: str
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    norm_eps: float
    experts: int
    mixture: Mixture | None
    noise: "Denoising | None" = None

    @property
    def experts_used(self) -> int:
        """How many of a layer's experts compute a token."""
        return self.mixture.used if self.mixture else 0

    @property
    def is_causal(self) -> bool:
        """Whether a token after a text changes nothing in the text, so that texts can grow."""
        return self.attention in ("causal", "prefix-lm")

    def as_kind(self, kind: type[Kind], **facts: Any) -> Kind:
        """Return this config as an architecture's subclass; facts: the fields that it adds."""
        shared = {f.name: getattr(self, f.name) for f in fields(self)}
        return kind(**shared | facts)


@dataclass(frozen=True, slots=True)
class Denoising:
    """How the canvas of a model whose texts begin as random tokens is denoised; see ``Rule``.

    canvas_length  cells of a block, where a block attends to what is before it alone
    """

    canvas_length: int
    max_passes: int
    t_max: float
    t_min: float
    entropy_bound: float
    stability_threshold: int
    confidence_threshold: float


# -- how an architecture is wired, and its values of keys that files lack --------------------------


_MIXTURE = Mixture(used=1)  # most architectures have a softmax, and divide weights by their sum


@dataclass(frozen=True, slots=True)
class Architecture:
    """How an architecture is wired, and its values of keys that files lack, as in llama.cpp.

    build                adds the ops to a graph; returns the logits, or the rows that a head reads
    defaults             values of keys that files lack; keys are without the architecture's name
    must_be              key -> the only values that the graph can compute, the usual one first
    extend               reads the keys of this architecture alone, into a subclass of the config
    layer                adds one layer by its number; for architectures that may have a draft head
    canvas               builds the graph of a canvas's rows, for models with self-conditioning
    mixture              how experts are chosen, where files have no key for it; all have `used`
    activations          GGUF's name of an MLP's activation -> ``ModelConfig.activation``, the usual
                         one first
    layer_norm           norms subtract the mean; files have another key for their epsilon
    learned_positions    positions are vectors that are added to the tokens', not rotations
    interleaved_rope     the numbers of a rotated pair are neighbours, not half the rotated apart
    has_states           layers without kv heads keep a recurrent state instead, or all layers do
    centres              where tokens see the whole text, layers with a state are short convolutions
                         that see as far to both sides, and have none
    heads                reads the heads from metadata and windows, if keys have another meaning
    """

    build: Callable[[Graph, Any], Tensor]
    _: KW_ONLY
    defaults: Mapping[str, Any] = field(default_factory=dict)
    must_be: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    extend: Callable[[MetadataReader, ModelConfig], ModelConfig] = lambda _read, config: config
    layer: Callable[[Graph, Any, Tensor, int], Tensor] | None = None
    canvas: Callable[[Graph, Any], Tensor] | None = None
    mixture: Mixture = _MIXTURE
    activations: Mapping[str, str] = field(default_factory=dict)
    layer_norm: bool = False
    learned_positions: bool = False
    interleaved_rope: bool = False
    has_states: bool = False
    centres: bool = False
    heads: Callable[[MetadataReader, tuple[int, ...]], Heads] | None = None


# -- reading a file's metadata ---------------------------------------------------------------------


MOST_LAYERS = 10_000
MOST_DEPTH = 1024
"""How many layers a token may pass where layers run again; HRM-Text has 128, Inkling 2 Mini 48.

A small file may ask for any depth, and each layer of it is wired, drawn and has keys of its own.
"""
_TEMPERATURE = "attention.temperature_length"

# Any other value of these keys would change the numbers in ways that no graph here computes; the
# first value is the usual one.
_MUST_BE: Mapping[str, tuple[float, ...]] = {
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    _TEMPERATURE: (0,),
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
    context: the most tokens of a text; None is the model's own limit.
    Raises FormatError naming the key that is missing, absurd or not supported.
    """
    read = MetadataReader(metadata, metadata["general.architecture"], row.defaults)
    for key, values in {**_MUST_BE, **row.must_be}.items():
        if key not in row.defaults:
            read.must_be(key, *values)
    hidden, (layers, unrun) = read.size("embedding_length"), _layers(read)
    attention = "canvas" if row.canvas else _attention(read)
    windows = windows_of(read, layers, attention)
    heads = row.heads(read, windows) if row.heads else heads_of(read, has_states=row.has_states)
    width = heads.dim or 2  # without attention nothing is rotated either
    longest = read.size("context_length", largest=MAX_CONTEXT)
    original = read.size_or_zero("rope.scaling.original_context_length")
    rope = rope_of(read, width, interleaved=row.interleaved_rope)
    experts = read.size_or_zero("expert_count")
    shared = ModelConfig(
        architecture=read.prefix, context_length=longest, attention=attention,
        shift=MetadataReader(metadata, "diffusion", row.defaults).flag("shift_logits", False),
        noise=_noise(MetadataReader(metadata, "diffusion", row.defaults)),
        layers=layers, unrun_layers=unrun, hidden=hidden,
        heads=heads.queries, kv_heads=heads.kv, head_dim=heads.dim,
        learned_positions=row.learned_positions, rope=rope, rope_local=_local(read, rope, width),
        rope_queries=rope if read.or_zero(_TEMPERATURE) else growing(read, rope, original),
        extends_context=(context or longest) > (original or longest),
        windows=windows, recurrent=_recurrent(read, row, layers, attention),
        activation=_activation(read, row),
        attention_scale=read.or_zero("attention.scale") or width**-0.5,
        attention_softcap=read.or_zero("attn_logit_softcapping"),
        logit_softcap=read.or_zero("final_logit_softcapping"),
        embedding_scale=read.or_zero("embedding_scale") or 1.0,
        residual_scale=read.or_zero("residual_scale") or 1.0,
        logit_scale=read.or_zero("logit_scale") or 1.0,
        norm_eps=read.number(f"attention.layer_norm{'' if row.layer_norm else '_rms'}_epsilon"),
        experts=experts, mixture=mixture_of(read, row.mixture, experts) if experts else None,
    )  # fmt: skip
    return row.extend(read, shared)


def _layers(read: MetadataReader) -> tuple[int, int]:
    """Return how many layers run, and how many draft after them; files have the sum of both."""
    layers = read.size("block_count", largest=MOST_LAYERS)
    unrun = read.size_or_zero("nextn_predict_layers")
    if unrun >= layers:
        raise FormatError(
            f"{read.prefix}.nextn_predict_layers is {unrun} of {layers} layers, which leaves none"
        )
    return layers - unrun, unrun


def _recurrent(
    read: MetadataReader, row: Architecture, layers: int, attention: Attention
) -> tuple[bool, ...]:
    """Return whether each layer has a state."""
    if row.centres and attention == "bidirectional":
        return (False,) * layers
    flags = recurrent_layers(read, layers, has_states=row.has_states)
    if any(flags) and attention != "causal":
        raise FormatError(
            f"{read.prefix}: layers with a recurrent state read no token after theirs"
        )
    return flags


def _local(read: MetadataReader, rope: Rope, width: int) -> Rope:
    """Return the rope of layers with a window; FormatError if it does not fit their heads."""
    dim = read.size("rope.dimension_count_swa", rope.dim)
    check_dim(dim, read.size("attention.key_length_swa", width))
    base = read.or_zero("rope.freq_base_swa", 10000.0) or rope.base
    return Rope(dim=dim, base=base, rotate_half=rope.rotate_half)


def _attention(read: MetadataReader) -> Attention:
    extra = MetadataReader(read.metadata, "cutaway")
    if extra.value("block_size") is not None:
        return extra.size("block_size")
    return "causal" if read.flag("attention.causal", True) else "bidirectional"


def _noise(read: MetadataReader) -> Denoising | None:
    """Read the keys of a canvas of noise, as llama.cpp's diffusion-gemma has them."""
    if read.value("canvas_length") is None:
        return None
    return Denoising(
        read.size("canvas_length"), read.size("eb_max_steps", 48),
        read.number("eb_t_max", 0.8), read.number("eb_t_min", 0.4),
        read.number("eb_entropy_bound", 0.1), read.size_or_zero("eb_stability_threshold", 1),
        read.number("eb_confidence_threshold", 0.005),
    )  # fmt: skip


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
