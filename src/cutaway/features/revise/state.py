"""A text under revision, a rule's proposal, and the Protocol of a rule's model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple, Protocol

from cutaway.base.arithmetic import plainly
from cutaway.compute.backends import Logits
from cutaway.methods.rows import Ids, PerToken, ScoredText


class RevisionModel(Protocol):
    """The model of a rule; see ``Loop``."""

    def following(self, texts: Iterable[Ids]) -> Iterator[tuple[int, Logits]]:
        """See ``Causal``."""
        ...

    def known(self, texts: Sequence[ScoredText], look: PerToken | None = None) -> list[list[float]]:
        """See ``Causal``."""
        ...

    def drawn(self, head: Ids, count: int, temperature: float, seed: int) -> Ids:
        """See ``Loop``."""
        ...


class Proposal(NamedTuple):
    """Tokens to replace those from ``position`` to ``end``.

    logprobs   of all tokens of the proposed text from ``position`` on
    log_ratio  log of the probability of accepting; above 0: certain
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
    """A text under revision.

    given     how many of the first tokens are never replaced
    logprobs  of each token from there on, given those before it
    """

    ids: Ids
    given: int
    logprobs: tuple[float, ...]

    @property
    @plainly
    def logprob(self) -> float:
        """The log-probability of all tokens after the given ones."""
        return fsum(self.logprobs)

    def from_(self, position: int) -> tuple[float, ...]:
        """Log-probabilities of the tokens from ``position`` on."""
        return self.logprobs[position - self.given :]

    def with_(self, proposal: Proposal) -> "RevisedText":
        """The text with a proposal accepted."""
        at = proposal.position
        ids = (*self.ids[:at], *proposal.ids, *self.ids[proposal.end :])
        return RevisedText(ids, self.given, self.logprobs[: at - self.given] + proposal.logprobs)
