"""The candidates on the way from a row of logits to a token: ids and their processed logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError
from cutaway.sampling.fixed_math import exp

LogitsRow = NDArray[np.float32]


class NothingAllowedError(CutawayError):
    """A constraint allows none of the tokens that are left."""


class History(NamedTuple):
    """The tokens that penalties look at."""

    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()

    @property
    def token_ids(self) -> list[int]:
        """Both, in the order of the text."""
        return [*self.prompt_token_ids, *self.output_token_ids]


class Context(NamedTuple):
    """What a stage may look at besides the logits.

    mask            a bit per token id, in words of 32 (ceil(vocab / 32),), set where the token is
                    allowed; None allows all
    seed, place     of the draw: what its luck is a function of
    """

    history: History
    mask: NDArray[np.uint32] | None = None
    seed: int = 0
    place: int = 0


@dataclass(slots=True)
class Candidates:
    """Token ids, ascending, (n,), and their processed logits, (n,)."""

    ids: NDArray[np.int64]
    logits: LogitsRow

    @classmethod
    def all_of(cls, logits: LogitsRow) -> Self:
        """Every token of a row (vocab,)."""
        return cls(np.arange(len(logits), dtype=np.int64), logits)

    def best_first(self) -> NDArray[np.int64]:
        """Indices from the highest logit down; ties go to the lowest id."""
        return np.argsort(-self.logits, kind="stable")

    def find(self, token_id: int) -> int | None:
        """The index of a token that is still a candidate; None where it is not."""
        at = int(np.searchsorted(self.ids, token_id))
        return at if at < len(self.ids) and self.ids[at] == token_id else None

    def depths(self) -> NDArray[np.float64]:
        """How far each logit is below the highest, (n,)."""
        wide = self.logits.astype(np.float64)
        depths: NDArray[np.float64] = wide.max() - wide
        return depths

    def weights(self) -> NDArray[np.float64]:
        """exp(logit - max), (n,): probabilities before they are divided by their sum."""
        return exp(-self.depths())

    def keep(self, kept: NDArray[Any]) -> "Candidates":
        """Those at these indices, ascending, or where a mask (n,) is true."""
        return Candidates(self.ids[kept], self.logits[kept])
