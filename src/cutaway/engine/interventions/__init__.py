"""Interventions as data: what is scaled, added, patched or knocked out while a text is computed.

``llm.generate(prompt, interventions=[scale("L25.H2", 0), knock_out("3-7")])``: each names a place
in the model and the change of its activations.

``bind`` finds the places in a graph and the rows in a prompt: which columns of which tensor change
in which rows. ``PlacedIntervention.apply`` defines each change for every backend, in NumPy and in
float32. It works number by number, so that a row's result depends on that row alone.
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
    number_errors,
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
"""The value of ``hidden_from`` for a position that every later row attends to."""
STATE = "state"
"""The tensor that ``find`` returns for a recurrent state: all layers, as in ``state_layout``."""


class Affine(NamedTuple):
    """The map x → factor · x + offset, number by number, in float64."""

    factor: NDArray[np.float64]
    offset: NDArray[np.float64]


@dataclass(frozen=True)
class PlacedIntervention:
    """An intervention on columns of a tensor, in the rows at some positions.

    If ``tensor`` is STATE, the columns are numbers of the recurrent state after these rows.
    """

    intervention: Intervention
    tensor: str
    first: int
    last: int
    spans: Spans

    @plainly
    def apply(self, x: Floats) -> Floats:
        """Return what replaces x, (rows, columns)."""
        intervention = self.intervention
        with np.errstate(all="ignore"):  # if the logits overflow, that is the text's error
            if intervention.kind == "scale":
                return x * np.float32(intervention.number)
            if intervention.kind == "add":
                return x + np.float32(intervention.number) * intervention.numbers
        return np.broadcast_to(intervention.numbers, x.shape)

    def rows(self, start: int, count: int) -> NDArray[np.int32]:
        """Return the indices of the rows that it changes, of rows start … start + count - 1."""
        parts = [
            np.arange(max(first, start), min(last, start + count - 1) + 1, dtype=np.int32)
            for first, last in self.spans
        ]
        return np.concatenate(parts) - np.int32(start) if parts else np.empty(0, np.int32)


@dataclass(frozen=True)
class BoundInterventions:
    """All interventions of one text.

    activations  interventions on activations, in the order of the request
    knocked_out  (first, last, from): positions, and the first row that does not attend to them
    states       interventions on the recurrent state
    """

    activations: tuple[PlacedIntervention, ...]
    knocked_out: tuple[tuple[int, int, int], ...]
    states: tuple[PlacedIntervention, ...] = ()

    def edits(self, start: int, count: int, row: int) -> "list[Edit]":
        """Return the edits of rows row, row + 1, … of a batch: ``count`` rows from ``start`` on."""
        from cutaway.compute.backends import Edit  # here: reading a trace needs no backend

        pairs = ((change, change.rows(start, count)) for change in self.activations)
        return [
            Edit(
                change.tensor, rows + np.int32(row), slice(change.first, change.last), change.apply
            )
            for change, rows in pairs
            if len(rows)
        ]

    def hidden_from(self, positions: int) -> Floats:
        """Return for each position the first later row that does not attend to it, or NEVER."""
        hidden_from = np.full(positions, NEVER)
        for first, last, start in self.knocked_out:
            here = np.arange(first, min(last + 1, positions))
            hidden_from[here] = np.minimum(hidden_from[here], np.maximum(here + 1, start))
        return hidden_from

    def rows_to_state_change(self, start: int) -> int:
        """Return how many rows there are from ``start`` to the next one that changes the state."""
        spans = (span for change in self.states for span in change.spans)
        return min((max(a, start) - start + 1 for a, b in spans if b >= start), default=LAST)

    @plainly
    def change_state(self, state: Floats, position: int) -> None:
        """Change, in place, a text's state as it is after the row at a position."""
        for change in self.states:
            if len(change.rows(position, 1)):
                here = state[None, change.first : change.last]
                here[:] = change.apply(here)

    @plainly
    def affine(self, position: int, widths: Mapping[str, int]) -> "dict[str, Affine]":
        """Return one row's interventions as affine maps, by the name of the tensor."""
        affines: dict[str, Affine] = {}
        for change in self.activations:
            if len(change.rows(position, 1)):
                width = widths[change.tensor]
                affine = affines.setdefault(change.tensor, _identity(width))
                _compose(affine, change.intervention, slice(change.first, change.last))
        return affines

    @plainly
    def state_affine(self, position: int, place: slice) -> Affine | None:
        """Return the affine change of a part of the state after a row; None if there is none."""
        affine: Affine | None = None
        for change in self.states:
            here = slice(max(change.first, place.start), min(change.last, place.stop))
            if here.start < here.stop and len(change.rows(position, 1)):
                affine = affine or _identity(place.stop - place.start)
                within = slice(here.start - place.start, here.stop - place.start)
                read = slice(here.start - change.first, here.stop - change.first)
                _compose(affine, change.intervention, within, read)
        return affine

    @cached_property
    def salt(self) -> tuple[int, str]:
        """The first position whose row may differ because of the interventions, and their hash.

        From there on, keys and values are shared only with texts of the same interventions.
        """
        changes = self.activations + self.states
        firsts = [change.spans[0][0] for change in changes if change.spans]
        firsts += [max(first + 1, start) for first, _, start in self.knocked_out]
        pairs = ((change, change.intervention) for change in changes)
        contents = [(p.tensor, p.first, p.spans, i.kind, i.number, i.sha256) for p, i in pairs]
        name = sha256(repr((contents, self.knocked_out)).encode()).hexdigest()
        return min(firsts, default=LAST), name


