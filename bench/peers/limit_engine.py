"""What the machine allows: a decode step can take no less time than reading what it must read.

The read rate is measured in every turn, as an engine's steps are, in a buffer as large as the
weights.
"""

from math import inf
from typing import Any

from cutaway.base import _native
from cutaway.base.reading_rate import ReadingRate
from cutaway.compute.loading.parts import Parts
from cutaway.features.measure.machine import costs_of
from cutaway.files.weights import GGUFFile


class Engine:
    """See worker.py."""

    def __init__(self, path: str, threads: int) -> None:
        with GGUFFile(path) as file:
            self.costs = costs_of(Parts.read(file).graph, file.tensors)
        self.memory = ReadingRate(_native.Pool(threads), self.costs.step_bytes(0))
        self.info: dict[str, Any] = {"version": ""}

    def decode(self, context: int, batch: int) -> list[float]:
        """Seconds of a decode step in which nothing but reading takes time."""
        return [batch / self.costs.decode_limit(context, batch, self.memory.measure(), inf)]

    def prefill(self, _tokens: int) -> list[float]:
        """Reading is not what limits a prompt: no time at all."""
        return []
