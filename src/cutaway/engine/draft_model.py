"""Speculative decoding's draft model: a smaller one of the same vocabulary.

It has KV blocks of its own.
"""

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from cutaway.compute.backends import Backend, Batch
from cutaway.engine.block_manager import BlockManager
from cutaway.engine.growing_draft import GrowingDraft
from cutaway.engine.scheduled import lay_rows
from cutaway.engine.sequence import Sequence
from cutaway.engine.windows import Windows

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

    def pending(self, sequence: Sequence, room: int) -> list[int]:
        """The next tokens to compute: of the sequence, then draft tokens."""
        start = self.num_computed_tokens
        known = sequence.tokens(start, start + room)
        first = max(start - len(sequence), 0)
        return known + self.drafts[first : first + room - len(known)]


class DraftModel:
    """Drafts the next tokens of several sequences at once.

    context  how long a sequence this model takes
    cost     of one of its steps, in steps of the target
    name     by which a request names it: "draft:MODEL"
    """

    kind = "draft"

    def __init__(self, backend: Backend, context: int, cost: float, name: str = "") -> None:
        self.backend, self.context, self.cost, self.name = backend, context, cost, name
        kv = backend.kv
        windows = Windows(kv.window, kv.block_tokens) if kv.window else None
        self.blocks = BlockManager(backend.kv_blocks, kv.block_tokens, windows)
        self._copies: dict[int, _Copy] = {}  # by sequence id

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """As many draft tokens for each sequence as asked; none where this model has no room."""
        begun = [self._begin(sequence, wanted) for sequence, wanted in draft_requests]
        while writing := [(d, copy) for d, copy in begun if not d.is_whole]:
            self._step(writing)
        return [draft.tokens for draft, _ in begun]

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if copy := self._copies.pop(sequence.id, None):
            self.blocks.release(copy.blocks, copy.num_out_of_window)

    def reset(self) -> None:
        """Forget every sequence, whatever an exception left half done."""
        self._copies = {}
        self.blocks.reset()

    def _begin(self, sequence: Sequence, wanted: int) -> tuple[GrowingDraft, _Copy]:
        """If there is room."""
        copy = self._copies.setdefault(sequence.id, _Copy())
        copy.follow(sequence)
        outside = self.blocks.num_out_of_window(copy.num_computed_tokens)
        self.blocks.free_windows(copy.blocks[copy.num_out_of_window : outside])
        copy.num_out_of_window = max(copy.num_out_of_window, outside)
        longest = len(sequence) + wanted
        lacking = -(-longest // self.blocks.block) - len(copy.blocks)
        if longest > self.context or lacking > self.blocks.free:
            return GrowingDraft(sequence, 0, copy.drafts), copy
        copy.blocks += self.blocks.allocate(max(lacking, 0))
        return GrowingDraft(sequence, wanted, copy.drafts), copy

    def _step(self, writing: list[tuple[GrowingDraft, _Copy]]) -> None:
        """Compute what is pending; draw the next draft token where nothing is left."""
        room = max(1, MAX_ROWS // len(writing))
        parts = [
            (copy.num_computed_tokens, copy.pending(d.sequence, room), copy.blocks)
            for d, copy in writing
        ]
        done = [start + len(tokens) for start, tokens, _ in parts]
        ready = [reached == d.end for (d, _), reached in zip(writing, done, strict=True)]
        ends = np.cumsum([len(tokens) for _, tokens, _ in parts]) - 1
        if self.blocks.windows:
            self.blocks.windows.settle(self.backend.copy_windows)
        logits = self.backend.run(Batch(*lay_rows(parts), ends[ready].astype(np.int32)))
        for (_, copy), reached in zip(writing, done, strict=True):
            copy.num_computed_tokens = reached
        drawing = [d for (d, _), r in zip(writing, ready, strict=True) if r]
        drawn = self.backend.sample(logits, [d.draw() for d in drawing])
        for draft, outcome in zip(drawing, drawn, strict=True):
            draft.take(outcome)
