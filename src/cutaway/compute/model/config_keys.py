"""A model's config, read from its file's metadata.

Knows the metadata keys that the architectures share, and refuses, by name, what is not supported.
What an architecture takes for granted where its files do not say is a row of ``ARCHITECTURES``;
what each layer has is read by ``layer_keys`` and ``state_keys``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cutaway.compute.model.architecture import Architecture
from cutaway.compute.model.config import MAX_CONTEXT, ModelConfig
from cutaway.compute.model.distance import Relative
from cutaway.compute.model.layer_keys import (
    Attention,
    Latent,
    OwnHeads,
    latent_of,
    own_heads_of,
    windows_of,
)
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture_keys import mixture_of
from cutaway.compute.model.rope import Rope
from cutaway.compute.model.rope_keys import check_dim, growing, latent_sharpness, rope_of
from cutaway.compute.model.state_keys import heads_of, recurrent_layers, state_heads
from cutaway.compute.model.xielu import xielu_of
from cutaway.errors import FormatError

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
