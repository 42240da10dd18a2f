"""What the layers of a model attend to, read from its file's metadata: windows, latents.

Knows GGUF's keys of these.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError

Attention = str | int
"""See ``ModelConfig``."""


class OwnHeads(NamedTuple):
    """The key-value heads of one layer, where layers differ, and of which layer they are read.

    reads  a layer's number: its own, or an earlier one's, whose keys and values it reads again
    """

    kv_heads: int
    head_dim: int
    reads: int


def own_heads_of(read: MetadataReader, windows: Sequence[int]) -> tuple[OwnHeads, ...]:
    """Of each layer; the last ones, as many as a key says, read those of the last of their kind."""
    layers, heads = len(windows), read.size("attention.head_count")
    found = read.value("attention.head_count_kv", heads)
    counts = found.tolist() if isinstance(found, np.ndarray) else [found] * layers
    width = max(read.size("embedding_length") // heads, 1)
    for ending in ("", "_swa"):
        key = read.size(f"attention.key_length{ending}", width)
        if read.size(f"attention.value_length{ending}", key) != key:
            raise FormatError("values whose head size differs from the keys' are not supported")
    dims = [read.size(f"attention.key_length{'_swa' if w else ''}", width) for w in windows]
    if len(counts) != layers or any(type(n) is not int or n < 1 or heads % n for n in counts):
        raise FormatError(
            f"metadata key {read.prefix}.attention.head_count_kv must say for each of {layers} "
            f"layers how many kv heads share {heads} heads evenly"
        )
    first = layers - read.size_or_zero("attention.shared_kv_layers")
    last = {bool(windows[i]): i for i in range(first)}
    if any(bool(window) not in last for window in windows[max(first, 0) :]):
        raise FormatError(
            f"{read.prefix}.attention.shared_kv_layers leaves no layer whose keys could be read"
        )
    reads = [i if i < first else last[bool(windows[i])] for i in range(layers)]
    return tuple(OwnHeads(counts[i], dims[i], reads[i]) for i in range(layers))


class Latent(NamedTuple):
    """A latent attention (DeepSeek-V2, arXiv 2405.04434): what is stored of a token, and its heads.

    rank     numbers that keys and values are made of
    rotated  numbers of a key that all heads share, with positions
    keys     numbers of a head's key that have none
    values   numbers of a head's value
    """

    rank: int
    rotated: int
    keys: int
    values: int


def latent_of(read: MetadataReader) -> Latent:
    """As files say it, those of before 2025, too, whose heads are as long as they are computed."""
    of_heads = "_mla" if read.value("attention.key_length_mla") is not None else ""
    key = read.size(f"attention.key_length{of_heads}")
    rank, rotated = read.size("attention.kv_lora_rank"), read.size("rope.dimension_count")
    if rotated >= key:
        raise FormatError(f"{rotated} numbers of a key of {key} are rotated, which leaves none")
    return Latent(rank, rotated, key - rotated, read.size(f"attention.value_length{of_heads}"))


def windows_of(
    read: MetadataReader, layers: int, attention: Attention,
    *, usual: int, full_every: int, full_first: bool,
) -> tuple[int, ...]:  # fmt: skip
    """How many tokens each layer sees: ``ModelConfig.windows``.

    usual, full_every, full_first: ``window`` … of ``Architecture``
    """
    window = read.size_or_zero("attention.sliding_window", usual)
    if window and isinstance(attention, int):
        raise FormatError(f"windows are not supported where tokens see blocks of {attention}")
    if window == 1 and attention == "bidirectional":
        raise FormatError(f"{read.prefix}.attention.sliding_window is 1, which holds no neighbour")
    if attention == "bidirectional":  # files say the whole window, both sides together
        window //= 2
    key = "attention.sliding_window_pattern"
    pattern = read.value(key)
    if isinstance(pattern, np.ndarray) and pattern.dtype == np.bool_:
        if pattern.shape != (layers,):
            raise FormatError(f"metadata key {read.prefix}.{key} is not one flag a layer")
        return tuple(window if slides else 0 for slides in pattern.tolist())
    every = read.size_or_zero(key, full_every)
    first = 0 if full_first else every - 1
    return tuple(0 if every and i % every == first else window for i in range(layers))
