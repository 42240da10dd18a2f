"""Constraints that look at tokens alone: which ids, which strings, how many."""

from cutaway.engine.constraint import Constraint
from cutaway.engine.vocabulary import Mask, WordAutomaton


class AllowedTokens(Constraint):
    """The same tokens at every step."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def mask(self) -> Mask | None:
        """Always the same."""
        return self._mask

    def accept(self, token_id: int) -> None:
        """Nothing changes."""


class MinTokens(Constraint):
    """No token that ends a sequence before a number of tokens."""

    def __init__(self, mask: Mask, left: int) -> None:
        self._mask, self._left = mask, left

    def mask(self) -> Mask | None:
        """All tokens except those that end the sequence, until enough have come."""
        return self._mask if self._left > 0 else None

    def accept(self, token_id: int) -> None:  # noqa: ARG002 - whichever it is
        """Count it."""
        self._left -= 1


class BadWords(Constraint):
    """No token that would complete one of some strings."""

    def __init__(self, words: WordAutomaton, state: int = 0) -> None:
        self._words, self._state = words, state

    def mask(self) -> Mask | None:
        """All tokens that complete no word."""
        return self._words.mask(self._state)

    def accept(self, token_id: int) -> None:
        """Append its bytes to the text."""
        self._state = self._words.after(self._state, token_id)
