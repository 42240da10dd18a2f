"""Scheduled: one sequence's rows in one step, and the arrays made of all rows of a step."""

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
CANVAS = "canvas"
"""The name, among those of adapters, which are hashes, of the graph for rows of canvases."""
_NOTHING: Logits = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class Scheduled:
    """A sequence's rows in one step: pending tokens, then draft tokens.

    start            position of the first row
    first_logit_row  the first row whose logits are wanted; those of all later rows are, too
    logit_rows       the rows whose logits are wanted, where they are not the last ones
    limits           for each row, the last position that it attends to; None: its own position
    drafted_by       what made the draft tokens: "draft" (speculation), "grammar" (which allows no
                     other token), "forced" (by the request), or its "replay"
    window_end       the position back from which windows of its rows count; None: their own
    inputs           what a canvas's rows read besides their tokens, (rows, width); None: the rows
                     are of no canvas, or read nothing
    second_from      the first position of the second of two texts; 0: there is one text
    states           (row, slot): a recurrent state to store after the row; None: no layer has one
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
    window_end: int | None = None
    inputs: Logits | None = None
    second_from: int = 0

    def set_drafts(self, token_ids: list[int], drafted_by: str) -> None:
        """Add draft tokens after the pending ones, as far as the sequence's constraint allows."""
        self.masks = self.sequence.masks(token_ids, forced=drafted_by == "forced")
        self.draft_token_ids = token_ids[: len(self.masks) - 1]
        self.drafted_by = drafted_by

    @property
    def num_rows(self) -> int:
        """How many rows the sequence has in this step."""
        return len(self.token_ids) + len(self.draft_token_ids)

    @property
    def wanted_rows(self) -> Items[int]:
        """The rows whose logits are wanted."""
        rows = self.logit_rows
        return range(self.first_logit_row, self.num_rows) if rows is None else rows


