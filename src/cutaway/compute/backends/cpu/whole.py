"""A run that gives logits and, of all rows, tensors before the head: see ``Backend.run_whole``."""

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.base import Batch, Logits
from cutaway.compute.backends.cpu.compile import GraphCompiler
from cutaway.compute.backends.cpu.emit import Emitter
from cutaway.compute.backends.cpu.packing import PackedWeights
from cutaway.compute.model import Graph


class WholeRun:
    """A plan in which rows are chosen just before the head, so that all rows reach it.

    Tensors on the way, as the residual stream, each have a buffer in a plan without fusions.
    """

    def __init__(
        self, graph: Graph, packed: PackedWeights, plan: _native.Plan, names: tuple[str, ...]
    ) -> None:
        """plan: empty, and beside the ordinary one; names: none are what the head reads."""
        last, read = graph.choosing_last()
        by_name = {op.out.name: op.out for op in last.ops}
        self._read = [by_name[name] for name in names] or [read]
        compiler = GraphCompiler(last, *packed, hoist=False, apart=bool(names))
        self._emitter = Emitter(compiler, plan, also={one.name for one in self._read})
        self._plan = plan

    def run(self, batch: Batch) -> tuple[Logits, NDArray[np.float32]]:
        """The logits are valid until the next run."""
        logits = self._plan.run(*batch)
        rows, view = len(batch.tokens), self._emitter.view
        found = [self._plan.read(view(one.name), rows, one.width) for one in self._read]
        return logits, found[0] if len(found) == 1 else np.concatenate(found, axis=1)
