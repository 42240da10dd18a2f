"""Which layers have a recurrent state, and the sizes of heads, read from a file's metadata.

Knows GGUF's keys, and no architecture.
"""

from typing import NamedTuple

import numpy as np

from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError

_KV_HEADS = "attention.head_count_kv"


class StateHeads(NamedTuple):
    """The heads of a recurrent layer: how many of keys and of values, and how wide each is."""

    k_heads: int
    heads: int
    keys: int
    values: int


def recurrent_layers(
    read: MetadataReader, layers: int, *, has_states: bool, attends_every: int
) -> tuple[bool, ...]:
    """Whether each layer has a state: has_states and attends_every as in ``Architecture``.

    Files say 0 kv heads, and nothing else but a width of 0 for the MLP where it is a layer.
    """
    if attends_every:
        every = read.size("full_attention_interval", attends_every)
        flags = read.value("attention.recurrent_layers")
        if isinstance(flags, np.ndarray) and flags.dtype == np.bool_ and len(flags) >= layers:
            return tuple(flags[:layers].tolist())
        return tuple((layer + 1) % every > 0 for layer in range(layers))
    if has_states and read.value("attention.head_count") == 0:
        return (True,) * layers
    found, widths = read.value(_KV_HEADS), read.value("feed_forward_length")
    if not has_states or not isinstance(found, np.ndarray):
        return (False,) * layers
    if found.shape != (layers,) or found.dtype.kind not in "iu":
        raise FormatError(f"metadata key {read.prefix}.{_KV_HEADS} is not one number a layer")
    is_mlp = np.zeros(layers, bool)
    if isinstance(widths, np.ndarray) and widths.shape == (layers,) and (widths == 0).any():
        is_mlp = widths != 0
    return tuple(((found == 0) & ~is_mlp).tolist())


def state_heads(read: MetadataReader) -> StateHeads | None:
    """None where the file says nothing of any."""
    if read.value("ssm.inner_size") is None:
        return None
    k_heads, heads = read.size("ssm.group_count"), read.size("ssm.time_step_rank")
    if (inner := read.size("ssm.inner_size")) % heads or heads % k_heads:
        raise FormatError(f"{inner} values are no {heads} heads that share {k_heads} of keys")
    return StateHeads(k_heads, heads, read.size("ssm.state_size"), inner // heads)


def heads_of(read: MetadataReader, hidden: int, *, has_states: bool) -> tuple[int, int, int]:
    """Query heads, key-value heads, and how many numbers each has; 0 where nothing attends."""
    heads = read.size_or_zero("attention.head_count")
    if not heads and has_states:
        return 0, 0, 0
    heads = read.size("attention.head_count")
    found = read.value(_KV_HEADS)
    if has_states and isinstance(found, np.ndarray):
        if not len(others := found[found != 0]):
            raise FormatError("a model without any attention is not supported")
        others = np.where(found == 0, others[0], found)
        read = MetadataReader({**read.metadata, f"{read.prefix}.{_KV_HEADS}": others}, read.prefix)
    kv_heads = read.size(_KV_HEADS, heads)
    if heads % kv_heads:
        raise FormatError(f"{heads} heads cannot be shared evenly by {kv_heads} kv heads")
    head_dim = read.size("attention.key_length", max(hidden // heads, 1))
    if read.size("attention.value_length", head_dim) != head_dim:
        raise FormatError("values whose head size differs from the keys' are not supported")
    return heads, kv_heads, head_dim
