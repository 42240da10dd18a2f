"""Mixture: which experts compute a row, the weight of each, and the kind of MLP that each is.

Knows the definition of the choice, in NumPy, and GGUF's keys for it. Does not know how scores are
computed, and knows no architecture.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How a layer's experts are chosen by their scores, and weighed.

    used          how many experts compute a row
    gating        how a score becomes a weight: "softmax" over all scores; "sigmoid" of the score
                  alone; "sparsemixer" (arXiv 2409.12136), for each chosen expert a softmax over
                  the experts not chosen before it whose scores are nearly as high
    normed        whether the weights of a row's experts are divided by their sum. With "softmax"
                  this gives a softmax of the chosen scores alone
    scale         the factor by which the weights are multiplied in the end
    groups        how many groups of neighbouring experts there are. If there are more than one, a
                  row chooses `used_groups` groups, those whose two highest weights have the largest
                  sum, and its experts from these groups (DeepSeek-V3, arXiv 2412.19437)
    best_of_group how many weights of a group are summed: 2, or 1 (DeepSeek-V2, arXiv 2405.04434)
    activation    an expert's activation: "silu_mul", "gelu_mul", "clamped_swiglu" or
                  "capped_swiglu" of a gate and an up; "relu2" or "gelu_exact" of an up alone
    limit         the number of "clamped_swiglu" or "capped_swiglu"
    weighs_input  whether a weight multiplies its expert's input, not the output (Llama 4)
    tolerance     for "sparsemixer": how far a score may be below the best one, divided by the best
                  score or by the size of the lower one, whichever divisor is larger
    """

    used: int
    gating: str = "softmax"
    normed: bool = True
    scale: float = 1.0
    groups: int = 1
    used_groups: int = 1
    best_of_group: int = 2
    activation: str = "silu_mul"
    limit: float = 0.0
    weighs_input: bool = False
    tolerance: float = 0.0

    @property
    def is_gated(self) -> bool:
        """Whether an expert's MLP has a gate in addition to its up matrix."""
        return self.activation not in ("relu2", "gelu_exact")

    def check(self, experts: int, prefix: str) -> None:
        """Raise FormatError if a row cannot choose its experts from this number of experts."""
        per_group, left = divmod(experts, self.groups)
        fits = self.used_groups <= self.groups and self.used <= per_group * self.used_groups
        if left or not fits or (self.groups > 1 and per_group < 2):
            raise FormatError(
                f"{prefix}: {self.used} of {experts} experts cannot be chosen from "
                f"{self.used_groups} of {self.groups} groups (expert_used_count, "
                "expert_group_used_count, expert_group_count)"
            )

    def choose(
        self, scores: NDArray[Any], bias: NDArray[Any] | None = None
    ) -> tuple[NDArray[np.int64], Floats]:
        """Choose each row's experts, best first, and weigh them: scores (M, n) -> 2 · (M, used).

        bias (n,): added to the weights only for the choice (Wang et al. 2024, arXiv 2408.15664).
        Of equals the lowest index is chosen. All is computed in float64.
        """
        scores = scores.astype(np.float64)
        if self.gating == "sparsemixer":
            return self._one_by_one(scores)
        weights = _softmax(scores) if self.gating == "softmax" else _sigmoid(scores)
        ranking = scores if bias is None else weights + bias.astype(np.float64)
        if self.groups > 1:
            ranking = self._mask_groups(weights if bias is None else ranking)
        ids = np.argsort(-ranking, axis=-1, kind="stable")[:, : self.used]
        shares = np.take_along_axis(weights, ids, axis=-1)
        if self.normed:
            shares /= shares.sum(axis=-1, keepdims=True)
        return ids, shares * self.scale

    def _one_by_one(self, scores: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Choose experts one by one, each time the best of those left, as "sparsemixer" does."""
        left, rows = scores.copy(), np.arange(len(scores))
        ids = np.empty((len(scores), self.used), np.int64)
        weights = np.empty(ids.shape)
        for rank in range(self.used):
            winner = ids[:, rank] = left.argmax(axis=-1)
            best = left[rows, winner][:, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                is_far = (best - left) / np.maximum(abs(left), best) > self.tolerance
            left_out = is_far | np.isneginf(left)
            weights[:, rank] = 1 / np.exp(np.where(left_out, -np.inf, left - best)).sum(axis=-1)
            left[rows, winner] = -np.inf
        return ids, weights * self.scale

    def _mask_groups(self, ranking: Floats) -> Floats:
        """Set the ranking of experts outside the best groups to minus infinity."""
        grouped = ranking.reshape(len(ranking), self.groups, -1)
        best = np.sort(grouped, axis=-1)[..., -self.best_of_group :].sum(axis=-1)  # (M, groups)
        order = np.argsort(-best, axis=-1, kind="stable")
        left_out = order[:, self.used_groups :]
        masked = grouped.copy()
        np.put_along_axis(masked, left_out[..., None], -np.inf, axis=1)
        return masked.reshape(ranking.shape)


def _softmax(scores: Floats) -> Floats:
    share: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    return share


def _sigmoid(scores: Floats) -> Floats:
    e = np.exp(-np.abs(scores))
    weights: Floats = np.where(scores < 0, e, 1.0) / (1 + e)
    return weights


# -- reading a file's metadata ---------------------------------------------------------------------


GATING_KEY, SIGMOID = "expert_gating_func", 2
_GATINGS = {1: "softmax", SIGMOID: "sigmoid", 3: "softmax"}
_OF_CHOSEN = 3  # a softmax of the chosen scores; it equals a softmax of all scores, normed


def mixture_of(read: MetadataReader, usual: Mixture, experts: int) -> Mixture:
    """Read how experts are chosen. FormatError for a gating that is not supported.

    usual: the architecture's values of keys that the file lacks
    experts: how many experts a layer has
    """
    gating = read.size_or_zero(GATING_KEY)
    if gating not in (0, *_GATINGS):
        raise FormatError(
            f"metadata key {read.prefix}.expert_gating_func is {gating}, which is not supported; "
            f"only {', '.join(map(str, _GATINGS))} are"
        )
    groups = read.size_or_zero("expert_group_count") or usual.groups
    used_groups = read.size_or_zero("expert_group_used_count") or groups
    used = read.size("expert_used_count", largest=experts)
    if groups in (1, used_groups):
        groups = used_groups = 1
    kind = _GATINGS.get(gating, usual.gating)
    return replace(
        usual,
        used=used,
        gating=kind,
        best_of_group=usual.best_of_group if kind == usual.gating else 2,
        normed=gating == _OF_CHOSEN or read.flag("expert_weights_norm", usual.normed),
        scale=read.or_zero("expert_weights_scale") or usual.scale,
        groups=groups,
        used_groups=used_groups,
    )
