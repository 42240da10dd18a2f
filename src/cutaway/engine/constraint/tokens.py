"""Constraints on tokens: which ids, which strings, how many; and the thinking budget.

After a number of tokens the thinking budget ends a thought with the tokens of its closing mark. It
does not cut the text: it makes the mark the only token that may come, so that the record shows it
and other constraints see it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from cutaway.base.checks import check_bool, check_ids, check_int, shown
from cutaway.engine.constraint import (
    LONGEST_CHARACTER,
    Allowed,
    Constraint,
    ConstraintVocabulary,
    Mask,
    WordAutomaton,
    missing_bytes,
    pack_mask,
)
from cutaway.errors import InputError, Name


class AllowedTokens(Constraint):
    """Allows the same tokens at every step."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def mask(self) -> Mask | None:
        """The same tokens, always."""
        return self._mask

    def accept(self, token_id: int) -> None:
        """Change nothing."""


class MinTokens(Constraint):
    """Forbids tokens that end the sequence until the sequence has enough tokens."""

    def __init__(self, mask: Mask, left: int) -> None:
        self._mask, self._left = mask, left

    def mask(self) -> Mask | None:
        """All tokens except those that end the sequence, until enough have come."""
        return self._mask if self._left > 0 else None

    def accept(self, token_id: int) -> None:  # noqa: ARG002 - whichever it is
        """Count the token."""
        self._left -= 1


class BadWords(Constraint):
    """Forbids tokens that would complete one of its strings."""

    def __init__(self, words: WordAutomaton, state: int = 0) -> None:
        self._words, self._state = words, state

    def mask(self) -> Mask | None:
        """Return the tokens that complete none of the words."""
        return self._words.mask(self._state)

    def accept(self, token_id: int) -> None:
        """Append the token's bytes to the text."""
        self._state = self._words.advance(self._state, token_id)


# -- the thinking budget ---------------------------------------------------------------------------

NAME = "thinking_budget"
"""The name in ``Step.refused_by`` of a step where the budget allowed one token only."""


@dataclass(frozen=True, kw_only=True)
class ThinkingBudget:
    """Limits a thought at the beginning of the text to ``tokens`` between its two marks.

    opening, closing  the token ids of the marks
    begun             whether the prompt has opened the thought
    opens             whether the text must begin with the opening mark
    """

    tokens: int
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    begun: bool = False
    opens: bool = False

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return a budget from a budget or its JSON; InputError for anything else."""
        if isinstance(value, cls):
            return value
        names = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping) or {*value} != {*names}:
            raise InputError(NAME, f" must be an object of {', '.join(names)}, not {shown(value)}")
        opening, closing = (
            tuple(check_ids(Name(NAME, name), value[name])) for name in ("opening", "closing")
        )
        if not (opening and closing):
            raise InputError(NAME, ": opening and closing must hold at least one token id")
        return cls(
            tokens=check_int(Name(NAME, "tokens"), value["tokens"], 0),
            opening=opening,
            closing=closing,
            begun=check_bool(Name(NAME, "begun"), value["begun"]),
            opens=check_bool(Name(NAME, "opens"), value["opens"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the budget as JSON, which ``read`` takes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class BudgetedThought(Constraint):
    """Closes a thought once its budget is spent; anything may follow it."""

    def __init__(self, budget: ThinkingBudget, vocabulary: ConstraintVocabulary) -> None:
        self._budget, self._vocabulary = budget, vocabulary
        marks = budget.opening, budget.closing
        self._whole = {mark[0] for mark in marks if len(mark) == 1}
        self._opening, self._closing = map(self._spell, marks)
        self._state = "thought" if budget.begun else "beginning"
        self._left = budget.tokens
        self._ids: tuple[int, ...] = ()  # the last tokens since this state began
        self._data = b""  # their bytes, as far back as a mark or a character may reach

    def mask(self) -> Mask | None:
        """All tokens; near the budget's end only tokens whose last character can be completed."""
        if due := self.find_forced_tokens():
            return self._vocabulary.mask_of(due[:1])
        if self._state != "thought" or self._left >= LONGEST_CHARACTER:
            return None
        allowed = self._whole_in_time()
        return pack_mask(allowed) if allowed.any() else None

    def accept(self, token_id: int) -> None:
        """Append the token to the text, and count it if it is part of the thought."""
        if self._state == "answer":
            return
        self._ids += (token_id,)
        self._data += self._spell((token_id,))
        if self._state == "beginning":
            self._begin()
        else:
            self._think()

    def find_forced_tokens(self) -> Sequence[int]:
        """Return the rest of the mark that has to come now."""
        if self._state == "thought" and self._left <= 0:
            return self._rest_of_mark(self._budget.closing)
        if self._state == "beginning" and self._budget.opens:
            return self._rest_of_mark(self._budget.opening)
        return ()

    @property
    def refused_by(self) -> tuple[str, ...]:
        """The budget's name, where it allows one token only."""
        return (NAME,) if self.find_forced_tokens() else ()

    def _begin(self) -> None:
        if self._data.startswith(self._opening):
            self._data, self._ids = self._data[len(self._opening) :], ()
            self._state = "thought"
            if self._data:  # a token with more than the end of the mark
                self._think()
        elif not self._opening.startswith(self._data):
            self._state = "answer"

    def _think(self) -> None:
        if self._closing in self._data:
            self._state = "answer"
            return
        self._left -= 1
        self._data = self._data[-max(len(self._closing), LONGEST_CHARACTER) :]
        self._ids = self._ids[-len(self._budget.closing) :]

    def _rest_of_mark(self, mark: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that must follow the text to complete the mark."""
        sizes = range(min(len(mark) - 1, len(self._ids)), 0, -1)
        return mark[next((n for n in sizes if self._ids[-n:] == mark[:n]), 0) :]

    def _spell(self, token_ids: Sequence[int]) -> bytes:
        """Return tokens' bytes; invented ones for a token that has none, or is a whole mark."""
        return b"".join(map(self._spell_token, token_ids))

    def _spell_token(self, token_id: int) -> bytes:
        data = b"" if token_id in self._whole else self._vocabulary.token_bytes(token_id)
        return data or b"\xff%d\xff" % token_id

    def _whole_in_time(self) -> Allowed:
        """Allow tokens whose unfinished character the rest of the budget can still complete."""
        if not missing_bytes(self._data):
            return self._vocabulary.missing_bytes < self._left
        tail, data = self._data[1 - LONGEST_CHARACTER :], self._vocabulary.data
        return np.array([missing_bytes(tail + more) < self._left for more in data], np.bool_)
