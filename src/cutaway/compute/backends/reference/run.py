"""Run: what ops read beside their inputs."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.base import Batch
from cutaway.compute.backends.reference.kv import KVBlocks
from cutaway.compute.backends.reference.states import StateSlots
from cutaway.compute.model import Op

Array = NDArray[np.float32]


class Run(NamedTuple):
    """What ops read beside their inputs.

    weights  by tensor name, matrices as (out, in)
    batch    M rows
    kv       keys and values of earlier batches, and of this one as soon as they are computed
    states   recurrent states, likewise
    note     takes the name and the numbers of a tensor that is no op's result: attention's weights,
             what the last matrices of experts read
    """

    weights: Mapping[str, Array]
    batch: Batch
    kv: KVBlocks
    states: StateSlots
    note: Callable[[str, Array], None]

    def weight(self, op: Op, role: str = "weight") -> Array:
        """The tensor that an op has in a role."""
        return self.weights[op.weights[role]]
