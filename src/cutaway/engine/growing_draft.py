"""GrowingDraft: the draft tokens of one sequence while a model makes them.

They are drawn with the target's own chain, constraint and luck, so that where both agree on what is
likely they draw the same token.
"""

from dataclasses import dataclass, field

from cutaway.engine.constraint import Constraint
from cutaway.engine.sequence import Sequence
from cutaway.engine.vocabulary import Mask
from cutaway.errors import CutawayError
from cutaway.sampling import RowDraw, Sampled


@dataclass(slots=True)
class GrowingDraft:
    """The draft tokens of one sequence while they are being made.

    wanted      how many; fewer once no more can be drawn
    tokens      those that were drawn
    constraint  a copy of the sequence's own, advanced by these tokens
    mask        which token may come next
    """

    sequence: Sequence
    wanted: int
    tokens: list[int] = field(default_factory=list)
    constraint: Constraint | None = None
    mask: Mask | None = None

    def __post_init__(self) -> None:
        self._constrain()

    @property
    def is_whole(self) -> bool:
        """Whether there are as many as wanted."""
        return len(self.tokens) >= self.wanted

    @property
    def end(self) -> int:
        """How long the sequence is with its draft tokens."""
        return len(self.sequence) + len(self.tokens)

    def draw(self) -> RowDraw:
        """The draw of the next draft token: the target's own, from other logits."""
        s = self.sequence
        return RowDraw(s.chain, s.history(self.tokens), s.seed, self.end, mask=self.mask)

    def take(self, outcome: Sampled | Exception) -> None:
        """Add what was drawn; nothing more where logits are not finite, or no token is allowed."""
        if isinstance(outcome, Sampled):
            self.tokens.append(outcome.token_id)
            self._constrain(outcome.token_id)
        else:
            self.wanted = len(self.tokens)

    def _constrain(self, *token_ids: int) -> None:
        """Advance the constraint; its error, left to the target's step, ends the drafting."""
        if self.sequence.constraint is None or self.is_whole:
            return
        try:
            self.constraint = self.constraint or self.sequence.constraint.fork()
            for token_id in token_ids:
                self.constraint.accept(token_id)
            self.mask = self.constraint.mask()
        except CutawayError:
            self.wanted = len(self.tokens)
