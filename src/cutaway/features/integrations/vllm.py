"""Drawing by our luck in vLLM.

    vllm serve MODEL --logits-processors cutaway.features.integrations.vllm:VllmSeededLuck

Knows vLLM's interface of logits processors (that of its version 1 engine) and no other part of it.
A request says ``luck_seed`` and ``luck_temperature`` in its extra arguments (``vllm_xargs`` over
HTTP) and temperature 0: vLLM's greedy token is then the one that the luck draws. Penalties and
masks come before; vLLM's own truncation does nothing at temperature 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from cutaway.sampling.luck import gumbel

if TYPE_CHECKING:
    import torch

_NAMES = ("luck_seed", "luck_temperature")


@dataclass(frozen=True, slots=True)
class _Row:
    """A request of the batch. written: vLLM's own list, which grows."""

    seed: int
    temperature: float
    prompt_tokens: int
    written: list[int]


class VllmSeededLuck(LogitsProcessor):  # type: ignore[misc]  # vLLM need not be there
    """Adds each token's noise to its logit, times the temperature."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002
        self._rows: dict[int, _Row] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """ValueError for arguments that mean nothing, which vLLM answers with status 400."""
        _asked(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """No: it draws."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Who is where in the batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt, written in batch_update.added:
            self._put(index, None)
            if asked := _asked(params):
                self._put(index, _Row(*asked, len(prompt or ()), written))
        for one, other, how in batch_update.moved:
            first, second = self._rows.get(one), self._rows.get(other)
            self._put(other, first)
            self._put(one, second if how == MoveDirectionality.SWAP else None)

    def apply(self, logits: "torch.Tensor") -> "torch.Tensor":
        """float32 (requests, vocab), changed in place."""
        ids = np.arange(logits.shape[-1])
        for index, row in self._rows.items():
            noise = gumbel(row.seed, row.prompt_tokens + len(row.written), ids)
            wide = logits[index].double()
            logits[index] = wide / row.temperature + wide.new_tensor(noise)
        return logits

    def _put(self, index: int, row: _Row | None) -> None:
        if row is None:
            self._rows.pop(index, None)
        else:
            self._rows[index] = row


def _asked(params: Any) -> tuple[int, float] | None:
    """Seed and temperature of a request; None where it does not ask for the luck of a seed."""
    given: Mapping[str, Any] = params.extra_args or {}
    if not any(name in given for name in _NAMES):
        return None
    seed, temperature = given.get("luck_seed"), given.get("luck_temperature", 1.0)
    if not (isinstance(seed, int) and 0 <= seed < 2**64):
        raise ValueError(f"luck_seed must be a whole number from 0 to 2**64 - 1, not {seed!r}")
    if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
        raise ValueError(f"luck_temperature must be a positive number, not {temperature!r}")
    if params.temperature != 0:
        raise ValueError("with luck_seed, temperature must be 0: luck_temperature is the model's")
    return seed, float(temperature)
