"""The record of a revision: the draft, every trial, and the result. Plain data."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import SequenceMatcher
from math import log
from typing import Any, NamedTuple

from cutaway.base.arithmetic import plainly
from cutaway.text import Tokenizer

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RevisionTrial:
    """One attempt to replace tokens. Logarithms are natural.

    index           0 for the first
    position        of the first of these tokens, prompt included
    was, proposed   token ids: those that were there, and those that were tried
    was_text, proposed_text  what they add to the text
    logprob_before  of the draft before the trial, given the prompt
    logprob_after   of the draft with what is proposed
    forward         of drawing this: among those that were tried (gibbs), or by the loop
                    (metropolis); None where nothing is drawn
    reverse         of drawing what was there
    chance          of accepting. "gibbs": 1. "metropolis": min(1, e^r), r being
                    power · (after - before) + reverse - forward. "better": 1 where it is likelier
    luck            it was accepted if this, between 0 and 1, is below ``chance``
    """

    index: int
    position: int
    was: Ids
    proposed: Ids
    was_text: str
    proposed_text: str
    logprob_before: float
    logprob_after: float
    forward: float | None
    reverse: float | None
    chance: float
    luck: float

    @property
    def accepted(self) -> bool:
        """Whether the proposal was taken; it may equal what was there."""
        return self.luck < self.chance

    @property
    @plainly
    def gain(self) -> float:
        """By how many bits the proposal lowers the draft's surprise."""
        return (self.logprob_after - self.logprob_before) / log(2)

    @property
    def now(self) -> Ids:
        """The tokens after the trial."""
        return self.proposed if self.accepted else self.was

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"now": self.now, "accepted": self.accepted}


class RevisionCost(NamedTuple):
    """The cost of a revision, without drafting.

    passes  steps of the engine, which other texts may have shared
    rows    tokens computed; those that the prefix cache had are not
    """

    passes: int
    rows: int
    seconds: float


class Piece(NamedTuple):
    """A part of the draft that stayed or changed as a whole, and its text now."""

    was: str
    now: str
    changed: bool


@dataclass(frozen=True, kw_only=True)
class Revised:
    """A draft and its revision, which has as many tokens, or with a filler as many words.

    settings     rule, power, and whatever else it was asked with
    surprises    of each token of the draft, in bits, as ``settings["surprise"]`` says, or of each
                 word at its first token; None where nothing is ranked, since nothing is replaced
    bits_before  the surprise of the whole draft, given the prompt, as the loop has it; and after
    planned      how many trials were to be made: more than there are where it was stopped
    """

    model: str
    prompt_token_ids: Ids
    draft_token_ids: Ids
    token_ids: Ids
    draft: str
    text: str
    settings: Mapping[str, Any]
    surprises: tuple[float | None, ...]
    trials: tuple[RevisionTrial, ...]
    planned: int
    bits_before: float
    bits_after: float
    cost: RevisionCost

    @property
    def seed(self) -> int:
        """The seed that repeats the revision."""
        seed: int = self.settings["seed"]
        return seed

    def pieces(self, tokenizer: Tokenizer) -> Iterator[Piece]:
        """Both texts, cut into parts that are equal or differ."""
        was, now = self.draft_token_ids, self.token_ids
        for kind, *(a, b, c, d) in SequenceMatcher(None, was, now, False).get_opcodes():
            both = added(tokenizer, was[a:b]), added(tokenizer, now[c:d])
            yield Piece(*both, changed=kind != "equal")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        first, last = ("text", "token_ids"), ("settings",)
        middle = (f.name for f in fields(self) if f.name not in (*first, *last))
        shown = {name: getattr(self, name) for name in (*first, *middle, *last)}
        shown["trials"] = [trial.to_dict() for trial in self.trials]
        shown["cost"] = self.cost._asdict()
        return shown


def added(tokenizer: Tokenizer, ids: Ids) -> str:
    """The text that tokens add to a text before them."""
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")


@plainly
def in_bits(logprob: float) -> float:
    """Surprise in bits of a natural log-probability."""
    return max(-logprob, 0.0) / log(2)