@plainly
def bind(
    interventions: Iterable[Intervention], graph: Graph, prompt_tokens: int
) -> BoundInterventions:
    """Bind interventions to places; InputError if a place is missing, or a vector does not fit."""
    anatomy = Anatomy(graph)
    activations: list[PlacedIntervention] = []
    states: list[PlacedIntervention] = []
    hidden: list[tuple[int, int, int]] = []
    for i, intervention in enumerate(interventions):
        start = 0 if intervention.from_step is None else prompt_tokens - 1 + intervention.from_step
        spans = intervention.positions or _ALL
        if intervention.kind == "knock_out":
            hidden += [(first, last, start) for first, last in spans]
            continue
        with number_errors(i):
            tensor, first_column, end = find(anatomy, intervention.where)
            if intervention.vector and len(intervention.numbers) != (width := end - first_column):
                raise InputError(
                    "intervention",
                    f": a vector for {intervention.where} has {width} numbers, not "
                    f"{len(intervention.numbers)}",
                )
        changes = states if tensor == STATE else activations
        row_spans = from_position(spans, start)
        changes.append(PlacedIntervention(intervention, tensor, first_column, end, row_spans))
    return BoundInterventions(tuple(activations), tuple(hidden), tuple(states))


def _identity(width: int) -> Affine:
    return Affine(np.ones(width), np.zeros(width))


def _compose(
    affine: Affine, intervention: Intervention, here: slice, read: slice = slice(None)
) -> None:
    """Apply an intervention after an affine map, in place.

    here: the numbers that the intervention changes
    read: the numbers of its vector that it uses for them
    """
    if intervention.kind != "add":
        factor = float(np.float32(intervention.number)) if intervention.kind == "scale" else 0.0
        affine.factor[here] *= factor
        affine.offset[here] *= factor
    if intervention.kind != "scale":
        strength = float(np.float32(intervention.number)) if intervention.kind == "add" else 1.0
        affine.offset[here] += strength * intervention.numbers[read].astype(np.float64)


def find(anatomy: Anatomy, place: str) -> tuple[str, int, int]:
    """Return a place's tensor, its first column and its end; InputError where there is no place."""
    layer, part = check_place(place)
    if layer > (last := len(anatomy.stream) - 2):
        raise InputError("intervention", f": there is no {place}: the layers are 0 to {last}")
    if not part:
        name = anatomy.stream[layer + 1]
    elif part[0] == "H":
        if layer not in anatomy.heads:
            raise InputError("intervention", f": there is no {place}: that layer has no heads")
        (op, dim), head = anatomy.heads[layer], int(part[1:])
        if head >= (heads := op.out.width // dim):
            raise InputError(
                "intervention", f": there is no {place}: the heads are 0 to {heads - 1}"
            )
        return op.out.name, head * dim, (head + 1) * dim
    elif part[0] == "V":
        if layer not in anatomy.values:
            raise InputError(
                "intervention", f": there is no {place}: that layer has no values of its own"
            )
        (name, first, width, count), value = anatomy.values[layer], int(part[1:])
        if value >= count:
            raise InputError(
                "intervention", f": there is no {place}: the values are 0 to {count - 1}"
            )
        return name, first + value * width, first + (value + 1) * width
    elif part[0] == "S":
        return STATE, *_find_in_state(anatomy, layer, part, place)
    elif place not in anatomy.added_tensors:
        here = [name for name in anatomy.added_tensors if name.startswith(f"L{layer}.")]
        raise InputError(
            "intervention", f": there is no {place}: layer {layer} has {', '.join(here)}"
        )
    else:
        name = anatomy.added_tensors[place]
    return name, 0, anatomy.maker[name].out.width


def _find_in_state(anatomy: Anatomy, layer: int, part: str, place: str) -> tuple[int, int]:
    """Return the first number and the end of a layer's recurrent state, or of one head's part."""
    from cutaway.compute.backends.layout import state_layout  # here: a trace needs no backend

    places, _ = state_layout(anatomy.graph)
    ops = [op for op in anatomy.graph.states if op.layer == layer]
    if not ops:
        raise InputError(
            "intervention", f": there is no {place}: that layer has no recurrent state"
        )
    if part == "S":
        return places[ops[0].out.name].start, places[ops[-1].out.name].stop
    matrices = [op for op in ops if isinstance(op, HeadStates)]
    if not matrices:
        raise InputError("intervention", f": there is no {place}: that layer's state has no heads")
    (heads, keys, values), head = matrices[0].state, int(part[1:])
    if head >= heads:
        raise InputError("intervention", f": there is no {place}: the heads are 0 to {heads - 1}")
    first = places[matrices[0].out.name].start + head * keys * values
    return first, first + keys * values