def lay_rows(parts: Items[tuple[int, Iterable[int], list[int]]]) -> tuple[Ints, Ints, Ints, Ints]:
    """Lay the rows of sequences, each (first position, tokens, blocks), one after the other.

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
    width = max([len(blocks) for _, _, blocks in parts])
    tables = [blocks + [-1] * (width - len(blocks)) for _, _, blocks in parts]
    return (
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(sequences, np.int32),
        np.array(tables, np.int32),
    )


def batch_of(scheduled: list[Scheduled]) -> Batch:
    """Return the rows of one step, sequence by sequence."""
    rows = lay_rows(
        [(s.start, s.token_ids + s.draft_token_ids, s.sequence.memory.blocks) for s in scheduled]
    )
    logit_rows = [
        first + row for first, entry in _with_first_row(scheduled) for row in entry.wanted_rows
    ]
    positions, tables = rows[1], rows[3]
    limits = _set_ends(positions, scheduled, [entry.limits for entry in scheduled])
    window_ends = _set_ends(positions, scheduled, [entry.window_end for entry in scheduled])
    return Batch(
        *rows, np.array(logit_rows, np.int32), limits, _hidden_from(scheduled, tables),
        _states(scheduled), _types(scheduled, positions), _join_inputs(scheduled), window_ends,
    )  # fmt: skip


def _with_first_row(scheduled: list[Scheduled]) -> Iterable[tuple[int, Scheduled]]:
    """Pair each entry with the number of its first row in the step."""
    ends = accumulate([entry.num_rows for entry in scheduled], initial=0)
    return zip(ends, scheduled, strict=False)


def _set_ends(
    positions: Ints, scheduled: list[Scheduled], ends: list[list[int] | int | None]
) -> Ints | None:
    """Return the rows' positions, with an entry's ends in their place; None where none has any."""
    if ends.count(None) == len(ends):
        return None
    rows = positions.copy()
    for (start, entry), end in zip(_with_first_row(scheduled), ends, strict=True):
        if end is not None:
            rows[start : start + entry.num_rows] = end
    return rows


def _join_inputs(scheduled: list[Scheduled]) -> Logits | None:
    parts = [entry.inputs for entry in scheduled if entry.inputs is not None]
    return np.concatenate(parts) if parts else None


def _types(scheduled: list[Scheduled], positions: Ints) -> Ints | None:
    second_from = [entry.second_from for entry in scheduled]
    if not any(second_from):
        return None
    types = np.zeros_like(positions)
    for start, entry in _with_first_row(scheduled):
        if entry.second_from:
            rows = slice(start, start + entry.num_rows)
            types[rows] = positions[rows] >= entry.second_from
    return types


def _states(scheduled: list[Scheduled]) -> Ints | None:
    states = [entry.states for entry in scheduled]
    if states.count(None) == len(states):
        return None
    stored = [
        (first + row, slot)
        for first, entry in _with_first_row(scheduled)
        for row, slot in entry.states or ()
    ]
    return np.array(stored, np.int32).reshape(-1, 2)


def _hidden_from(scheduled: list[Scheduled], tables: Ints) -> Logits | None:
    bound = [entry.sequence.request.interventions for entry in scheduled]
    if not [b for b in bound if b and b.knocked_out]:
        return None
    hidden_from = np.full((len(scheduled), tables.shape[1] * KV_BLOCK), np.inf, np.float32)
    for row, interventions in zip(hidden_from, bound, strict=True):
        if interventions and interventions.knocked_out:
            row[:] = interventions.hidden_from(len(row))
    return hidden_from


class HiddenReader(Protocol):
    """Reads hidden states of rows as well as their logits, as a draft head does."""

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """The model's tensors that it reads; (): the input of the model's head."""
        ...

    def reads_hidden(self, scheduled: Scheduled) -> bool:
        """Whether it reads the hidden states of all these rows."""
        ...

    def observe(self, scheduled: Items[Scheduled], hidden: Items[Logits | None]) -> None:
        """Note computed rows; hidden: (rows, hidden) of each entry that it reads, else None."""
        ...


def run_scheduled(
    backends: Mapping[str, Backend], scheduled: list[Scheduled], reader: HiddenReader
) -> tuple[list[Logits], Logits]:
    """Run the model; return each entry's logits, and one array of all if one run computed them.

    backends  the backend of each adapter
    reader    reads the hidden states of some rows

    A run is of one adapter and of one kind: plain rows, rows with interventions, or rows whose
    final hidden states are wanted instead of logits. Plain rows run together, also where some of
    them are read, since two runs would fetch all weights twice. Rows of canvases
    that read more than their tokens have a graph of their own, which counts as an adapter.
    """
    runs: dict[tuple[str, str], list[Scheduled]] = {}
    for entry in scheduled:
        kind = _kind(entry)
        graph = entry.sequence.request.adapter if entry.inputs is None else CANVAS
        runs.setdefault((graph, kind), []).append(entry)
    rows_by_id: dict[int, Logits] = {}
    for (adapter, kind), entries in runs.items():
        rows = _run_kind(backends[adapter], kind, entries, reader)
        change_states(backends[adapter], entries)
        if len(runs) == 1:
            return _split(entries, rows), _NOTHING if kind == "hidden" else rows
        entry_rows = _split(entries, rows.copy())  # the next run may write into the same memory
        rows_by_id |= zip((entry.sequence.id for entry in entries), entry_rows, strict=True)
    return [rows_by_id[entry.sequence.id] for entry in scheduled], _NOTHING


def _kind(entry: Scheduled) -> str:
    if entry.sequence.decoder.hidden:
        return "hidden"
    return "edited" if edits_of(entry) else "plain"


def _run_kind(
    backend: Backend, kind: str, scheduled: list[Scheduled], reader: HiddenReader
) -> Logits:
    batch = batch_of(scheduled)
    are_read = [kind == "plain" and reader.reads_hidden(entry) for entry in scheduled]
    if any(are_read):
        logits, hidden = backend.run_whole(batch, reader.hidden_names)
        ends = accumulate([entry.num_rows for entry in scheduled], initial=0)
        parts = [hidden[start:end] for start, end in pairwise(ends)]
        reader.observe(
            scheduled, [p if read else None for p, read in zip(parts, are_read, strict=True)]
        )
        return logits
    reader.observe(scheduled, [None] * len(scheduled))
    if kind == "hidden":
        return backend.hidden(batch)
    if kind == "plain":
        return backend.run(batch)
    edits = [edit for row, entry in _with_first_row(scheduled) for edit in edits_of(entry, row)]
    return inspectable(backend).run_edited(batch, edits)


def edits_of(entry: Scheduled, row: int = 0) -> list[Edit]:
    """Return what interventions change in an entry's rows; row: the number of its first one."""
    interventions = entry.sequence.request.interventions
    return interventions.edits(entry.start, entry.num_rows, row) if interventions else []


def rows_to_state_change(sequence: "Sequence", start: int) -> int:
    """Return the most rows of a step from here on: a state can change only after the last one."""
    interventions = sequence.request.interventions
    return interventions.rows_to_state_change(start) if interventions else sequence.longest


def change_states(backend: Backend, scheduled: list[Scheduled]) -> None:
    """Apply interventions to the recurrent states that were stored after the last rows."""
    for entry in scheduled:
        interventions = entry.sequence.request.interventions
        if not (interventions and interventions.states):
            continue
        row = entry.num_rows - 1
        slot = dict(entry.states or ()).get(row)
        stored = None if slot is None else backend.read_state(slot)
        if slot is not None and stored is not None:
            state = stored.copy()
            interventions.change_state(state.view(np.float32), entry.start + row)
            backend.write_state(slot, state)


def _split(scheduled: list[Scheduled], logits: Logits) -> list[Logits]:
    """Split the logits of the whole step into each entry's, (rows, vocab)."""
    ends = accumulate([len(entry.wanted_rows) for entry in scheduled], initial=0)
    return [logits[start:end] for start, end in pairwise(ends)]
