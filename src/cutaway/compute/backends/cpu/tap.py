"""Runs that return more than logits: tensors to be read or edited, or the head's input of all rows.

A tap has a second plan without fusions, which shares weights, threads, keys and values with the
first, and computes the same bits. An edit takes place between two pieces of a run: the first ends
with the op that computes the tensor.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.base import Batch, Edit, Logits
from cutaway.compute.backends.cpu.packing import PackedWeights
from cutaway.compute.model import Graph

Array = NDArray[np.float32]


class Tap:
    """A plan whose tensors can be read and edited."""

    def __init__(
        self, graph: Graph, packed: PackedWeights, plan: _native.Plan, *, keeps_all: bool
    ) -> None:
        """plan: empty, sharing threads, keys and values with the ordinary one.

        keeps_all: every tensor can be read after the run, which takes much memory for many rows
        """
        self._plan = plan
        self._emitter = packed.plan(plan, graph, apart=True, keeps_all=keeps_all)
        widths = {op.out.name: op.out.width for op in self._emitter.c.ops}
        self._widths = widths | self._emitter.widths

    def run(self, batch: Batch, edits: Sequence[Edit] = ()) -> Logits:
        """See ``Inspectable``; valid until the next run."""
        done = 0
        ordered = sorted(edits, key=lambda edit: (self._emitter.after[edit.tensor], edit.tensor))
        for name, tensor_edits in groupby(ordered, lambda edit: edit.tensor):
            if (after := self._emitter.after[name]) > done:
                self._plan.run(batch, done, after)
                done = after
            self._edit(name, tensor_edits, len(batch.tokens))
        return self._plan.run(batch, done)

    def read(self, name: str, batch: Batch) -> Array:
        """Return a tensor of the last run, (rows, width); the tap must keep all tensors."""
        rows = batch.logit_rows if name in self._emitter.c.after_rows else batch.tokens
        return self._plan.read(self._emitter.view(name), len(rows), self._widths[name])

    def _edit(self, name: str, edits: Iterable[Edit], rows: int) -> None:
        view = self._emitter.view(name)
        whole = self._plan.read(view, rows, self._widths[name])
        for edit in edits:
            whole[edit.rows, edit.columns] = edit.change(whole[edit.rows, edit.columns])
        self._plan.write(view, np.arange(rows, dtype=np.int32), whole)


# -- all rows before the head: see ``Backend.run_whole`` -------------------------------------------


class WholeRun:
    """A plan in which rows are chosen just before the head, so that all rows reach it.

    If names of tensors are given, the plan has no fusions, so that each tensor has a buffer.
    """

    def __init__(
        self, graph: Graph, packed: PackedWeights, plan: _native.Plan, names: tuple[str, ...]
    ) -> None:
        """plan: as for ``Tap``; names: tensors to read, or none for the head's input."""
        last, read = graph.choosing_last()
        by_name = {op.out.name: op.out for op in last.ops}
        self._read = [by_name[name] for name in names] or [read]
        also = {tensor.name for tensor in self._read}
        self._plan = plan
        self._emitter = packed.plan(plan, last, hoist=False, apart=bool(names), also=also)

    def run(self, batch: Batch) -> tuple[Logits, NDArray[np.float32]]:
        """Return the logits, valid until the next run, and the tensors side by side (M, widths)."""
        logits = self._plan.run(batch)
        rows, view = len(batch.tokens), self._emitter.view
        tensors = [self._plan.read(view(tensor.name), rows, tensor.width) for tensor in self._read]
        return logits, tensors[0] if len(tensors) == 1 else np.concatenate(tensors, axis=1)
