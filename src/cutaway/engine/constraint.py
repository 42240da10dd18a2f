"""Constraint: the seam between the loop and what forbids tokens (constrained decoding)."""

from collections.abc import Sequence
from copy import copy
from typing import Protocol, Self

from cutaway.engine.vocabulary import Mask, allows
from cutaway.errors import CutawayError


class Constraint(Protocol):
    """Which tokens may come next, as a mask over the vocabulary. One per sequence, with state.

    What a method raises ends its own sequence alone (guest_code.py). The methods with a body are
    those of a constraint that forces nothing, ends nothing and has no checks.
    """

    def mask(self) -> Mask | None:
        """Which tokens may come next; None: all."""
        ...

    def accept(self, token_id: int) -> None:
        """Advance by a token. A forced one may be forbidden by the mask, except by a grammar's."""
        ...

    def fork(self) -> Self:
        """An independent copy in the same state. Those with parts must fork these too."""
        return copy(self)

    def forced(self) -> Sequence[int]:
        """The next tokens where the masks leave no other; they are used as draft tokens."""
        return ()

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come: the sequence ends without another step."""
        return False

    @property
    def checks(self) -> Sequence[str]:
        """Names of its checks. Only checks lead into dead ends, from which a text backtracks."""
        return ()

    @property
    def refused_by(self) -> tuple[str, ...]:
        """Names of the checks that refused tokens at the last mask; of a thinking budget, too."""
        return ()


def masks_along(
    constraint: Constraint, token_ids: Sequence[int], *, forced: bool = False
) -> list[Mask | None]:
    """The mask before each of these tokens and after the last, up to a token that is forbidden.

    forced: the tokens come whether they are allowed or not
    """
    masks = [constraint.mask()]
    ahead = constraint.fork() if token_ids else constraint
    for token_id in token_ids:
        if not (forced or allows(masks[-1], token_id)):
            break
        try:
            ahead.accept(token_id)
            mask = ahead.mask()
            if mask is not None and not mask.any():  # a dead end, for the step that gets there
                break
            masks.append(mask)
        except CutawayError:  # an error for the step that gets there
            break
    return masks
