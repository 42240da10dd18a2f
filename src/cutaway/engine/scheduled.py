"""Scheduled: one sequence's rows in one step, and the integer arrays that a step's rows make."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import KV_BLOCK, Backend, Batch, Edit, Logits, inspectable

if TYPE_CHECKING:
    from cutaway.engine.constraint import Mask
    from cutaway.engine.sequence import Sequence

Ints = NDArray[np.int32]
_NOTHING: Logits = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class Scheduled:
    """A sequence's rows in one step: pending tokens, then draft tokens.

    start            position of the first row
    first_logit_row  logits are wanted of the rows from this one to the last
    logit_rows       the rows whose logits are wanted, instead of those
    limits           of each row, the last position that it attends to; None: its own
    drafted_by       where the draft tokens come from: "draft" (speculation), "grammar" (which
                     allows no other), "forced" (by the request), or its "replay"
    second_from      position from which on tokens are in the second of two texts; 0: all are in one
    states           (row, slot): the recurrent states that are stored; None: there are none
    masks            which tokens may follow the last pending token and each draft token; empty
                     without draft tokens
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
    states: list[tuple[int, int]] | None = None
    second_from: int = 0

    def set_drafts(self, token_ids: list[int], drafted_by: str) -> None:
        """Add draft tokens after the pending ones, as far as the sequence's constraint allows."""
        self.masks = self.sequence.masks(token_ids, forced=drafted_by == "forced")
        self.draft_token_ids = token_ids[: len(self.masks) - 1]
        self.drafted_by = drafted_by

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self.token_ids) + len(self.draft_token_ids)

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
        [(s.start, s.token_ids + s.draft_token_ids, s.sequence.memory.blocks) for s in scheduled]
    )
    wanted = [start + row for start, one in _placed(scheduled) for row in one.wanted]
    limits, hidden_from = _limits(scheduled, rows[1]), _hidden_from(scheduled, rows[3])
    return Batch(
        *rows, np.array(wanted, np.int32), limits, hidden_from, _states(scheduled),
        _types(scheduled, rows[1]),
    )  # fmt: skip


def _placed(scheduled: list[Scheduled]) -> Iterable[tuple[int, Scheduled]]:
    """Each with the number of its first row in the step."""
    ends = accumulate((one.num_rows for one in scheduled), initial=0)
    return zip(ends, scheduled, strict=False)


def _limits(scheduled: list[Scheduled], positions: Ints) -> Ints | None:
    if all(one.limits is None for one in scheduled):
        return None
    limits = positions.copy()
    for start, one in _placed(scheduled):
        if one.limits is not None:
            limits[start : start + one.num_rows] = one.limits
    return limits


def _types(scheduled: list[Scheduled], positions: Ints) -> Ints | None:
    if not any(one.second_from for one in scheduled):
        return None
    types = np.zeros_like(positions)
    for start, one in _placed(scheduled):
        if one.second_from:
            mine = slice(start, start + one.num_rows)
            types[mine] = positions[mine] >= one.second_from
    return types


def _states(scheduled: list[Scheduled]) -> Ints | None:
    if all(one.states is None for one in scheduled):
        return None
    stored = [
        (start + row, slot) for start, one in _placed(scheduled) for row, slot in one.states or ()
    ]
    return np.array(stored, np.int32).reshape(-1, 2)


def _hidden_from(scheduled: list[Scheduled], tables: Ints) -> Logits | None:
    each = [one.sequence.request.interventions for one in scheduled]
    if not any(one and one.knocked_out for one in each):
        return None
    hidden_from = np.full((len(scheduled), tables.shape[1] * KV_BLOCK), np.inf, np.float32)
    for row, one in zip(hidden_from, each, strict=True):
        if one and one.knocked_out:
            row[:] = one.hidden_from(len(row))
    return hidden_from


class HiddenReader(Protocol):
    """Who wants hidden states of rows: what drafts."""

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Of the model's tensors; none: what its head reads."""
        ...

    def reads_hidden(self, scheduled: Scheduled) -> bool:
        """Whether those of all these rows are wanted."""
        ...

    def observe(self, scheduled: Items[Scheduled], hidden: Items[Logits | None]) -> None:
        """These rows are computed; hidden: (rows, hidden) of each, where wanted."""
        ...


def compute(
    backends: Mapping[str, Backend], scheduled: list[Scheduled], reader: HiddenReader
) -> tuple[list[Logits], Logits]:
    """The wanted rows of each sequence; and all logits in one array where one run computed them.

    backends: by adapter
    reader: says of which rows hidden states are wanted beside logits, and takes them
    A run is of one adapter and of one kind: plain rows, those with hidden states, rows with
    interventions, or rows whose final hidden states are wanted instead of logits.
    """
    runs: dict[tuple[str, str], list[Scheduled]] = {}
    for one in scheduled:
        kind = _kind(one)
        kind = "whole" if kind == "plain" and reader.reads_hidden(one) else kind
        runs.setdefault((one.sequence.request.adapter, kind), []).append(one)
    found: dict[int, Logits] = {}
    for (adapter, kind), mine in runs.items():
        rows = _run(backends[adapter], kind, mine, reader)
        change_states(backends[adapter], mine)
        if len(runs) == 1:
            return _split(mine, rows), _NOTHING if kind == "hidden" else rows
        each = _split(mine, rows.copy())  # the next run may write into the same memory
        found |= zip((one.sequence.id for one in mine), each, strict=True)
    return [found[one.sequence.id] for one in scheduled], _NOTHING


def _kind(one: Scheduled) -> str:
    if one.sequence.decoder.hidden:
        return "hidden"
    return "edited" if edits_of(one) else "plain"


def _run(backend: Backend, kind: str, scheduled: list[Scheduled], reader: HiddenReader) -> Logits:
    batch = batch_of(scheduled)
    if kind == "whole":
        logits, hidden = backend.run_whole(batch, reader.hidden_names)
        ends = accumulate((one.num_rows for one in scheduled), initial=0)
        reader.observe(scheduled, [hidden[start:end] for start, end in pairwise(ends)])
        return logits
    reader.observe(scheduled, [None] * len(scheduled))
    if kind == "hidden":
        return backend.hidden(batch)
    if kind == "plain":
        return backend.run(batch)
    edits = [edit for row, one in _placed(scheduled) for edit in edits_of(one, row)]
    return inspectable(backend).run_edited(batch, edits)


def edits_of(one: Scheduled, row: int = 0) -> list[Edit]:
    """What its interventions change in its rows; ``row``: the number of its first in the step."""
    interventions = one.sequence.request.interventions
    return interventions.edits(one.start, one.num_rows, row) if interventions else []


def rows_to_state_change(sequence: "Sequence", start: int) -> int:
    """The most rows from a position on: a state is changed after the last row of a step alone."""
    made = sequence.request.interventions
    return made.rows_to_state_change(start) if made else sequence.longest


def change_states(backend: Backend, scheduled: list[Scheduled]) -> None:
    """Make the interventions on the recurrent states that were stored after the last rows."""
    for one in scheduled:
        made, row = one.sequence.request.interventions, one.num_rows - 1
        slot = dict(one.states or ()).get(row) if made and made.states else None
        memory = None if slot is None else backend.state_memory(slot)
        if made and memory is not None:
            made.change_state(memory.view(np.float32), one.start + row)


def _split(scheduled: list[Scheduled], logits: Logits) -> list[Logits]:
    """Each sequence's wanted rows, (rows, vocab), out of those of the whole step."""
    ends = accumulate((len(one.wanted) for one in scheduled), initial=0)
    return [logits[start:end] for start, end in pairwise(ends)]
