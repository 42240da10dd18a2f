"""What the engine's own sampler draws from a starting point under some settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.features.practice.start import Start
from cutaway.sampling import History, SamplingParams, apply, build_chain, derive_seed
from cutaway.sampling.chain import StageReport, choose
from cutaway.sampling.definitions import Candidates, LogitsRow
from cutaway.sampling.fixed_math import entropy, ordered_sum
from cutaway.trace.figures import in_bits

K, P, COLD, HOT = 2, 0.9, 0.5, 2.0

WAYS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "pure sampling": {},
    f"top-k {K}": {"top_k": K},
    f"top-p {P:g}": {"top_p": P},
    f"temperature {COLD:g}": {"temperature": COLD},
    f"temperature {HOT:g}": {"temperature": HOT},
}
"""The name of each method -> its keywords of SamplingParams."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A chain run over the tokens of a start. Rows that survived -> figures, likeliest first.

    logits         as the draw sees them
    weights        exp(logit - largest logit)
    shares         weight / total: the probabilities
    bits           surprise, -log2 of the share
    scores         logit + luck
    total          sum of the weights
    entropy        in bits
    removed_mass   how much probability the filters removed
    pick           the row that is drawn
    """

    logits: dict[int, float]
    weights: dict[int, float]
    shares: dict[int, float]
    bits: dict[int, float]
    scores: dict[int, float]
    total: float
    entropy: float
    removed_mass: float
    pick: int


def outcome(start: Start, **settings: Any) -> Outcome:
    """Apply the settings, keywords of SamplingParams; pure sampling where none is given."""
    params = _params(start, settings)
    c, ledger = _survivors(start, params)
    logits, weights = c.logits.astype(np.float64), c.weights()
    total, luck = ordered_sum(weights), start.luck
    rows = [start.token_ids.index(token_id) for token_id in c.ids]

    def by_row(figures: NDArray[np.float64]) -> dict[int, float]:
        return {rows[at]: float(figures[at]) for at in c.best_first()}

    return Outcome(
        by_row(logits),
        by_row(weights),
        by_row(weights / total),
        by_row(in_bits(ledger[-1].log_sum_exp - logits)),
        by_row(logits + [luck[row] for row in rows]),
        total,
        in_bits(entropy(logits)),
        sum(report.removed_mass for report in ledger[1:]),  # the first is our processor
        start.token_ids.index(choose(c, params, start.seed, start.position)),
    )


def draws(start: Start, times: int) -> tuple[int, ...]:
    """How often each row is drawn by pure sampling, with the seeds that n samples have."""
    params = _params(start, {})
    c, _ = _survivors(start, params)
    counts = dict.fromkeys(start.token_ids, 0)
    for n in range(times):
        counts[choose(c, params, derive_seed(start.seed, n), start.position)] += 1
    return tuple(counts.values())


def _survivors(start: Start, params: SamplingParams) -> tuple[Candidates, tuple[StageReport, ...]]:
    """The candidates after the chain, and the ledger."""
    row = np.zeros(max(start.token_ids) + 1, np.float32)  # (largest id + 1,)
    row[list(start.token_ids)] = start.logits
    return apply(build_chain(params), row, History())


def _params(start: Start, settings: dict[str, Any]) -> SamplingParams:
    """Settings with a processor that removes all tokens but those of the start."""
    ids = list(start.token_ids)

    def only(_: list[int], logits: LogitsRow) -> LogitsRow:
        kept = np.full_like(logits, -np.inf)
        kept[ids] = logits[ids]
        return kept

    pure: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    return SamplingParams(**(pure | settings), processors=(only,))
