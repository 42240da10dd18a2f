"""The candidates for the masks of a text. Plain data."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cutaway.text import Tokenizer


class FillCandidate(NamedTuple):
    """A candidate for one mask.

    token_ids  one id, or several for a target of several tokens
    token      their names, joined
    text       the text that they add
    score      its probability; see ``Filled``
    """

    token_ids: tuple[int, ...]
    token: str
    text: str
    score: float

    @property
    def token_id(self) -> int | None:
        """The token's id; None for several tokens."""
        return self.token_ids[0] if len(self.token_ids) == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        ids = {"token_id": self.token_id, "token_ids": list(self.token_ids)}
        return ids | {"token": self.token, "text": self.text, "score": self.score}


class Joint(NamedTuple):
    """Candidates for all masks together, one token in each; score: their joint probability."""

    candidates: tuple[FillCandidate, ...]
    score: float


@dataclass(frozen=True)
class Filled:
    """A text's masks, each with its candidates, best first.

    method   "masked": the model's own answer, each mask for itself. "bayes": p(token | what is
             before and after), among those that were considered
    masks    the candidates of each mask, in the order of the text
    joint    of several masks: the best of all places together. "masked": the product from left to
             right, each place given those before it and the masks after it
    covered  "bayes": the share of all continuations, given what is before alone, that the single
             tokens considered have; None for "masked", which considers all
    """

    method: str
    masks: tuple[tuple[FillCandidate, ...], ...]
    joint: tuple[Joint, ...] = ()
    covered: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        joint = [
            {"candidates": [c.to_dict() for c in one.candidates], "score": one.score}
            for one in self.joint
        ]
        masks = [[c.to_dict() for c in one] for one in self.masks]
        return {"method": self.method, "masks": masks, "joint": joint, "covered": self.covered}


def candidate(tokenizer: Tokenizer, ids: Iterable[int], score: float) -> FillCandidate:
    """A candidate of these tokens."""
    ids = tuple(ids)
    names = "".join(map(tokenizer.token_name, ids))
    return FillCandidate(ids, names, tokenizer.decode(ids, special=True), score)
