"""The draft tokens of a text while a draft model or head draws them.

Draft tokens are drawn with the target's own chain, constraint and luck. So where both models agree
on the likely tokens, they draw the same token.
"""

from dataclasses import dataclass, field

from cutaway.engine.constraint import Constraint, Mask
from cutaway.engine.sequence import Sequence
from cutaway.errors import CutawayError
from cutaway.sampling import RowDraw, Sampled


@dataclass(slots=True)
class GrowingDraft:
    """The draft tokens of one sequence while they are drawn.

    count       how many to draw; lowered if no more can be drawn
    tokens      the tokens that were drawn
    constraint  a copy of the sequence's own, advanced by these tokens
    mask        the tokens that may come next
    """

    sequence: Sequence
    count: int
    tokens: list[int] = field(default_factory=list)
    constraint: Constraint | None = None
    mask: Mask | None = None

    def __post_init__(self) -> None:
        self._constrain()

    @property
    def is_whole(self) -> bool:
        """Whether all tokens are drawn."""
        return len(self.tokens) >= self.count

    @property
    def end(self) -> int:
        """The length of the sequence with its draft tokens."""
        return len(self.sequence) + len(self.tokens)

    @property
    def last_token(self) -> int:
        """The token that the next one follows."""
        end = len(self.sequence)
        return self.tokens[-1] if self.tokens else self.sequence.tokens(end - 1, end)[0]

    def draw(self) -> RowDraw:
        """Return the draw of the next draft token: the target's own draw, from other logits."""
        s = self.sequence
        return RowDraw(s.chain, s.history(self.tokens), s.seed, self.end, mask=self.mask)

    def take(self, outcome: Sampled | Exception) -> None:
        """Add the drawn token; stop where logits are not finite, or no token is allowed."""
        if isinstance(outcome, Sampled):
            self.tokens.append(outcome.token_id)
            self._constrain(outcome.token_id)
        else:
            self.count = len(self.tokens)

    def _constrain(self, *token_ids: int) -> None:
        """Advance the constraint; an error ends the draft, and is raised in the target's step."""
        if self.sequence.constraint is None or self.is_whole:
            return
        try:
            self.constraint = self.constraint or self.sequence.constraint.fork()
            for token_id in token_ids:
                self.constraint.accept(token_id)
            self.mask = self.constraint.mask()
        except CutawayError:
            self.count = len(self.tokens)
