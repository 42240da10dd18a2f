"""Importance weights of n texts drawn under a constraint: an estimate, and resampling.

The weight of a text is w = Π Z over the steps that were drawn, Z being the mass that the constraint
left at a step.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, fsum
from typing import Any, NamedTuple

import numpy as np

from cutaway.base.arithmetic import plainly
from cutaway.requests.completion import Aligned, Completion
from cutaway.sampling import text_luck
from cutaway.sampling.fixed_math import log_sum_exp


class ConstraintEstimate(NamedTuple):
    """Estimates from n texts. Logarithms are natural.

    log_probability  ln P(grammar), where P is the probability that the model, drawing with the same
                     chain but without the constraint, keeps to it for these texts: ln E[w]
    kl               divergence of the constrained draw from the model's own distribution over the
                     allowed texts: E[-ln w] + ln E[w]
    effective_n      (Σ w)² / Σ w²: how many texts of equal weight would say as much
    """

    n: int
    log_probability: float
    kl: float
    effective_n: float

    @property
    @plainly
    def probability(self) -> float:
        """P(grammar)."""
        return exp(self.log_probability)

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return self._asdict() | {"probability": self.probability}


@plainly
def estimate(neg_log_z: Sequence[float]) -> ConstraintEstimate:
    """Return the estimate from -ln w of each text."""
    n, logs = len(neg_log_z), -np.array(neg_log_z, np.float64)
    total = log_sum_exp(logs)
    mean = total - log_sum_exp(np.zeros(n))
    kl = max(fsum(neg_log_z) / n + mean, 0.0)  # below 0 only by rounding
    return ConstraintEstimate(n, mean, kl, exp(2 * total - log_sum_exp(2 * logs)))


def constraint_estimate(samples: Sequence[Completion]) -> ConstraintEstimate | None:
    """Return the estimate from a request's samples, or from the aligned one; None if none exists.

    An estimate needs two or more samples, drawn at a temperature above 0 under a grammar, or with
    ``ledger`` under another constraint.
    """
    aligned = samples[0].aligned
    neg_log_zs = aligned.neg_log_z if aligned else [sample.neg_log_z for sample in samples]
    return estimate_of(neg_log_zs, samples[0].params["temperature"])


def estimate_of(neg_log_z: Sequence[float | None], temperature: float) -> ConstraintEstimate | None:
    """Return the estimate from -ln w of each sample; None as for ``constraint_estimate``."""
    values = [value for value in neg_log_z if value is not None]
    return estimate(values) if temperature and len(values) >= max(len(neg_log_z), 2) else None


def answer(samples: list[Completion], *, aligned: bool) -> Completion | list[Completion]:
    """Return a request's result: the aligned sample, the only sample, or a list of all samples."""
    if aligned:
        return align(samples)
    return samples if len(samples) > 1 else samples[0]


def answers(samples_by_prompt: Sequence[list[Completion]], *, aligned: bool, is_list: bool) -> Any:
    """Return the results of a request's prompts. is_list: whether a list of prompts was given."""
    results = [answer(samples, aligned=aligned) for samples in samples_by_prompt]
    return results if is_list else results[0]


def resample(neg_log_z: Sequence[float], seed: int) -> int:
    """Return the index of a text drawn with probability w / Σ w, by the seed's luck for texts."""
    return int(np.argmax(text_luck(seed, len(neg_log_z)) - np.array(neg_log_z, np.float64)))


@plainly
def align(samples: Sequence[Completion]) -> Completion:
    """Choose one of a request's samples by their weights, with the first sample's seed."""
    logs = [sample.neg_log_z or 0.0 for sample in samples]  # None: nothing was drawn
    index = resample(logs, samples[0].seed)
    total = log_sum_exp(-np.array(logs))
    weights = tuple(exp(-neg_log_z - total) for neg_log_z in logs)
    return replace(samples[index], aligned=Aligned(index, tuple(logs), weights))
