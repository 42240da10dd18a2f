"""Changes bound to a graph and a prompt: which numbers of which tensor become what, in which rows.

This is the definition of every change, for every backend: NumPy, float32, number by number, so that
a row's result depends on that row alone. Refuses to know who computes the tensor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.model.anatomy import Anatomy
from cutaway.compute.model.graph import Graph
from cutaway.engine.changes.change import Change, check_place
from cutaway.engine.changes.spans import LAST, Spans, behind
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.compute.backends import Edit

Floats = NDArray[np.float32]
_ALL: Spans = ((0, LAST),)
NEVER = np.float32(np.inf)
"""From no row on: a position that all see."""


class Affine(NamedTuple):
    """factor · x + added, number by number, in float64."""

    factor: NDArray[np.float64]
    added: NDArray[np.float64]


@dataclass(frozen=True)
class Placed:
    """A change where it is made: columns of a tensor, in rows of these positions."""

    change: Change
    tensor: str
    first: int
    last: int
    spans: Spans

    def made(self, x: Floats) -> Floats:
        """What is read instead of x, (rows, columns)."""
        number = np.float32(self.change.number)
        with np.errstate(all="ignore"):  # a text that is not finite any more ends with that error
            if self.change.kind == "scale":
                return x * number
            if self.change.kind == "add":
                return x + number * self.change.numbers
        return np.broadcast_to(self.change.numbers, x.shape)

    def rows(self, start: int, count: int) -> NDArray[np.int32]:
        """Which of the rows at positions start … start + count - 1."""
        parts = [
            np.arange(max(first, start), min(last, start + count - 1) + 1, dtype=np.int32)
            for first, last in self.spans
        ]
        return np.concatenate(parts) - np.int32(start) if parts else np.empty(0, np.int32)


@dataclass(frozen=True)
class Bound:
    """All changes of one text.

    placed  in the order in which they were given
    blind   (first, last, from): positions, and the first whose rows do not see them
    """

    placed: tuple[Placed, ...]
    blind: tuple[tuple[int, int, int], ...]

    def edits(self, start: int, count: int, row: int) -> "list[Edit]":
        """Of rows at positions start … start + count - 1, the first of which is ``row``."""
        from cutaway.compute.backends import Edit  # a trace is read without them

        found = ((one, one.rows(start, count)) for one in self.placed)
        return [
            Edit(one.tensor, rows + np.int32(row), slice(one.first, one.last), one.made)
            for one, rows in found
            if len(rows)
        ]

    def blind_from(self, positions: int) -> Floats:
        """Of each position, the first whose rows do not see it; see ``Batch.blind``."""
        made = np.full(positions, NEVER)
        for first, last, start in self.blind:
            here = np.arange(first, min(last + 1, positions))
            made[here] = np.minimum(made[here], np.maximum(here + 1, start))
        return made

    def affine(self, position: int, widths: Mapping[str, int]) -> "dict[str, Affine]":
        """What one row's changes make of x in each tensor that has some: a · x + b."""
        made: dict[str, Affine] = {}
        for one in self.placed:
            if not len(one.rows(position, 1)):
                continue
            width = widths[one.tensor]
            known = made.setdefault(one.tensor, Affine(np.ones(width), np.zeros(width)))
            here, change = slice(one.first, one.last), one.change
            if change.kind != "add":
                factor = float(np.float32(change.number)) if change.kind == "scale" else 0.0
                known.factor[here] *= factor
                known.added[here] *= factor
            if change.kind != "scale":
                strength = float(np.float32(change.number)) if change.kind == "add" else 1.0
                known.added[here] += strength * change.numbers.astype(np.float64)
        return made

    @cached_property
    def salt(self) -> tuple[int, str]:
        """The first position whose row may be another than without the changes, and their hash.

        What is stored from there on is this text's own, and that of others changed alike.
        """
        firsts = [one.spans[0][0] for one in self.placed if one.spans]
        firsts += [max(first + 1, start) for first, _, start in self.blind]
        told = [
            (
                one.tensor,
                one.first,
                one.spans,
                one.change.kind,
                one.change.number,
                one.change.sha256,
            )
            for one in self.placed
        ]
        name = sha256(repr((told, self.blind)).encode()).hexdigest()
        return min(firsts, default=LAST), name


def bind(changes: Iterable[Change], graph: Graph, prompt_tokens: int) -> Bound:
    """Find their places; InputError where the model has no such place, or a vector does not fit."""
    anatomy = Anatomy(graph)
    placed: list[Placed] = []
    hidden: list[tuple[int, int, int]] = []
    for one in changes:
        start = 0 if one.from_step is None else prompt_tokens - 1 + one.from_step
        spans = one.positions or _ALL
        if one.kind == "blind":
            hidden += [(first, last, start) for first, last in spans]
        else:
            where = find(anatomy, one.where)
            _check_width(one, where[2] - where[1])
            placed.append(Placed(one, *where, behind(spans, start)))
    return Bound(tuple(placed), tuple(hidden))


def find(anatomy: Anatomy, where: str) -> tuple[str, int, int]:
    """The tensor of a place, and its columns there; InputError where the model has none."""
    layer, part = check_place(where)
    if layer >= len(anatomy.attends):
        last = len(anatomy.attends) - 1
        raise InputError(f"change: there is no {where}: the layers are 0 to {last}")
    if not part:
        name = anatomy.stream[layer + 1]
    elif part[0] == "H":
        op, head = anatomy.attends[layer], int(part[1:])
        heads, dim = op.attrs["heads"], op.attrs["head_dim"]
        if head >= heads:
            raise InputError(f"change: there is no {where}: the heads are 0 to {heads - 1}")
        return op.out.name, head * dim, (head + 1) * dim
    else:
        name = anatomy.added[where]
    return name, 0, anatomy.maker[name].out.width


def _check_width(change: Change, width: int) -> None:
    if change.vector and len(change.numbers) != width:
        raise InputError(
            f"change: a vector for {change.where} has {width} numbers, not {len(change.numbers)}"
        )
