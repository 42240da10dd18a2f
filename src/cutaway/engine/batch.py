"""From scheduled sequences to the integer arrays of a Batch.

Refuses to know why these sequences were chosen.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cutaway.backends import Batch
from cutaway.engine.sequence import Sequence

Ints = NDArray[np.int32]


def lay_rows(parts: list[tuple[int, Iterable[int], list[int]]]) -> tuple[Ints, Ints, Ints, Ints]:
    """Lay (first position, tokens, blocks) of each sequence one after the other.

    Returns tokens (M,), positions (M,), sequences (M,) and block tables (S, B).
    """
    tokens = [np.array(list(part), np.int32) for _, part, _ in parts]
    positions = [np.arange(len(t)) + start for t, (start, _, _) in zip(tokens, parts, strict=True)]
    sequences = np.repeat(np.arange(len(parts)), [len(t) for t in tokens])
    tables = np.full((len(parts), max(len(blocks) for _, _, blocks in parts)), -1, np.int32)
    for table, (_, _, blocks) in zip(tables, parts, strict=True):
        table[: len(blocks)] = blocks
    return (
        np.concatenate(tokens),
        np.concatenate(positions).astype(np.int32),
        sequences.astype(np.int32),
        tables,
    )


def batch_of(scheduled: list[tuple[Sequence, list[int]]]) -> Batch:
    """The rows of one step; a sequence whose last token is among them wants its logits."""
    rows = lay_rows([(s.num_computed_tokens, tokens, s.blocks) for s, tokens in scheduled])
    ends = np.cumsum([len(tokens) for _, tokens in scheduled]) - 1
    wanted = [s.num_computed_tokens + len(tokens) == len(s) for s, tokens in scheduled]
    return Batch(*rows, ends[wanted].astype(np.int32))
