"""Constraint: the seam between the loop and what forbids tokens (constrained decoding)."""

from collections.abc import Sequence
from typing import Protocol, Self

from cutaway.engine.vocabulary import Mask, allows
from cutaway.errors import CutawayError


class Constraint(Protocol):
    """Which tokens may come next, as a mask over the vocabulary. One per sequence, with state.

    Any method raises CutawayError where it cannot go on, which ends its own sequence. What has a
    body here holds for constraints that force nothing, end nothing and have no checks.
    """

    def mask(self) -> Mask | None:
        """Which tokens may come next; None: all."""
        ...

    def accept(self, token_id: int) -> None:
        """A token came; a forced one need not have been allowed, but for a grammar."""
        ...

    def fork(self) -> Self:
        """Another in the same state, which goes its own way."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that come next whatever is drawn: draft tokens that the masks leave alone."""
        return ()

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come: the sequence ends without another step."""
        return False

    @property
    def checks(self) -> Sequence[str]:
        """Names of its checks, which alone lead into dead ends, so that a text must backtrack."""
        return ()

    @property
    def refused_by(self) -> tuple[str, ...]:
        """Names of the checks that refused tokens at the last mask."""
        return ()


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
        try:
            ahead.accept(token_id)
            mask = ahead.mask()
            if mask is not None and not mask.any():  # a dead end, which is met when it comes
                break
            masks.append(mask)
        except CutawayError:  # which the sequence meets itself, should it come that far
            break
    return masks
