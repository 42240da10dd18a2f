"""A text while it is revised, what a rule proposes, and what a rule needs of a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple, Protocol

from cutaway.compute.backends import Logits
from cutaway.methods.filling.causal import Ids, PerToken, ScoredText


class RevisionModel(Protocol):
    """What is asked; see ``Causal``."""

    def following(self, texts: Iterable[Ids]) -> Iterator[tuple[int, Logits]]:
        """(index, logits (1, vocab)) of what comes after each."""
        ...

    def known(self, texts: Sequence[ScoredText], look: PerToken | None = None) -> list[list[float]]:
        """What ``look`` finds of each token that is looked up, or its log-probability."""
        ...

    def drawn(self, head: Ids, count: int, temperature: float, seed: int) -> Ids:
        """So many tokens that add to the text, drawn by the loop after what is given."""
        ...


class Proposal(NamedTuple):
    """Other tokens in the place of those from ``position`` to ``end``.

    logprobs   of all tokens of the text from ``position`` on, if these were there
    log_ratio  the logarithm of the chance of taking them; above 0: certain
    forward, reverse  see ``RevisionTrial``
    """

    position: int
    end: int
    ids: Ids
    logprobs: tuple[float, ...]
    log_ratio: float
    forward: float | None = None
    reverse: float | None = None


@dataclass(frozen=True)
class RevisedText:
    """All of it as token ids.

    given     how many of the first are never replaced
    logprobs  of each token from there on, given those before it
    """

    ids: Ids
    given: int
    logprobs: tuple[float, ...]

    @property
    def logprob(self) -> float:
        """Of all that was not given."""
        return fsum(self.logprobs)

    def from_(self, position: int) -> tuple[float, ...]:
        """Log-probabilities of the tokens from one on."""
        return self.logprobs[position - self.given :]

    def with_(self, proposal: Proposal) -> "RevisedText":
        """What is proposed, in its place."""
        at = proposal.position
        ids = (*self.ids[:at], *proposal.ids, *self.ids[proposal.end :])
        return RevisedText(ids, self.given, self.logprobs[: at - self.given] + proposal.logprobs)
