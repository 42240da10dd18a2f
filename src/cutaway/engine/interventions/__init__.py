"""Interventions as data: what is scaled, added, patched or knocked out while one text is computed.

``llm.generate(prompt, interventions=[scale("L25.H2", 0), knock_out("3-7")])``: names of places,
what each intervention computes there, and where both are in a graph.

Here they are bound to a graph and a prompt: which columns of which tensor change in which rows. It
is the definition of each, for every backend: NumPy, float32, number by number, so that a row's
result depends on that row alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.compute.model.anatomy import Anatomy
from cutaway.compute.model.graph import Graph
from cutaway.compute.model.ops.states import HeadStates
from cutaway.engine.interventions.intervention import (
    LAST,
    Intervention,
    Spans,
    add,
    check_interventions,
    check_place,
    control_vector,
    from_position,
    knock_out,
    numbered,
    parse_intervention,
    patch,
    scale,
)
from cutaway.errors import InputError

blind = knock_out  # its earlier name

__all__ = [
    "Affine", "BoundInterventions", "Intervention", "add", "bind", "blind", "check_interventions",
    "control_vector", "find", "knock_out", "parse_intervention", "patch", "scale",
]  # fmt: skip

if TYPE_CHECKING:
    from cutaway.compute.backends import Edit

Floats = NDArray[np.float32]
_ALL: Spans = ((0, LAST),)
NEVER = np.float32(np.inf)
"""``hidden_from`` of a position that every later row attends to."""
STATE = "state"
"""What ``find`` calls the recurrent state of a text: of all layers, as ``state_layout`` has it."""


class Affine(NamedTuple):
    """factor · x + added, number by number, in float64."""

    factor: NDArray[np.float64]
    added: NDArray[np.float64]


@dataclass(frozen=True)
class PlacedIntervention:
    """An intervention at its place: columns of a tensor, in rows of these positions.

    Or numbers of the recurrent state, as it is after these rows.
    """

    intervention: Intervention
    tensor: str
    first: int
    last: int
    spans: Spans

    @plainly
    def apply(self, x: Floats) -> Floats:
        """What replaces x, (rows, columns)."""
        one = self.intervention
        with np.errstate(all="ignore"):  # if the logits overflow, that is the text's error
            if one.kind == "scale":
                return x * np.float32(one.number)
            if one.kind == "add":
                return x + np.float32(one.number) * one.numbers
        return np.broadcast_to(one.numbers, x.shape)

    def rows(self, start: int, count: int) -> NDArray[np.int32]:
        """Which of the rows at positions start … start + count - 1 it changes, from 0."""
        parts = [
            np.arange(max(first, start), min(last, start + count - 1) + 1, dtype=np.int32)
            for first, last in self.spans
        ]
        return np.concatenate(parts) - np.int32(start) if parts else np.empty(0, np.int32)


@dataclass(frozen=True)
class BoundInterventions:
    """All interventions of one text.

    placed       in the order in which they were given
    knocked_out  (first, last, from): positions, and the first whose row does not attend to them
    states       those on the recurrent state
    """

    placed: tuple[PlacedIntervention, ...]
    knocked_out: tuple[tuple[int, int, int], ...]
    states: tuple[PlacedIntervention, ...] = ()

    def edits(self, start: int, count: int, row: int) -> "list[Edit]":
        """What changes in rows ``row``, row + 1, … of a batch, at positions start, start + 1, …"""
        from cutaway.compute.backends import Edit  # a trace is read without them

        found = ((one, one.rows(start, count)) for one in self.placed)
        return [
            Edit(one.tensor, rows + np.int32(row), slice(one.first, one.last), one.apply)
            for one, rows in found
            if len(rows)
        ]

    def hidden_from(self, positions: int) -> Floats:
        """For each position the first later one whose row does not attend to it."""
        made = np.full(positions, NEVER)
        for first, last, start in self.knocked_out:
            here = np.arange(first, min(last + 1, positions))
            made[here] = np.minimum(made[here], np.maximum(here + 1, start))
        return made

    def rows_to_state_change(self, start: int) -> int:
        """How many rows from ``start`` on there are up to one after which the state is changed."""
        spans = (span for one in self.states for span in one.spans)
        return min((max(a, start) - start + 1 for a, b in spans if b >= start), default=LAST)

    @plainly
    def change_state(self, state: Floats, position: int) -> None:
        """Change a text's state as it is after the row at a position, in place."""
        for one in self.states:
            if len(one.rows(position, 1)):
                here = state[None, one.first : one.last]
                here[:] = one.apply(here)

    @plainly
    def affine(self, position: int, widths: Mapping[str, int]) -> "dict[str, Affine]":
        """One row's interventions as a · x + b, by the name of the tensor."""
        made: dict[str, Affine] = {}
        for one in self.placed:
            if len(one.rows(position, 1)):
                width = widths[one.tensor]
                known = made.setdefault(one.tensor, _unchanged(width))
                _then(known, one.intervention, slice(one.first, one.last))
        return made

    @plainly
    def state_affine(self, position: int, place: slice) -> Affine | None:
        """What changes a part of the state after a row, as a · x + b; None: nothing does."""
        made: Affine | None = None
        for one in self.states:
            here = slice(max(one.first, place.start), min(one.last, place.stop))
            if here.start < here.stop and len(one.rows(position, 1)):
                made = made or _unchanged(place.stop - place.start)
                within = slice(here.start - place.start, here.stop - place.start)
                read = slice(here.start - one.first, here.stop - one.first)
                _then(made, one.intervention, within, read)
        return made

    @cached_property
    def salt(self) -> tuple[int, str]:
        """The first position whose row may differ because of them, and their hash.

        From there on, keys and values are shared only with texts of the same interventions.
        """
        placed = self.placed + self.states
        firsts = [one.spans[0][0] for one in placed if one.spans]
        firsts += [max(first + 1, start) for first, _, start in self.knocked_out]
        pairs = ((one, one.intervention) for one in placed)
        each = [(p.tensor, p.first, p.spans, i.kind, i.number, i.sha256) for p, i in pairs]
        name = sha256(repr((each, self.knocked_out)).encode()).hexdigest()
        return min(firsts, default=LAST), name


