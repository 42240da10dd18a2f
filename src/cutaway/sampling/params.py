"""SamplingParams: what the caller asked of the sampler, checked once.

Knows the names, ranges and defaults of the settings. Refuses to know what they do
(chain.py) and who set them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.checks import check_int
from cutaway.errors import InputError
from cutaway.sampling.presets import PRESETS

LogitsRow = NDArray[np.float32]
Processor = Callable[[list[int], LogitsRow], LogitsRow]
"""A user's own stage: (prompt and output ids so far, logits (vocab,)) -> logits (vocab,)."""

MAX_SEED = 2**64 - 1
_NUMBERS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, Real) and not isinstance(value, bool) and isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond float
        pass
    raise InputError(f"{name} must be a finite number, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen.

    temperature        0 is greedy; otherwise 0.01 to 100
    top_k              keep the k most likely tokens; 0 keeps all
    top_p              keep the smallest set with at least this mass, in (0, 1]; 1 keeps all
    min_p              keep tokens at least this likely relative to the best, in [0, 1); 0 keeps all
    repetition_penalty divides positive and multiplies negative logits of every token in the
                       prompt or output (Keskar et al. 2019, arXiv 1909.05858), 0.01 to 100;
                       1 is off
    presence_penalty   subtracted once from tokens already in the output, -2 to 2
    frequency_penalty  subtracted once per occurrence in the output, -2 to 2
    logit_bias         token id -> added to its logit, -100 to 100
    seed               0 to 2**64 - 1; None lets the engine choose one, and report it
    preset             whose order of stages: a key of PRESETS
    processors         callables that see and may change the logits before temperature

    Raises InputError, one sentence naming the field, for a value outside its range.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.9
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    preset: str = "cutaway"
    processors: tuple[Processor, ...] = ()

    def __post_init__(self) -> None:
        for name in _NUMBERS:  # stored as plain numbers, whatever they came as
            self._store(name, _number(name, getattr(self, name)))
        if not (self.temperature == 0 or 0.01 <= self.temperature <= 100):
            raise InputError(
                f"temperature must be 0 (greedy) or between 0.01 and 100, not {self.temperature}"
            )
        self._store("top_k", check_int("top_k", self.top_k, 0))
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise InputError(f"min_p must be at least 0 and below 1, not {self.min_p}")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise InputError(
                f"repetition_penalty must be between 0.01 and 100, not {self.repetition_penalty}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise InputError(f"{name} must be between -2 and 2, not {getattr(self, name)}")
        self._check_bias()
        if not isinstance(self.preset, str) or self.preset not in PRESETS:
            raise InputError(f"preset must be one of {', '.join(PRESETS)}, not {self.preset!r}")
        if self.seed is not None:
            self._store("seed", check_int("seed", self.seed, 0, MAX_SEED))
        many = isinstance(self.processors, (tuple, list))
        if not (many and all(callable(processor) for processor in self.processors)):
            raise InputError(f"processors must be a tuple of callables, not {self.processors!r}")

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InputError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r}")
        plain: dict[int, float] = {}
        for given, bias in self.logit_bias.items():
            token_id = check_int("logit_bias: a token id", given, 0)
            plain[token_id] = _number(f"logit_bias[{token_id}]", bias)
            if not -100 <= plain[token_id] <= 100:
                raise InputError(f"logit_bias[{token_id}] must be between -100 and 100, not {bias}")
        self._store("logit_bias", plain)

    def _store(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the class is frozen for everybody else
