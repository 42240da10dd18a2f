"""Speculative decoding's draft model: smaller, of the same vocabulary, with KV blocks of its own.

It draws with the target's own chain, constraint and luck, so that where both models agree on what
is likely they draw the same token.
"""

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from cutaway.compute.backends import Backend, Batch
from cutaway.engine.block_manager import BlockManager
from cutaway.engine.constraint import Constraint
from cutaway.engine.scheduled import lay_rows
from cutaway.engine.sequence import Sequence
from cutaway.engine.vocabulary import Mask
from cutaway.engine.windows import Windows
from cutaway.errors import CutawayError
from cutaway.sampling import RowDraw, Sampled

MAX_ROWS = 512
"""Rows per step of the draft model, while it reads what was written without it."""


@dataclass(slots=True)
class _Copy:
    """The draft model's state for a sequence: its length at the last step, and the draft tokens.

    num_out_of_window  how many of its first blocks lie outside the windows of all later rows
    """

    blocks: list[int] = field(default_factory=list)
    num_out_of_window: int = 0
    num_computed_tokens: int = 0
    length: int = 0
    drafts: list[int] = field(default_factory=list)

    def follow(self, sequence: Sequence) -> None:
        """Take over the sequence's new tokens; rejected draft tokens do not count as computed."""
        came = sequence.tokens(self.length, self.length + len(self.drafts))
        right = takewhile(lambda pair: pair[0] == pair[1], zip(came, self.drafts, strict=False))
        known = min(self.length + len(list(right)), len(sequence) - 1)  # its logits are wanted
        self.num_computed_tokens = min(self.num_computed_tokens, known)
        self.length, self.drafts = len(sequence), []


@dataclass(slots=True)
class _Draft:
    """The draft tokens of one sequence while they are being made.

    constraint  a copy of the sequence's own, advanced by these draft tokens
    mask        which token may come next
    """

    sequence: Sequence
    copy: _Copy
    wanted: int
    constraint: Constraint | None
    mask: Mask | None = None

    def __post_init__(self) -> None:
        self._constrain()

    @property
    def drafts(self) -> list[int]:
        return self.copy.drafts

    def pending(self, room: int) -> list[int]:
        """The next tokens to compute: of the sequence, then draft tokens."""
        start = self.copy.num_computed_tokens
        known = self.sequence.tokens(start, start + room)
        first = max(start - len(self.sequence), 0)
        return known + self.drafts[first : first + room - len(known)]

    @property
    def end(self) -> int:
        """How long the sequence is with its draft tokens."""
        return len(self.sequence) + len(self.drafts)

    def draw(self) -> RowDraw:
        """The draw of the next draft token: the target's own, from other logits."""
        s = self.sequence
        return RowDraw(s.chain, s.history(self.drafts), s.seed, self.end, mask=self.mask)

    def append(self, token_id: int) -> None:
        """Add a draft token."""
        self.drafts.append(token_id)
        self._constrain(token_id)

    def _constrain(self, *token_ids: int) -> None:
        """Advance the constraint; its error, left to the target's step, ends the drafting."""
        if self.constraint is None or len(self.drafts) >= self.wanted:
            return
        try:
            for token_id in token_ids:
                self.constraint.accept(token_id)
            self.mask = self.constraint.mask()
        except CutawayError:
            self.wanted = len(self.drafts)


class DraftModel:
    """Drafts the next tokens of several sequences at once.

    context  how long a sequence this model takes
    cost     of one of its steps, in steps of the target
    name     by which a request names it
    """

    def __init__(self, backend: Backend, context: int, cost: float, name: str = "") -> None:
        self.backend, self.context, self.cost, self.name = backend, context, cost, name
        kv = backend.kv
        windows = Windows(kv.window, kv.block_tokens) if kv.window else None
        self.blocks = BlockManager(backend.kv_blocks, kv.block_tokens, windows)
        self._copies: dict[int, _Copy] = {}  # by sequence id

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """As many draft tokens for each sequence as asked; none where this model has no room."""
        drafts = [self._draft(sequence, wanted) for sequence, wanted in draft_requests]
        while writing := [d for d in drafts if len(d.drafts) < d.wanted]:
            self._step(writing)
        return [d.drafts for d in drafts]

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if copy := self._copies.pop(sequence.id, None):
            self.blocks.release(copy.blocks, copy.num_out_of_window)

    def _draft(self, sequence: Sequence, wanted: int) -> _Draft:
        """Begin, if there is room."""
        copy = self._copies.setdefault(sequence.id, _Copy())
        copy.follow(sequence)
        outside = self.blocks.num_out_of_window(copy.num_computed_tokens)
        self.blocks.free_windows(copy.blocks[copy.num_out_of_window : outside])
        copy.num_out_of_window = max(copy.num_out_of_window, outside)
        constraint = sequence.constraint and sequence.constraint.fork()
        longest = len(sequence) + wanted
        lacking = -(-longest // self.blocks.block) - len(copy.blocks)
        if longest > self.context or lacking > self.blocks.free:
            return _Draft(sequence, copy, 0, constraint)
        copy.blocks += self.blocks.allocate(max(lacking, 0))
        return _Draft(sequence, copy, wanted, constraint)

    def _step(self, writing: list[_Draft]) -> None:
        """Compute what is pending; draw the next draft token where nothing is left."""
        room = max(1, MAX_ROWS // len(writing))
        parts = [(d.copy.num_computed_tokens, d.pending(room), d.copy.blocks) for d in writing]
        done = [start + len(tokens) for start, tokens, _ in parts]
        ready = [reached == d.end for d, reached in zip(writing, done, strict=True)]
        ends = np.cumsum([len(tokens) for _, tokens, _ in parts]) - 1
        if self.blocks.windows:
            self.backend.copy_windows(self.blocks.windows.take_changes())
        logits = self.backend.run(Batch(*lay_rows(parts), ends[ready].astype(np.int32)))
        for draft, reached in zip(writing, done, strict=True):
            draft.copy.num_computed_tokens = reached
        drawing = [d for d, r in zip(writing, ready, strict=True) if r]
        drawn = self.backend.sample(logits, [d.draw() for d in drawing])
        for draft, outcome in zip(drawing, drawn, strict=True):
            if isinstance(outcome, Sampled):
                draft.append(outcome.token_id)
            else:  # not finite, or no token is allowed: no more draft tokens
                draft.wanted = len(draft.drafts)
