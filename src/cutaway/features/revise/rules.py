"""The rules of revision: what each proposes, and with what probability it is accepted.

Gibbs and Metropolis leave a distribution π unchanged: the power α of the model's own over texts,
p^α, among texts of this length that are made of tokens which add text.
"""

from collections.abc import Sequence
from math import fsum, inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Logits
from cutaway.features.revise.places import Mask, Place, PlaceReader
from cutaway.features.revise.state import Proposal, RevisedText, RevisionModel
from cutaway.methods.rows import ScoredText
from cutaway.sampling import gumbel, trial_seed
from cutaway.sampling.fixed_math import log_sum_exp


class RevisionRule(Protocol):
    """A rule of revision."""

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:
        """Propose tokens from this position on; the seed is for this trial alone."""
        ...


class Gibbs:
    """A token drawn from what fits in its place: always accepted.

    Tried are the candidates and one other token: the one that is there, where it is no
    candidate, else one that is drawn from the rest with r(w) ~ p(w | before)^α. The draw is among
    these, the other's weight divided by r(w). It is the exact conditional of both, of the pair's

        π(v, w) = π(v) · r(w) for a candidate v, and π(w) where v is w itself

    whose sum over w is π(v). So the target is the same with any number of candidates, and every
    token can be reached.
    """

    def __init__(self, places: PlaceReader, power: float) -> None:
        self._places, self._power = places, power

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:
        """See ``RevisionRule``."""
        place, own = self._places.at(text, position), text.ids[position]
        other, log_r = self._other(place, own, position, trial_seed(seed, 0))
        place = self._places.tried(text, position, place, [other])
        ids = np.array(sorted(place.after))
        weights = np.array([self._power * place.logprob(v) for v in ids.tolist()])
        weights -= np.where(ids == other, log_r, 0.0)
        best = int(np.argmax(weights + gumbel(seed, position, ids)))
        shares, drawn = weights - log_sum_exp(weights), int(ids[best])
        return Proposal(
            position, position + 1, (drawn,), place.logprobs(drawn), log_ratio=0.0,
            forward=float(shares[best]), reverse=float(shares[ids == own][0]),
        )  # fmt: skip

    def _other(self, place: Place, own: int, position: int, seed: int) -> tuple[int, float]:
        """The token tried besides the candidates, and its log r; if there is none, own and 0."""
        rest = np.flatnonzero(self._places.allowed)
        rest = rest[~np.isin(rest, [*place.after])]
        if not len(rest):
            return own, 0.0
        weights = self._power * place.prior[rest]
        drawn = int(rest[np.argmax(weights + gumbel(seed, position, rest))])
        other = drawn if own in place.after else own
        return other, self._power * float(place.prior[other]) - log_sum_exp(weights)


class Better:
    """The best candidate, if it makes the text likelier; nothing is drawn."""

    def __init__(self, places: PlaceReader) -> None:
        self._places = places

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:  # noqa: ARG002
        """See ``RevisionRule``."""
        place, own = self._places.at(text, position), text.ids[position]
        best = max(sorted(place.after), key=place.logprob)
        place = self._places.tried(text, position, place, [own])
        ratio = 0.0 if place.logprob(best) > place.logprob(own) else -inf
        return Proposal(position, position + 1, (best,), place.logprobs(best), ratio)


class Metropolis:
    """Tokens from a position on, drawn again by the loop at temperature 1 / α.

    Accepted with min(1, (p(new) / p(old))^α · q(old) / q(new)), q being how likely that draw is
    (Karan & Du, "Reasoning with Sampling", arXiv 2510.14901).

    span  tokens drawn at once; None: to the end
    """

    def __init__(self, model: RevisionModel, allowed: Mask, power: float, span: int | None) -> None:
        self._model, self._allowed, self._power, self._span = model, allowed, power, span
        self._places_of = np.cumsum(allowed) - 1  # of each token among those that are allowed

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:
        """See ``RevisionRule``."""
        head, end = text.ids[:position], self._end(text, position)
        ids = self._model.drawn(head, end - position, 1 / self._power, seed)
        [logprobs] = self._model.known([ScoredText((*head, *ids, *text.ids[end:]), position)])
        q = self._model.known(
            [ScoredText((*head, *ids), position), ScoredText(text.ids[:end], position)],
            self._drawn_as,
        )
        forward, reverse = map(fsum, q)
        gain = fsum(logprobs) - fsum(text.from_(position))
        ratio = self._power * gain + reverse - forward
        return Proposal(position, end, ids, tuple(logprobs), ratio, forward, reverse)

    def _end(self, text: RevisedText, position: int) -> int:
        """The end of the span, which stops before a token that may not be replaced."""
        last = len(text.ids) if self._span is None else position + self._span
        within = range(position, min(last, len(text.ids)))
        return next((i for i in within if not self._allowed[text.ids[i]]), within.stop)

    def _drawn_as(self, logits: Logits, token_ids: Sequence[int]) -> list[float]:
        """log q of each token: divided as the stage does, among those that are allowed."""
        return [
            self._log_share(row[self._allowed] / np.float32(1 / self._power), token_id)
            for row, token_id in zip(logits, token_ids, strict=True)
        ]

    def _log_share(self, logits: NDArray[np.float32], token_id: int) -> float:
        wide = logits.astype(np.float64)
        return float(wide[self._places_of[token_id]]) - log_sum_exp(wide)
