"""What the ops of a graph gave, read after a run that has the bits of one that does not show them.

Knows a second plan whose ops are apart: the same weights, threads, keys and values, but none of its
ops is one with another, and no buffer serves two tensors. Refuses to know what is done with them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cutaway import _native
from cutaway.backends.base import Batch, Logits
from cutaway.backends.cpu.compile import Compiler
from cutaway.backends.cpu.emit import Emitter

Array = NDArray[np.float32]


class Tap:
    """A plan that can be looked into."""

    def __init__(self, compiler: Compiler, plan: _native.Plan) -> None:
        """compiler: of the graph, apart; plan: empty, beside the one that it looks into."""
        self._compiler, self._plan = compiler, plan
        self._emitter = Emitter(compiler, plan)
        self._widths = {op.out.name: op.out.width for op in compiler.ops}

    def run(self, batch: Batch, names: Sequence[str]) -> tuple[Logits, dict[str, Array]]:
        """See ``Backend.tap``."""
        b = batch
        logits = self._plan.run(
            b.tokens, b.positions, b.sequences, b.block_tables, b.logit_rows, b.limits
        ).copy()
        return logits, {name: self._read(name, batch) for name in dict.fromkeys(names)}

    def _read(self, name: str, batch: Batch) -> Array:
        rows = batch.logit_rows if name in self._compiler.after_rows else batch.tokens
        return self._plan.read(self._emitter.view(name), len(rows), self._widths[name])
