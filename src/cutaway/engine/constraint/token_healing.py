"""Token healing: the prompt's last token was taken back, and the text begins with its bytes."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from cutaway.engine.constraint import Constraint, ConstraintVocabulary, Mask, allows, packed
from cutaway.errors import CutawayError


class TokenHealing(Constraint):
    """Tokens that spell what was taken back, then another constraint, which sees only new bytes.

    Of a token that runs over the end of those bytes the other sees the rest, one byte at a time.
    """

    def __init__(
        self, inner: Constraint | None, taken: bytes, vocabulary: ConstraintVocabulary
    ) -> None:
        self._inner, self._left, self._vocabulary = inner, taken, vocabulary

    def mask(self) -> Mask | None:
        """The tokens that spell the bytes that are left; after these, the other's mask."""
        if not self._left:
            return self._inner.mask() if self._inner else None
        allowed = np.array([self._may(data) for data in self._vocabulary.data], np.bool_)
        return packed(allowed)

    def accept(self, token_id: int) -> None:
        """Append the token to the text."""
        data = self._vocabulary.token_bytes(token_id)
        more, spelt = data[len(self._left) :], bool(self._left)
        self._left = self._left[len(data) :]
        if self._inner:
            for one in self._of_bytes(more) or () if spelt else (token_id,):
                self._inner.accept(one)

    def fork(self) -> Self:
        """An independent copy in the same state."""
        made = super().fork()
        made._inner = self._inner and self._inner.fork()
        return made

    def forced(self) -> Sequence[int]:
        """The tokens that the other forces, once the bytes taken back are written."""
        return self._inner.forced() if self._inner and not self._left else ()

    @property
    def is_over(self) -> bool:
        """Whether the other is over."""
        return not self._left and self._inner is not None and self._inner.is_over

    def _may(self, data: bytes) -> bool:
        if not data or not data.startswith(self._left[: len(data)]):
            return False
        ids = self._of_bytes(data[len(self._left) :])
        return ids is not None and (not ids or self._inner is None or _may_all(self._inner, ids))

    def _of_bytes(self, data: bytes) -> list[int] | None:
        known = self._vocabulary.of_byte
        return [known[byte] for byte in data] if all(byte in known for byte in data) else None


def _may_all(constraint: Constraint, token_ids: list[int]) -> bool:
    """Whether these may come one after the other."""
    ahead = constraint.fork()
    try:
        for token_id in token_ids:
            if not allows(ahead.mask(), token_id):
                return False
            ahead.accept(token_id)
    except CutawayError:
        return False
    return True
