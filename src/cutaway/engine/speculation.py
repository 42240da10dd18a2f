"""Guessing ahead: who guesses for which sequence, and how many tokens are worth a check.

Knows guesses and what became of them. A guess never changes a text: the model draws its own
token at every position, and only where the guess is that token has a step been saved
(Daliri, Musco & Suresh 2024, arXiv 2408.07978). Refuses to know blocks and logits.
"""

from dataclasses import dataclass, field

from cutaway.engine.draft_length import FROM_MODEL, FROM_TEXT, DraftLength
from cutaway.engine.draft_model import DraftModel
from cutaway.engine.ngram import SuffixAutomaton
from cutaway.engine.sequence import Sequence

ROW_COST = 0.1
"""What one more row adds to a step, in steps of one row."""


@dataclass(slots=True)
class _Guesser:
    """What is remembered for one sequence."""

    length: DraftLength
    text: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    match_length: int = 0  # that the guesses of this turn go back to


class Speculator:
    """Guesses for decoding sequences, from their own text or with a draft model.

    draft  may be set at any time
    """

    def __init__(self, draft: DraftModel | None = None) -> None:
        self.draft = draft
        self._guessers: dict[int, _Guesser] = {}  # by sequence id

    def propose(self, wishes: list[tuple[Sequence, int]]) -> list[list[int]]:
        """Guesses for each of (sequence, how many at most)."""
        by_model = [s.run.speculate == "draft" for s, _ in wishes]
        asked = [(s, self._worth(s, n)) for (s, n), m in zip(wishes, by_model, strict=True) if m]
        drafted = iter(self.draft.propose(asked) if self.draft and asked else [])
        return [
            next(drafted) if m else self._from_text(s, n)
            for (s, n), m in zip(wishes, by_model, strict=True)
        ]

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """Say what became of the guesses of this turn."""
        guesser, told = self._guesser(sequence), sequence.speculation
        told.proposed, told.accepted = told.proposed + proposed, told.accepted + accepted
        guesser.length.learn(guesser.match_length, proposed, accepted)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._guessers.pop(sequence.id, None)
        if self.draft:
            self.draft.forget(sequence)

    def _guesser(self, sequence: Sequence) -> _Guesser:
        if sequence.id not in self._guessers:
            if sequence.run.speculate == "draft" and self.draft:
                length = DraftLength(ROW_COST + self.draft.cost, FROM_MODEL)
            else:
                length = DraftLength(ROW_COST, FROM_TEXT)
            self._guessers[sequence.id] = _Guesser(length)
        return self._guessers[sequence.id]

    def _worth(self, sequence: Sequence, room: int) -> int:
        return self._guesser(sequence).length.propose(0, room)

    def _from_text(self, sequence: Sequence, room: int) -> list[int]:
        guesser = self._guesser(sequence)
        guesser.text.extend(sequence.tokens(len(guesser.text), len(sequence)))
        guess = guesser.text.guess(room)
        guesser.match_length = guess.match_length
        count = guesser.length.propose(guess.match_length, len(guess.tokens))
        return guess.tokens[:count]
