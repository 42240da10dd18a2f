"""Checks a batch before it reaches the device, and splits its rows into segments and tiles.

Kernels check no index, so this module raises the ValueErrors that native/plan.cpp raises.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.base import Batch
from cutaway.compute.backends.layout import KV_BLOCK

Ints = NDArray[np.int32]


class Bounds(NamedTuple):
    """Numbers of a batch must be below these limits; vocab, types: 0 if there is no such table."""

    vocab: int
    types: int
    context: int
    kv_blocks: int


def check_batch(batch: Batch, limits: Ints, bounds: Bounds) -> None:
    """Raise ValueError if an index is out of bounds, or a sequence's positions do not follow on."""
    tables, positions, sequences = batch.block_tables, batch.positions, batch.sequences
    rows, width = len(batch.tokens), tables.shape[1]
    if bounds.vocab and not _all_below(batch.tokens, bounds.vocab):
        raise ValueError("batch: a token is outside the vocabulary")
    if batch.types is not None and not _all_below(batch.types, max(bounds.types, 1)):
        raise ValueError("batch: the model has no such type of tokens")
    if not _all_below(sequences, len(tables)):
        raise ValueError("batch: a row's sequence has no block table")
    end = min(bounds.context, width * KV_BLOCK)
    if not _all_below(positions, end):
        raise ValueError("batch: a position is outside the context or its block table")
    follows = np.diff(positions) == 1
    if not (follows | (np.diff(sequences) != 0)).all():
        raise ValueError("batch: positions of a sequence are not in order")
    if not _all_below(limits, end):
        raise ValueError("batch: a limit is outside the context or its block table")
    if not _all_below(batch.logit_rows, rows):
        raise ValueError("batch: a logit row is not one of the rows")
    if len(batch.logit_rows) > rows:
        raise ValueError("batch: more logit rows than rows")
    last = np.full(len(tables), -1)  # the last block that a sequence's rows read or write
    np.maximum.at(last, sequences, np.maximum(positions, limits) // KV_BLOCK)
    is_read = np.arange(width) <= last[:, None]
    if (is_read & ((tables < 0) | (tables >= bounds.kv_blocks))).any():
        raise ValueError("batch: a block table names no KV block")


def _all_below(numbers: Ints, end: int) -> bool:
    return bool(((numbers >= 0) & (numbers < end)).all())


class Segment(NamedTuple):
    """Neighbouring rows of one sequence: the first row, how many, and their row of block tables."""

    first: int
    rows: int
    sequence: int


def segments_of(batch: Batch) -> list[Segment]:
    """Split a batch's rows into segments."""
    starts = np.flatnonzero(np.diff(batch.sequences, prepend=-1))
    ends = [*starts[1:], len(batch.sequences)]
    return [
        Segment(int(a), int(b - a), int(batch.sequences[a]))
        for a, b in zip(starts, ends, strict=True)
    ]


def list_tiles(segments: Sequence[Segment], sizes: Sequence[int]) -> Ints:
    """Return a list of tiles for each size, all behind a list of the places where they begin.

    A tile is neighbouring rows of one segment, at most as many as the size: the first row, and how
    many rows. Size 1 has no list.
    """
    starts, words = list[int](), list[int]()
    for size in sizes:
        starts.append(len(sizes) + len(words))
        for first, rows, _ in segments if size > 1 else ():
            for done in range(0, rows, size):
                words += (first + done, min(size, rows - done))
    return np.array([*starts, *words], np.int32)


def blocks_of(batch: Batch) -> set[int]:
    """Return the KV blocks that a batch's rows read or write."""
    limits = batch.positions if batch.limits is None else batch.limits
    last = np.full(len(batch.block_tables), -1)
    np.maximum.at(last, batch.sequences, np.maximum(batch.positions, limits) // KV_BLOCK)
    return {
        int(block)
        for table, end in zip(batch.block_tables, last, strict=True)
        for block in table[: end + 1]
    }


def slots_before(batch: Batch) -> Iterator[int]:
    """Yield the slots of the states from which a batch's sequences continue."""
    for row in np.flatnonzero(np.diff(batch.sequences, prepend=-1)):
        if (before := int(batch.positions[row]) - 1) >= 0:
            yield int(batch.block_tables[batch.sequences[row], before // KV_BLOCK])
