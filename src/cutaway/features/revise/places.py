"""The distribution of one token of a text given all others: Bayes' rule over candidates.

    p(v | before, after)  is proportional to  p(v | before) · p(after | before, v)

The candidates are the likeliest tokens given those before.
"""

from dataclasses import dataclass, replace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from cutaway.features.revise.state import RevisedText, RevisionModel
from cutaway.methods.rows import ScoredText, all_logprobs, likeliest
from cutaway.sampling.fixed_math import log_sum_exp

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Place:
    """One position of a text.

    prior  log p of each token given those before, (vocab,)
    after  each token that was tried -> log p of each token after it
    """

    prior: NDArray[np.float64]
    after: dict[int, tuple[float, ...]]

    def logprobs(self, token_id: int) -> tuple[float, ...]:
        """Log-probabilities of a token that was tried, and of those after it."""
        return (float(self.prior[token_id]), *self.after[token_id])

    def logprob(self, token_id: int) -> float:
        """Their sum."""
        return fsum(self.logprobs(token_id))


class PlaceReader:
    """Scores candidates for positions of a text.

    allowed     which tokens may be candidates, (vocab,)
    candidates  how many are tried at each position
    """

    def __init__(self, model: RevisionModel, allowed: Mask, candidates: int) -> None:
        self._model, self.allowed, self._candidates = model, allowed, candidates

    def at(self, text: RevisedText, position: int) -> Place:
        """The candidates at a position."""
        [(_, row)] = self._model.following([text.ids[:position]])
        considered = likeliest(row[0], self.allowed, self._candidates)
        return self.tried(text, position, Place(all_logprobs(row), {}), considered)

    def tried(self, text: RevisedText, position: int, place: Place, token_ids: list[int]) -> Place:
        """The place with these tokens tried, too."""
        own = text.ids[position]  # its log-probabilities are known
        asked = [v for v in token_ids if v != own and v not in place.after]
        head, rest = text.ids[:position], text.ids[position + 1 :]
        known = self._model.known([ScoredText((*head, v, *rest), position + 1) for v in asked])
        found = dict(zip(asked, map(tuple, known), strict=True))
        if own in token_ids:
            found[own] = text.from_(position + 1)
        return replace(place, after=place.after | found)

    def surprise(self, text: RevisedText, position: int) -> float:
        """-log p of the current token among the candidates and itself; natural."""
        own = text.ids[position]
        place = self.tried(text, position, self.at(text, position), [own])
        each = np.array([place.logprob(v) for v in sorted(place.after)])
        return log_sum_exp(each) - place.logprob(own)
