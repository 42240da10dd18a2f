"""OpenVINO GenAI on a GGUF file.

It caches prefixes unless told otherwise, so every prompt is made of fresh tokens. Its times are
those at which it noted new tokens; a process holds one pipeline.
"""

import os
from importlib import import_module
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

_STEPS, _WARM = 32, 4
_VOCAB = 1000, 40_000  # ids to draw prompts from; the pipeline does not tell how many it has


class Engine:
    """See worker.py."""

    def __init__(self, path: str, threads: int) -> None:
        self.lib: Any = import_module("openvino_genai")
        self.tensor: Any = import_module("openvino").Tensor
        self.pipeline = self.lib.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
        self.rng = np.random.default_rng(0)
        limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
        self.info: dict[str, Any] = {
            "version": self.lib.__version__.split("-")[0],
            "instructions": limit and f"at most {limit} (ONEDNN_MAX_CPU_ISA)",
        }

    def decode(self, context: int, batch: int) -> list[float]:
        """Seconds of the decode steps of one run."""
        metrics = self._generate(context, batch, _STEPS + 1).perf_metrics.raw_metrics
        times = list(metrics.m_new_token_times)  # milliseconds
        return [(b - a) / 1e3 for a, b in pairwise(times)][_WARM:]

    def prefill(self, tokens: int) -> list[float]:
        """Seconds of one prompt, in a list."""
        started = perf_counter()
        self._generate(tokens, 1, 1)
        return [perf_counter() - started]

    def _generate(self, context: int, batch: int, new: int) -> Any:
        config = self.lib.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new
        config.ignore_eos, config.do_sample = True, False
        ids = self.rng.integers(*_VOCAB, (batch, context)).astype(np.int64)
        inputs = self.lib.TokenizedInputs(self.tensor(ids), self.tensor(np.ones_like(ids)))
        return self.pipeline.generate(inputs, config)
