"""Scheduled: one sequence's rows in one step, and the integer arrays that a step's rows make."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.backends import Batch, Logits

if TYPE_CHECKING:
    from cutaway.engine.sequence import Sequence
    from cutaway.engine.vocabulary import Mask

Ints = NDArray[np.int32]


@dataclass(slots=True)
class Scheduled:
    """A sequence's rows in one step: pending tokens, then draft tokens.

    start            position of the first row
    first_logit_row  the row from which on logits are wanted, to the last
    limits           of each row, the last position that it may see; None: its own
    drafted_by       where the draft tokens come from: "draft" (speculation), "grammar" (which
                     leaves no other) or "forced" by the request
    masks            for the token after the last pending one and after each draft token, which
                     tokens may come; empty where anything may
    """

    sequence: "Sequence"
    start: int
    token_ids: list[int]
    first_logit_row: int
    limits: list[int] | None = None
    draft_token_ids: list[int] = field(default_factory=list)
    drafted_by: str = ""
    masks: "list[Mask | None]" = field(default_factory=list)

    def set_drafts(self, token_ids: list[int], drafted_by: str) -> None:
        """Check these with the pending tokens, as far as the sequence's constraint allows them."""
        self.masks = self.sequence.masks(token_ids, forced=drafted_by == "forced")
        self.draft_token_ids = token_ids[: len(self.masks) - 1]
        self.drafted_by = drafted_by

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self.token_ids) + len(self.draft_token_ids)

    @property
    def num_logits(self) -> int:
        """Of how many rows the logits are wanted."""
        return self.num_rows - self.first_logit_row


def lay_rows(parts: Items[tuple[int, Iterable[int], list[int]]]) -> tuple[Ints, Ints, Ints, Ints]:
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


def batch_of(scheduled: list[Scheduled]) -> Batch:
    """The rows of one step, sequence by sequence."""
    rows = lay_rows(
        [(s.start, s.token_ids + s.draft_token_ids, s.sequence.blocks) for s in scheduled]
    )
    wanted: list[int] = []
    start = 0
    for one in scheduled:
        wanted += range(start + one.first_logit_row, start + one.num_rows)
        start += one.num_rows
    return Batch(*rows, np.array(wanted, np.int32), _limits(scheduled, rows[1]))


def _limits(scheduled: list[Scheduled], positions: Ints) -> Ints | None:
    if all(one.limits is None for one in scheduled):
        return None
    limits, start = positions.copy(), 0
    for one in scheduled:
        if one.limits is not None:
            limits[start : start + one.num_rows] = one.limits
        start += one.num_rows
    return limits


def logits_of(scheduled: list[Scheduled], logits: Logits) -> list[Logits]:
    """Each sequence's wanted rows, (rows, vocab), out of those of the whole step."""
    ends = list(accumulate(one.num_logits for one in scheduled))
    return [logits[start:end] for start, end in zip([0, *ends], ends, strict=False)]
