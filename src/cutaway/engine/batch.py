"""From scheduled sequences to the integer arrays of a Batch.

Refuses to know why these sequences were chosen.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cutaway.backends import Batch, Logits
from cutaway.engine.scheduler import Scheduled

Ints = NDArray[np.int32]


def lay_rows(
    parts: Sequence[tuple[int, Iterable[int], list[int]]],
) -> tuple[Ints, Ints, Ints, Ints]:
    """Lay (first position, tokens, blocks) of each sequence one after the other.

    Returns tokens (M,), positions (M,), sequences (M,) and block tables (S, B).
    """
    tokens: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    for i, (start, part, _) in enumerate(parts):
        before = len(tokens)
        tokens += part
        positions += range(start, start + len(tokens) - before)
        sequences += [i] * (len(tokens) - before)
    width = max(len(blocks) for _, _, blocks in parts)
    tables = [blocks + [-1] * (width - len(blocks)) for _, _, blocks in parts]
    return (
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(sequences, np.int32),
        np.array(tables, np.int32),
    )


def wanted_rows(scheduled: Scheduled) -> range:
    """Of a sequence's rows, those whose logits are wanted: its last token's and its guesses'.

    All of them, where log-probabilities of the prompt are asked for.
    """
    if scheduled.sequence.wants_prompt_logprobs:
        return range(scheduled.rows)
    first = len(scheduled.tokens) - 1 if scheduled.draws else scheduled.rows
    return range(first, scheduled.rows)


def batch_of(turn: list[Scheduled]) -> Batch:
    """The rows of one step, sequence by sequence, in the order of the turn."""
    rows = lay_rows(
        [(s.sequence.num_computed_tokens, s.tokens + s.guesses, s.sequence.blocks) for s in turn]
    )
    wanted, start = [], 0
    for scheduled in turn:
        wanted += [start + row for row in wanted_rows(scheduled)]
        start += scheduled.rows
    return Batch(*rows, np.array(wanted, np.int32))


def logits_of(turn: list[Scheduled], logits: Logits) -> list[tuple[Scheduled, Logits]]:
    """Each sequence's wanted rows, (rows, vocab), out of those of the whole step."""
    ends = list(accumulate(len(wanted_rows(s)) for s in turn))
    return [(s, logits[start:end]) for s, start, end in zip(turn, [0, *ends], ends, strict=False)]
