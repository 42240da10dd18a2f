"""Ops that only move numbers within a row."""

from dataclasses import dataclass

import numpy as np

from cutaway.compute.calls import JoinCall, OpCall, ReorderCall
from cutaway.compute.model.op import Array, Lowering, Op, Run, Site, Tensor
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError


@dataclass(frozen=True, kw_only=True)
class Pick(Op, kind="pick"):
    """Takes numbers first … last - 1 of each group of neighbouring numbers."""

    group: int
    first: int
    last: int

    def _compute(self, _: Run, x: Array) -> Array:
        groups = x.reshape(len(x), x.shape[1] // self.group, self.group)  # M may be 0
        return groups[..., self.first : self.last].reshape(len(x), self.out.width)

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        width = at.widths[0]
        order = np.arange(width, dtype=np.int32).reshape(-1, self.group)[:, self.first : self.last]
        return ReorderCall(at.late, at.reads[0], order.ravel().tolist(), at.out)


@dataclass(frozen=True, kw_only=True)
class Join(Op, kind="join"):
    """Joins a and b group by group: the numbers of a group of a, then those of a group of b."""

    groups: int

    def _compute(self, _: Run, a: Array, b: Array) -> Array:
        parts = [x.reshape(len(x), self.groups, x.shape[1] // self.groups) for x in (a, b)]
        return np.concatenate(parts, axis=-1).reshape(len(a), self.out.width)

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        a, b = zip(at.reads, (width // self.groups for width in at.widths), strict=True)
        return JoinCall(at.late, a, b, self.groups, at.out)


class Spread(Op, kind="spread"):
    """Repeats each number, so that the gate of a head becomes one gate for each of its numbers."""

    def _compute(self, _: Run, x: Array) -> Array:
        return np.repeat(x, self.out.width // x.shape[1], axis=1)

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        width = at.widths[0]
        order = np.repeat(np.arange(width, dtype=np.int32), self.out.width // width)
        return ReorderCall(at.late, at.reads[0], order.tolist(), at.out)


class Reorder(Op, kind="reorder"):
    """Puts number order[i] of the input in place i; lowering adds this op for column orders."""

    def _compute(self, run: Run, x: Array) -> Array:
        return x[:, run.weight(self.weights["order"]).astype(int)]

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        order = to.vector(self.weights["order"]).astype(np.int32).tolist()
        return ReorderCall(at.late, at.reads[0], order, at.out)


class ShapeMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def pick(self, x: Tensor, group: int, first: int, last: int) -> Tensor:
        """Take numbers first … last - 1 of groups: (M, n) -> (M, n / group · (last - first))."""
        self._expect_groups(x, group)
        if not 0 <= first < last <= group:
            raise FormatError(f"{x.name} has groups of {group}, and not {first} to {last} of them")
        width = x.width // group * (last - first)
        return self._add(Pick, width, x, group=group, first=first, last=last)

    def join(self, a: Tensor, b: Tensor, groups: int) -> Tensor:
        """Put numbers of a before those of b, group by group: (M, n), (M, m) -> (M, n + m)."""
        for x in (a, b):
            if x.width % groups:
                raise FormatError(f"{x.name} is {x.width} wide, which is no {groups} groups")
        return self._add(Join, a.width + b.width, a, b, groups=groups)

    def spread(self, x: Tensor, width: int) -> Tensor:
        """Repeat each number: (M, n) -> (M, width); return x itself if it is as wide."""
        if width % x.width:
            raise FormatError(f"{x.name} is {x.width} wide, which does not divide {width}")
        return x if width == x.width else self._add(Spread, width, x)
