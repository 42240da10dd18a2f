"""Token healing: the prompt's last token was taken back, and the text begins with its bytes."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from cutaway.engine.constraint import Constraint, ConstraintVocabulary, Mask, allows, pack_mask
from cutaway.errors import CutawayError


class TokenHealing(Constraint):
    """Spells the bytes taken back, then follows another constraint, which sees only new bytes.

    Where a token has more bytes than these, the other constraint sees the rest as byte tokens.

    healed  the bytes that were taken back
    """

    def __init__(
        self, inner: Constraint | None, healed: bytes, vocabulary: ConstraintVocabulary
    ) -> None:
        self._inner, self._left, self._vocabulary = inner, healed, vocabulary

    def mask(self) -> Mask | None:
        """The tokens that spell the remaining bytes; after these, the other constraint's mask."""
        if not self._left:
            return self._inner.mask() if self._inner else None
        allowed = np.array([self._is_allowed(data) for data in self._vocabulary.data], np.bool_)
        return pack_mask(allowed)

    def accept(self, token_id: int) -> None:
        """Append the token to the text."""
        data = self._vocabulary.token_bytes(token_id)
        more, spelt = data[len(self._left) :], bool(self._left)
        self._left = self._left[len(data) :]
        if self._inner:
            for accepted_id in self._byte_tokens(more) or () if spelt else (token_id,):
                self._inner.accept(accepted_id)

    def fork(self) -> Self:
        """An independent copy in the same state."""
        fork = super().fork()
        fork._inner = self._inner and self._inner.fork()
        return fork

    def find_forced_tokens(self) -> Sequence[int]:
        """Return the other constraint's forced tokens once the bytes taken back are written."""
        return self._inner.find_forced_tokens() if self._inner and not self._left else ()

    @property
    def is_over(self) -> bool:
        """Whether the bytes taken back are written and the other constraint is over."""
        return not self._left and self._inner is not None and self._inner.is_over

    def _is_allowed(self, data: bytes) -> bool:
        if not data or not data.startswith(self._left[: len(data)]):
            return False
        ids = self._byte_tokens(data[len(self._left) :])
        return ids is not None and (not ids or self._inner is None or _allows_all(self._inner, ids))

    def _byte_tokens(self, data: bytes) -> list[int] | None:
        byte_tokens = self._vocabulary.byte_tokens
        return (
            [byte_tokens[byte] for byte in data]
            if all(byte in byte_tokens for byte in data)
            else None
        )


def _allows_all(constraint: Constraint, token_ids: list[int]) -> bool:
    """Whether these tokens may come one after the other."""
    ahead = constraint.fork()
    try:
        for token_id in token_ids:
            if not allows(ahead.mask(), token_id):
                return False
            ahead.accept(token_id)
    except CutawayError:
        return False
    return True
