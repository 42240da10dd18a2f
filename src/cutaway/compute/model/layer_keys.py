"""What the layers of a model attend to, read from its file's metadata: windows, latents.

Knows GGUF's keys of these.
"""

from typing import NamedTuple

import numpy as np

from cutaway.compute.model.architecture import Architecture
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError

Attention = str | int
"""See ``ModelConfig``."""


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
    read: MetadataReader, row: Architecture, layers: int, attention: Attention
) -> tuple[int, ...]:
    """How many tokens each layer sees: ``ModelConfig.windows``."""
    window = read.size_or_zero("attention.sliding_window", row.window)
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
    every = read.size_or_zero(key, row.full_every)
    first = 0 if row.full_first else every - 1
    return tuple(0 if every and i % every == first else window for i in range(layers))
