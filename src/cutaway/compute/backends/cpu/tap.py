"""What the ops of a graph gave, read or changed: a run that has the bits of one that does not.

Knows a second plan whose ops are apart: the same weights, threads, keys and values, but none of its
ops is one with another. What is changed is changed between two pieces of a run, the first of which
ends with the op that gives it.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.base import Batch, Edit, Logits
from cutaway.compute.backends.cpu.compile import GraphCompiler
from cutaway.compute.backends.cpu.emit import Emitter

Array = NDArray[np.float32]


class Tap:
    """A plan that can be changed, and looked into."""

    def __init__(self, compiler: GraphCompiler, plan: _native.Plan, *, kept: bool) -> None:
        """compiler: of the graph, apart; plan: empty, beside the one whose bits it has.

        kept: each tensor is there when a run is over, which takes much memory where rows are many
        """
        self._compiler, self._plan = compiler, plan
        self._emitter = Emitter(compiler, plan, kept=kept)
        self._widths = {op.out.name: op.out.width for op in compiler.ops}

    def run(self, batch: Batch, edits: Sequence[Edit] = ()) -> Logits:
        """See ``Inspectable``; valid until the next run."""
        done = 0
        ordered = sorted(edits, key=lambda edit: (self._emitter.after[edit.tensor], edit.tensor))
        for name, mine in groupby(ordered, lambda edit: edit.tensor):
            if (after := self._emitter.after[name]) > done:
                self._piece(batch, done, after)
                done = after
            self._make(name, mine, len(batch.tokens))
        return self._piece(batch, done, None)

    def read(self, name: str, batch: Batch) -> Array:
        """A tensor of the last run, where they are kept."""
        rows = batch.logit_rows if name in self._compiler.after_rows else batch.tokens
        return self._plan.read(self._emitter.view(name), len(rows), self._widths[name])

    def _piece(self, batch: Batch, first: int, last: int | None) -> Logits:
        b = batch
        return self._plan.run(
            b.tokens, b.positions, b.sequences, b.block_tables, b.logit_rows, b.limits,
            b.hidden_from, first, last,
        )  # fmt: skip

    def _make(self, name: str, edits: Iterable[Edit], rows: int) -> None:
        view = self._emitter.view(name)
        whole = self._plan.read(view, rows, self._widths[name])
        for edit in edits:
            whole[edit.rows, edit.columns] = edit.change(whole[edit.rows, edit.columns])
        self._plan.write(view, np.arange(rows, dtype=np.int32), whole)
