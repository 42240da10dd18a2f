"""The state of one text under a grammar, the grammar mask of its next token, forced tokens."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar.llguidance_source import sentence

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = NDArray[np.uint32]


class Matcher:
    """The state of one text under one grammar, or under several of which it must match one.

    Raises CutawayError where the text matches none any more.
    ways   the state under each grammar; None where the text does not match it any more
    words  of 32 bits in a mask
    """

    def __init__(self, ways: "Iterable[LLMatcher | None]", words: int) -> None:
        self._ways, self._words = [*ways], words

    def mask(self) -> Mask:
        """Which tokens may come next, the end tokens among them where the text may end."""
        masks = [self._mask(way) for way in self._open]
        return masks[0] if len(masks) == 1 else np.bitwise_or.reduce(masks)

    def accept(self, token_id: int) -> None:
        """A token came; not for end tokens."""
        if len(self._open) > 1 and self.valid([token_id]):
            self._ways = [w if w and w.validate_tokens([token_id]) else None for w in self._ways]
        for way in self._open:
            way.consume_token(token_id)
            _check(way)

    def finish(self, token_id: int) -> None:
        """An allowed end token came; InputError where the grammar does not end with it."""
        if not self.may_end:  # the grammar names the token itself
            self.accept(token_id)
            if not self.may_end:
                raise InputError(
                    "grammar: the grammar goes on after an end token, which ends the text: remove "
                    "the token from the grammar"
                )

    def valid(self, token_ids: Sequence[int]) -> int:
        """How many of these may come one after the other."""
        return max(way.validate_tokens([*token_ids]) for way in self._open)

    def forced(self) -> list[int]:
        """Tokens that come next whatever the model says."""
        first, *others = (way.compute_ff_tokens() for way in self._open)
        for other in others:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False))
            first = [token_id for token_id, _ in same]
        return first

    def fork(self) -> "Matcher":
        """Another in the same state."""
        return Matcher([way and way.deep_copy() for way in self._ways], self._words)

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return any(self.ends)

    @property
    def ends(self) -> tuple[bool | None, ...]:
        """Whether it may end under each grammar; None where it does not match it any more."""
        return tuple(None if way is None else way.is_accepting() for way in self._ways)

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return all(way.is_stopped() and not way.is_error() for way in self._open)

    @property
    def _open(self) -> "list[LLMatcher]":
        return [way for way in self._ways if way is not None]

    def _mask(self, way: "LLMatcher") -> Mask:
        mask = np.empty(self._words, np.uint32)
        way.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        _check(way)
        return mask


def _check(way: "LLMatcher") -> None:
    if way.is_error():
        raise CutawayError(f"the grammar failed: {sentence(way.get_error())}")
