"""cutaway, as `cutaway bench` measures it, but greedy like its peers here."""

from math import prod
from typing import Any

import numpy as np

from cutaway import LLM
from cutaway._version import __version__
from cutaway.features.measure import bench as runs
from cutaway.features.measure.machine import costs_of
from cutaway.files.weights import GGUFFile
from cutaway.sampling import SamplingParams

_GREEDY = SamplingParams(temperature=0)


class Engine:
    """See worker.py."""

    def __init__(self, path: str, threads: int) -> None:
        self.llm = LLM(path, backend="cpu", threads=threads)
        with GGUFFile(path) as file:
            costs = costs_of(self.llm.graph, file.tensors)
            parameters = sum(prod(info.shape) for info in file.tensors.values())
        self.info: dict[str, Any] = {
            "version": __version__, "kv_block_bytes": costs.kv.bytes_stored(1),
            "parameters": parameters, "instructions": self.llm.backend.tier,
        }  # fmt: skip
        self.rng = np.random.default_rng(0)

    def decode(self, context: int, batch: int) -> list[float]:
        """Seconds of the decode steps of one run; its prompts are read once, for all runs."""
        rng = np.random.default_rng((context, batch))
        return runs.decode(self.llm, rng, context, batch, _GREEDY, resample=False).step

    def prefill(self, tokens: int) -> list[float]:
        """Seconds of one prompt, in a list."""
        return runs.prefill(self.llm, self.rng, tokens, _GREEDY).step
