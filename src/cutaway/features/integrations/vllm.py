"""Drawing tokens in vLLM with cutaway's luck (Gumbel noise).

    vllm serve MODEL --logits-processors cutaway.features.integrations.vllm:VllmSeededLuck

Knows vLLM's interface of logits processors (that of its version 1 engine) and no other part of it.
A request has ``luck_seed`` and ``luck_temperature`` among its extra arguments (``vllm_xargs`` over
HTTP), and temperature 0: vLLM's greedy token is then the token that the luck draws. Penalties and
masks are applied before the luck; vLLM's own truncation does nothing at temperature 0.
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
    """A request of the batch. output_ids: vLLM's own list, which grows."""

    seed: int
    temperature: float
    prompt_tokens: int
    output_ids: list[int]


class VllmSeededLuck(LogitsProcessor):  # type: ignore[misc]  # vLLM may not be installed
    """Divides each logit by the temperature, and adds the token's noise."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002
        self._rows: dict[int, _Row] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError, which vLLM answers with status 400, for invalid arguments."""
        _read_luck(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """Return False: the noise changes which token is the greedy one."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Update which request is in each row of the batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt, output_ids in batch_update.added:
            self._put(index, None)
            if luck := _read_luck(params):
                self._put(index, _Row(*luck, len(prompt or ()), output_ids))
        for source, target, direction in batch_update.moved:
            first, second = self._rows.get(source), self._rows.get(target)
            self._put(target, first)
            self._put(source, second if direction == MoveDirectionality.SWAP else None)

    def apply(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Divide by the temperature and add noise, in place. logits: float32 (requests, vocab)."""
        ids = np.arange(logits.shape[-1])
        for index, row in self._rows.items():
            noise = gumbel(row.seed, row.prompt_tokens + len(row.output_ids), ids)
            wide = logits[index].double()
            logits[index] = wide / row.temperature + wide.new_tensor(noise)
        return logits

    def _put(self, index: int, row: _Row | None) -> None:
        if row is None:
            self._rows.pop(index, None)
        else:
            self._rows[index] = row


def _read_luck(params: Any) -> tuple[int, float] | None:
    """Read a request's luck_seed and luck_temperature; None if the request has neither."""
    arguments: Mapping[str, Any] = params.extra_args or {}
    if not any(name in arguments for name in _NAMES):
        return None
    seed, temperature = arguments.get("luck_seed"), arguments.get("luck_temperature", 1.0)
    if not (isinstance(seed, int) and 0 <= seed < 2**64):
        raise ValueError(f"luck_seed must be a whole number from 0 to 2**64 - 1, not {seed!r}")
    if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
        raise ValueError(f"luck_temperature must be a positive number, not {temperature!r}")
    if params.temperature != 0:
        raise ValueError("with luck_seed, temperature must be 0: luck_temperature is the model's")
    return seed, float(temperature)
