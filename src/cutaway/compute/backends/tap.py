"""Runs whose tensors can be read and edited, by a plan without fusions that has the same bits.

An edit is made between two pieces of a run; the first piece ends with the op that computes the
edited tensor.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Protocol

from cutaway.compute.backends.base import Batch, Edit, Logits
from cutaway.compute.calls import Floats, View
from cutaway.compute.lowering.emit import Emitter


class PlanRunner(Protocol):
    """A plan with the memory of its tensors."""

    def run(self, batch: Batch, first: int = 0, last: int | None = None, /) -> Floats:
        """Run the ops first … last - 1; return the output's rows, valid until the next run."""
        ...

    def run_on(self, x: Floats, /) -> Floats:
        """Run on rows of the input, (rows, width), instead of tokens; return rows as ``run``."""
        ...

    def read(self, view: View, rows: int, width: int, /) -> Floats:
        """Return a tensor of the last run, (rows, width); nothing may have overwritten it since."""
        ...

    def write(self, view: View, numbers: Floats, /) -> None:
        """Overwrite the first rows of a tensor between two pieces of a run."""
        ...


class Tap:
    """A plan in which each tensor to be read keeps its numbers until the run ends."""

    def __init__(self, runner: PlanRunner, lowered: Emitter) -> None:
        """lowered: the runner's plan, in which nothing is fused."""
        self._runner, self._lowered = runner, lowered
        self._widths = {op.out.name: op.out.width for op in lowered.c.ops} | lowered.widths

    def run(self, batch: Batch, edits: Sequence[Edit] = ()) -> Logits:
        """Run with edits, and return the logits, valid until the next run; see ``Inspectable``."""
        done, after = 0, self._lowered.after
        ordered = sorted(edits, key=lambda edit: (after[edit.tensor], edit.tensor))
        for name, tensor_edits in groupby(ordered, lambda edit: edit.tensor):
            if after[name] > done:
                self._runner.run(batch, done, after[name])
                done = after[name]
            self._edit(name, tensor_edits, len(batch.tokens))
        return self._runner.run(batch, done)

    def read(self, name: str, batch: Batch) -> Floats:
        """Return a tensor of the last run, (rows, width)."""
        rows = batch.logit_rows if name in self._lowered.c.after_rows else batch.tokens
        return self._runner.read(self._lowered.view(name), len(rows), self._widths[name])

    def _edit(self, name: str, edits: Iterable[Edit], rows: int) -> None:
        view = self._lowered.view(name)
        whole = self._runner.read(view, rows, self._widths[name]).copy()
        for edit in edits:
            whole[edit.rows, edit.columns] = edit.change(whole[edit.rows, edit.columns])
        self._runner.write(view, whole)
