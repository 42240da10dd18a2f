"""cutaway with its weights in a file, in the folder that OFFLOAD_FOLDER names; see offload.py."""

import os
from typing import Any

import numpy as np

from cutaway import LLM
from cutaway._version import __version__
from cutaway.features.measure import bench as runs


class Engine:
    """See worker.py. What it draws does not repeat itself, as a greedy text of it would."""

    def __init__(self, path: str, threads: int) -> None:
        folder = os.environ["OFFLOAD_FOLDER"]
        self.llm = LLM(path, threads=threads, context=512, kv_tokens=512, offload_folder=folder)
        self.rng = np.random.default_rng(0)
        self.info: dict[str, Any] = {"version": __version__}

    def decode(self, context: int, batch: int) -> list[float]:
        """Seconds of the decode steps of one run."""
        return runs.decode(self.llm, self.rng, context, batch, resample=False).step
