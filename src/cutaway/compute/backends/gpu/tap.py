"""Runs whose tensors can be read and edited: a program without fusions that computes the same bits.

Knows after which dispatch each tensor has been computed. An edit takes place between two pieces of
a run: the first ends with the op that computes the tensor.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cutaway.compute.backends.base import Batch, Edit, Logits
from cutaway.compute.calls import Floats
from cutaway.compute.lowering.emit import INNER
from cutaway.compute.model import Graph

if TYPE_CHECKING:
    from cutaway.compute.backends.gpu import GpuBackend


class DeviceTap:
    """A program in which each tensor to be read keeps its numbers until the run ends."""

    def __init__(self, backend: "GpuBackend", graph: Graph, names: tuple[str, ...]) -> None:
        """names: the tensors to be read after a run."""
        keeps_all = any(name.endswith(INNER) for name in names)
        self._lowered = backend.lower(graph, apart=True, keeps_all=keeps_all, also=names)
        self._runner = backend.make_runner(self._lowered.calls)
        widths = {op.out.name: op.out.width for op in self._lowered.c.ops}
        self._widths = widths | self._lowered.widths

    def run(self, batch: Batch, edits: Sequence[Edit] = ()) -> Logits:
        """See ``Inspectable``."""
        done, ends = 0, self._runner.program.ends
        ordered = sorted(edits, key=lambda edit: (self._lowered.after[edit.tensor], edit.tensor))
        for name, edits_of in groupby(ordered, lambda edit: edit.tensor):
            if (after := ends[self._lowered.after[name] - 1]) > done:
                self._runner.start(batch, done, after)
                done = after
            self._edit(name, list(edits_of), len(batch.tokens))
        self._runner.start(batch, done)
        return self._runner.read_output(len(batch.logit_rows))

    def read(self, name: str, batch: Batch) -> Floats:
        """Return a tensor of the last run, (rows, width)."""
        rows = batch.logit_rows if name in self._lowered.c.after_rows else batch.tokens
        return self._runner.read(self._lowered.view(name), len(rows), self._widths[name])

    def _edit(self, name: str, edits: list[Edit], rows: int) -> None:
        view = self._lowered.view(name)
        numbers = self._runner.read(view, rows, self._widths[name]).copy()
        for edit in edits:
            numbers[edit.rows, edit.columns] = edit.change(numbers[edit.rows, edit.columns])
        self._runner.write(view, numbers)