@plainly
def bind(
    interventions: Iterable[Intervention], graph: Graph, prompt_tokens: int
) -> BoundInterventions:
    """Find their places; InputError where the model has no such place, or a vector does not fit."""
    anatomy = Anatomy(graph)
    placed: list[PlacedIntervention] = []
    states: list[PlacedIntervention] = []
    hidden: list[tuple[int, int, int]] = []
    for i, one in enumerate(interventions):
        start = 0 if one.from_step is None else prompt_tokens - 1 + one.from_step
        spans = one.positions or _ALL
        if one.kind == "knock_out":
            hidden += [(first, last, start) for first, last in spans]
            continue
        with numbered(i):
            tensor, first_column, end = find(anatomy, one.where)
            if one.vector and len(one.numbers) != (width := end - first_column):
                raise InputError(
                    "intervention",
                    f": a vector for {one.where} has {width} numbers, not {len(one.numbers)}",
                )
        kind = states if tensor == STATE else placed
        of_rows = from_position(spans, start)
        kind.append(PlacedIntervention(one, tensor, first_column, end, of_rows))
    return BoundInterventions(tuple(placed), tuple(hidden), tuple(states))


def _unchanged(width: int) -> Affine:
    return Affine(np.ones(width), np.zeros(width))


def _then(known: Affine, given: Intervention, here: slice, read: slice = slice(None)) -> None:
    """Have some numbers changed after what is known; read: which numbers of the vector they get."""
    if given.kind != "add":
        factor = float(np.float32(given.number)) if given.kind == "scale" else 0.0
        known.factor[here] *= factor
        known.added[here] *= factor
    if given.kind != "scale":
        strength = float(np.float32(given.number)) if given.kind == "add" else 1.0
        known.added[here] += strength * given.numbers[read].astype(np.float64)


def find(anatomy: Anatomy, where: str) -> tuple[str, int, int]:
    """The tensor of a place, and its columns there; InputError where the model has none."""
    layer, part = check_place(where)
    if layer > (last := len(anatomy.stream) - 2):
        raise InputError("intervention", f": there is no {where}: the layers are 0 to {last}")
    if not part:
        name = anatomy.stream[layer + 1]
    elif part[0] == "H":
        if layer not in anatomy.heads:
            raise InputError("intervention", f": there is no {where}: that layer has no heads")
        (op, dim), head = anatomy.heads[layer], int(part[1:])
        if head >= (heads := op.out.width // dim):
            raise InputError(
                "intervention", f": there is no {where}: the heads are 0 to {heads - 1}"
            )
        return op.out.name, head * dim, (head + 1) * dim
    elif part[0] == "V":
        if layer not in anatomy.values:
            raise InputError(
                "intervention", f": there is no {where}: that layer has no values of its own"
            )
        (name, first, width, count), value = anatomy.values[layer], int(part[1:])
        if value >= count:
            raise InputError(
                "intervention", f": there is no {where}: the values are 0 to {count - 1}"
            )
        return name, first + value * width, first + (value + 1) * width
    elif part[0] == "S":
        return STATE, *_in_state(anatomy, layer, part, where)
    elif where not in anatomy.added:
        here = [name for name in anatomy.added if name.startswith(f"L{layer}.")]
        raise InputError(
            "intervention", f": there is no {where}: layer {layer} has {', '.join(here)}"
        )
    else:
        name = anatomy.added[where]
    return name, 0, anatomy.maker[name].out.width


def _in_state(anatomy: Anatomy, layer: int, part: str, where: str) -> tuple[int, int]:
    """The first number of a layer's recurrent state, or of one head's, and the one after it."""
    from cutaway.compute.backends.layout import state_layout  # here: a trace needs no backend

    places, _ = state_layout(anatomy.graph)
    ops = [op for op in anatomy.graph.states if op.layer == layer]
    if not ops:
        raise InputError(
            "intervention", f": there is no {where}: that layer has no recurrent state"
        )
    if part == "S":
        return places[ops[0].out.name].start, places[ops[-1].out.name].stop
    matrices = [op for op in ops if isinstance(op, HeadStates)]
    if not matrices:
        raise InputError("intervention", f": there is no {where}: that layer's state has no heads")
    (heads, keys, values), head = matrices[0].state, int(part[1:])
    if head >= heads:
        raise InputError("intervention", f": there is no {where}: the heads are 0 to {heads - 1}")
    first = places[matrices[0].out.name].start + head * keys * values
    return first, first + keys * values
