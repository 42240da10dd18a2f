"""Which tokens may come next: constraints of a sequence, as masks over the vocabulary.

Knows tokens' bytes and bits of a mask. Refuses to know logits and the chain, where a mask is
one stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from cutaway.checks import check_ids, check_int, shown
from cutaway.engine.vocabulary import Mask, Vocabulary, WordAutomaton
from cutaway.errors import InputError


class Constraint(Protocol):
    """The seam between the loop and what forbids tokens. One object per sequence, with state."""

    def mask(self) -> Mask | None:
        """Which tokens may come next; None: all."""
        ...

    def accept(self, token_id: int) -> None:
        """A token came; a forced one need not have been allowed."""
        ...

    def fork(self) -> Self:
        """Another in the same state, which goes its own way."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, and are not drawn; asked for after each ``accept``."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come: the sequence ends without another step."""
        ...


def masks_along(
    constraint: Constraint, token_ids: Sequence[int], *, forced: bool = False
) -> list[Mask | None]:
    """The mask before each of these tokens and after the last; only up to one that is forbidden.

    forced: they come whether they are allowed or not
    """
    masks = [constraint.mask()]
    ahead = constraint.fork() if token_ids else constraint
    for token_id in token_ids:
        if not (forced or allows(masks[-1], token_id)):
            break
        ahead.accept(token_id)
        masks.append(ahead.mask())
    return masks


def allows(mask: Mask | None, token_id: int) -> bool:
    """Whether a token may come."""
    return mask is None or bool(mask[token_id >> 5] >> np.uint32(token_id & 31) & np.uint32(1))


_MOST_BYTES = 4096  # of all bad words: each byte is a state of 2 kB

# -- what a request can ask for --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConstraintParams:
    """Which tokens may come at all.

    allowed_token_ids  no other tokens, but for the end tokens where they are among them
    bad_words          strings that must not appear in the output, however cut into tokens
    min_tokens         no end token and no stop token before this many new tokens, and a stop
                       string that is completed before is text

    Raises InputError naming the field.
    """

    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if self.allowed_token_ids is not None:
            ids = tuple(sorted({*check_ids("allowed_token_ids", self.allowed_token_ids)}))
            if not ids:
                raise InputError("allowed_token_ids must hold at least one id; or leave it out")
            object.__setattr__(self, "allowed_token_ids", ids)
        words: Any = (self.bad_words,) if isinstance(self.bad_words, str) else self.bad_words
        if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
            raise InputError(f"bad_words must be a list of strings, not {shown(self.bad_words)}")
        if "" in words:
            raise InputError("bad_words must not hold an empty string; leave it out instead")
        if any("\ud800" <= character <= "\udfff" for word in words for character in word):
            raise InputError("bad_words must be whole characters, not halves of surrogate pairs")
        if (size := sum(len(word.encode()) for word in words)) > _MOST_BYTES:
            raise InputError(f"bad_words have {size} bytes; at most {_MOST_BYTES} in all")
        object.__setattr__(self, "bad_words", tuple(words))
        object.__setattr__(self, "min_tokens", check_int("min_tokens", self.min_tokens, 0))

    @property
    def is_set(self) -> bool:
        """Whether any token is forbidden at any step."""
        return self.allowed_token_ids is not None or bool(self.bad_words or self.min_tokens)

    def make(self, vocabulary: "Vocabulary", ending: frozenset[int]) -> "Constraint | None":
        """What it means for one sequence, which ``ending`` tokens end; None where all may come."""
        if not self.is_set:
            return None
        made: list[Constraint] = []
        if self.allowed_token_ids is not None:
            made.append(AllowedTokens(vocabulary.mask_of(self.allowed_token_ids)))
        if self.min_tokens:
            made.append(MinTokens(vocabulary.mask_without(ending), self.min_tokens))
        if self.bad_words:
            made.append(BadWords(vocabulary.words(self.bad_words)))
        return made[0] if len(made) == 1 else AllOf(made)


class _Free:
    """What most constraints have in common: they force nothing and never end a sequence."""

    is_over = False

    def forced(self) -> Sequence[int]:
        """None."""
        return ()


class AllowedTokens(_Free):
    """The same tokens at every step."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def mask(self) -> Mask | None:
        """Always the same."""
        return self._mask

    def accept(self, token_id: int) -> None:
        """Nothing changes."""

    def fork(self) -> Self:
        """There is no state."""
        return self


class MinTokens(_Free):
    """No token that ends a sequence before so many have come."""

    def __init__(self, mask: Mask, left: int) -> None:
        self._mask, self._left = mask, left

    def mask(self) -> Mask | None:
        """All but those that end, while some are left to come."""
        return self._mask if self._left > 0 else None

    def accept(self, token_id: int) -> None:  # noqa: ARG002 - whichever it is
        """One less is left."""
        self._left -= 1

    def fork(self) -> Self:
        """With as many left."""
        return type(self)(self._mask, self._left)


class BadWords(_Free):
    """No token that would complete one of some strings."""

    def __init__(self, words: "WordAutomaton", state: int = 0) -> None:
        self._words, self._state = words, state

    def mask(self) -> Mask | None:
        """All tokens that complete no word."""
        return self._words.mask(self._state)

    def accept(self, token_id: int) -> None:
        """Its bytes are text now."""
        self._state = self._words.after(self._state, token_id)

    def fork(self) -> Self:
        """In the same state."""
        return type(self)(self._words, self._state)


class AllOf:
    """Several at once: a token may come where all allow it."""

    def __init__(self, parts: list[Constraint]) -> None:
        self._parts = parts

    def mask(self) -> Mask | None:
        """The bits that all have set."""
        masks = [mask for part in self._parts if (mask := part.mask()) is not None]
        return np.bitwise_and.reduce(masks) if masks else None

    def accept(self, token_id: int) -> None:
        """All of them accept it."""
        for part in self._parts:
            part.accept(token_id)

    def fork(self) -> Self:
        """All of them fork."""
        return type(self)([part.fork() for part in self._parts])

    def forced(self) -> Sequence[int]:
        """Those of the first that forces any."""
        return next((ids for part in self._parts if (ids := part.forced())), ())

    @property
    def is_over(self) -> bool:
        """Whether one of them is."""
        return any(part.is_over for part in self._parts)
