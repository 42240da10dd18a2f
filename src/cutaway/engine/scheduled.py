"""Scheduled: one sequence's rows in one step, and the integer arrays that a step's rows make."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import KV_BLOCK, Backend, Batch, Edit, Logits, inspectable

if TYPE_CHECKING:
    from cutaway.engine.sequence import Sequence
    from cutaway.engine.vocabulary import Mask

Ints = NDArray[np.int32]
_NOTHING: Logits = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class Scheduled:
    """A sequence's rows in one step: pending tokens, then draft tokens.

    start            position of the first row
    first_logit_row  the row from which on logits are wanted, to the last
    logit_rows       the rows whose logits are wanted, where they are not those
    limits           of each row, the last position that it may see; None: its own
    drafted_by       where the draft tokens come from: "draft" (speculation), "grammar" (which
                     leaves no other), "forced" by the request, or its "replay"
    masks            for the token after the last pending one and after each draft token, which
                     tokens may come; empty where anything may
    """

    sequence: "Sequence"
    start: int
    token_ids: list[int]
    first_logit_row: int
    logit_rows: list[int] | None = None
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
        return len(self.wanted)

    @property
    def wanted(self) -> Items[int]:
        """The rows whose logits are wanted."""
        rows = self.logit_rows
        return range(self.first_logit_row, self.num_rows) if rows is None else rows


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
        wanted += [start + row for row in one.wanted]
        start += one.num_rows
    limits, blind = _limits(scheduled, rows[1]), _blind(scheduled, rows[3])
    return Batch(*rows, np.array(wanted, np.int32), limits, blind)


def _limits(scheduled: list[Scheduled], positions: Ints) -> Ints | None:
    if all(one.limits is None for one in scheduled):
        return None
    limits, start = positions.copy(), 0
    for one in scheduled:
        if one.limits is not None:
            limits[start : start + one.num_rows] = one.limits
        start += one.num_rows
    return limits


def _blind(scheduled: list[Scheduled], tables: Ints) -> Logits | None:
    made = [one.sequence.request.interventions for one in scheduled]
    if not any(one and one.knocked_out for one in made):
        return None
    blind = np.full((len(scheduled), tables.shape[1] * KV_BLOCK), np.inf, np.float32)
    for i, one in enumerate(made):
        if one and one.knocked_out:
            blind[i] = one.hidden_from(blind.shape[1])
    return blind


def compute(
    backends: Mapping[str, Backend], scheduled: list[Scheduled]
) -> tuple[list[Logits], Logits]:
    """The wanted rows of each; and all of them in one piece, where all are logits of one run.

    backends: by adapter
    Rows of one adapter are a run, those in which a number is changed another, and those of which
    only what the head reads is wanted a third.
    """
    runs: dict[tuple[str, str], list[Scheduled]] = {}
    for one in scheduled:
        runs.setdefault((one.sequence.request.adapter, _kind(one)), []).append(one)
    found: dict[int, Logits] = {}
    for (adapter, kind), mine in runs.items():
        rows = _run(backends[adapter], kind, mine)
        if len(runs) == 1:
            return logits_of(mine, rows), _NOTHING if kind == "hidden" else rows
        each = logits_of(mine, rows.copy())  # the next run may be of the same memory
        found |= zip((one.sequence.id for one in mine), each, strict=True)
    return [found[one.sequence.id] for one in scheduled], _NOTHING


def _kind(one: Scheduled) -> str:
    if one.sequence.decoder.hidden:
        return "hidden"
    return "changed" if edits_of(one) else "plain"


def _run(backend: Backend, kind: str, scheduled: list[Scheduled]) -> Logits:
    batch = batch_of(scheduled)
    if kind == "hidden":
        return backend.hidden(batch)
    if kind == "plain":
        return backend.run(batch)
    edits, row = list[Edit](), 0
    for one in scheduled:
        edits += edits_of(one, row)
        row += one.num_rows
    return inspectable(backend).run_edited(batch, edits)


def edits_of(one: Scheduled, row: int = 0) -> list[Edit]:
    """What is changed in its rows, the first of which is ``row``."""
    made = one.sequence.request.interventions
    return made.edits(one.start, one.num_rows, row) if made else []


def logits_of(scheduled: list[Scheduled], logits: Logits) -> list[Logits]:
    """Each sequence's wanted rows, (rows, vocab), out of those of the whole step."""
    ends = list(accumulate(one.num_logits for one in scheduled))
    return [logits[start:end] for start, end in zip([0, *ends], ends, strict=False)]
