"""A run that gives logits and, of all rows, what the head reads: see ``Backend.run_whole``."""

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.base import Batch, Logits
from cutaway.compute.backends.cpu.compile import GraphCompiler
from cutaway.compute.backends.cpu.emit import Emitter
from cutaway.compute.backends.cpu.packing import PackedWeights
from cutaway.compute.model import Graph


class WholeRun:
    """A plan in which rows are chosen just before the head, so that all rows reach it."""

    def __init__(self, graph: Graph, packed: PackedWeights, plan: _native.Plan) -> None:
        """plan: empty, and beside the ordinary one."""
        last, self._read = graph.choosing_last()
        compiler = GraphCompiler(last, *packed, hoist=False)
        self._emitter = Emitter(compiler, plan, also=self._read.name)
        self._plan = plan

    def run(self, batch: Batch) -> tuple[Logits, NDArray[np.float32]]:
        """The logits are valid until the next run."""
        logits = self._plan.run(*batch)
        read = self._emitter.view(self._read.name)
        return logits, self._plan.read(read, len(batch.tokens), self._read.width)
