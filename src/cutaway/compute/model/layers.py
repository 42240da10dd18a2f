"""The properties that differ from layer to layer: windows, heads, recurrent states.

They are read from a file's metadata. Knows GGUF's keys for them, and no architecture.
"""

import numpy as np

from cutaway.compute.model.metadata import LARGEST_SIZE, MetadataReader
from cutaway.compute.model.ops.attention import Heads
from cutaway.errors import FormatError

# -- windows ---------------------------------------------------------------------------------------


Attention = str | int
"""See ``ModelConfig``."""


def windows_of(
    read: MetadataReader, layers: int, attention: Attention, *, full_first: bool = False
) -> tuple[int, ...]:
    """Return how many tokens each layer sees, as ``ModelConfig.windows`` says it.

    full_first: whether the first layer of each period sees the whole text; else the last does
    """
    window = read.size_or_zero("attention.sliding_window")
    if window and isinstance(attention, int):
        raise FormatError(f"windows are not supported where tokens see blocks of {attention}")
    if window == 1 and attention == "bidirectional":
        raise FormatError(f"{read.prefix}.attention.sliding_window is 1, which holds no neighbour")
    if attention == "bidirectional":  # files have the size of both sides together
        window //= 2
    key = "attention.sliding_window_pattern"
    pattern = read.value(key)
    if isinstance(pattern, np.ndarray) and pattern.size and {*pattern.tolist()} <= {0, 1}:
        if pattern.shape not in ((layers,), (read.size("block_count"),)):  # those that draft, too
            raise FormatError(f"metadata key {read.prefix}.{key} is not one flag a layer")
        return tuple(window if slides else 0 for slides in pattern.tolist()[:layers])
    period = read.size_or_zero(key)
    first = 0 if full_first else period - 1
    return tuple(0 if period and i % period == first else window for i in range(layers))


# -- recurrent states, and the sizes of heads ------------------------------------------------------


HEADS, KV_HEADS = "attention.head_count", "attention.head_count_kv"
_PATTERN = "full_attention_interval"


def recurrent_layers(read: MetadataReader, layers: int, *, has_states: bool) -> tuple[bool, ...]:
    """Return whether each layer has a state; has_states: see ``Architecture``.

    If no interval says which layers have attention, a layer without kv heads has a state; if MLPs
    are layers of their own, a layer with a state must also have an MLP width of 0.
    """
    if _PATTERN in read.defaults:
        period = read.size(_PATTERN)
        flags = read.value("attention.recurrent_layers")
        if isinstance(flags, np.ndarray) and flags.dtype == np.bool_ and len(flags) >= layers:
            return tuple(flags[:layers].tolist())
        return tuple((layer + 1) % period > 0 for layer in range(layers))
    if has_states and read.value(HEADS) == 0:
        return (True,) * layers
    kv_heads, widths = read.value(KV_HEADS), read.value("feed_forward_length")
    if not has_states or not isinstance(kv_heads, np.ndarray):
        return (False,) * layers
    if kv_heads.shape != (layers,) or kv_heads.dtype.kind not in "iu":
        raise FormatError(f"metadata key {read.prefix}.{KV_HEADS} is not one number a layer")
    is_mlp = np.zeros(layers, bool)
    if isinstance(widths, np.ndarray) and widths.shape == (layers,) and (widths == 0).any():
        is_mlp = widths != 0
    return tuple(((kv_heads == 0) & ~is_mlp).tolist())


def heads_of(read: MetadataReader, *, has_states: bool) -> Heads:
    """Return the heads of all layers that attend; all 0 if no layer does."""
    heads = read.size_or_zero(HEADS)
    if not heads and has_states:
        return Heads(0, 0, 0)
    heads = read.size(HEADS)
    counts = read.value(KV_HEADS)
    if has_states and isinstance(counts, np.ndarray):
        if not len(positive := counts[counts != 0]):
            raise FormatError("a model without any attention is not supported")
        positive = np.where(counts == 0, positive[0], counts)
        read = MetadataReader({**read.metadata, f"{read.prefix}.{KV_HEADS}": positive}, read.prefix)
    kv_heads = read.size(KV_HEADS, heads)
    if heads % kv_heads:
        raise FormatError(f"{heads} heads cannot be shared evenly by {kv_heads} kv heads")
    usual = max(read.size("embedding_length") // heads, 1)
    return Heads(heads, kv_heads, head_dim(read, usual))


def heads_by_layer(
    read: MetadataReader, key: str, layers: int, usual: int | None = None
) -> tuple[int, ...]:
    """Return how many heads each layer has where layers differ; key: ``HEADS`` or ``KV_HEADS``.

    The other key is the same for all layers. usual: the number of each layer without the key
    """
    other, value = read.size(KV_HEADS if key == HEADS else HEADS), read.value(key, usual)
    counts = value.tolist() if isinstance(value, np.ndarray) else [value] * layers
    lengths = (layers, read.size("block_count"))  # MiMo's files also count blocks that draft
    if len(counts) not in lengths or not all(
        type(n) is int and 0 < n <= LARGEST_SIZE
        and (n % other if key == HEADS else other % n) == 0
        for n in counts
    ):  # fmt: skip
        rule = f"divisible by {KV_HEADS}" if key == HEADS else f"that divides {HEADS}"
        raise FormatError(
            f"metadata key {read.prefix}.{key} must be a number for each of {layers} layers, {rule}"
            f" ({other})"
        )
    return tuple(counts[:layers])


def head_dim(read: MetadataReader, usual: int, ending: str = "") -> int:
    """Return a head's width; ending: the end of the metadata keys, if they are for some layers."""
    keys = read.size(f"attention.key_length{ending}", usual)
    if read.size(f"attention.value_length{ending}", keys) != keys:
        raise FormatError("values whose head size differs from the keys' are not supported")
    return keys
