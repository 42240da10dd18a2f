"""Drafts by a smaller model with the same vocabulary, which stores keys and values of its own."""

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from cutaway.compute.backends import Backend, Batch
from cutaway.engine.memory.block_manager import BlockManager
from cutaway.engine.memory.windows import Windows
from cutaway.engine.scheduled import lay_rows
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation.growing_draft import GrowingDraft

MAX_ROWS = 512
"""Rows per step of the draft model while it reads tokens that were written without it."""


@dataclass(slots=True)
class _Copy:
    """The draft model's state for a sequence.

    num_out_of_window  how many of its first blocks lie outside the windows of all later rows
    length             the length of the sequence at the last step
    drafts             the draft tokens after these tokens of the sequence
    """

    blocks: list[int] = field(default_factory=list)
    num_out_of_window: int = 0
    num_computed_tokens: int = 0
    length: int = 0
    drafts: list[int] = field(default_factory=list)

    def follow(self, sequence: Sequence) -> None:
        """Take over the sequence's new tokens; rejected draft tokens count as not computed."""
        came = sequence.tokens(self.length, self.length + len(self.drafts))
        right = takewhile(lambda pair: pair[0] == pair[1], zip(came, self.drafts, strict=False))
        num_right = min(self.length + len(list(right)), len(sequence) - 1)  # its logits are wanted
        self.num_computed_tokens = min(self.num_computed_tokens, num_right)
        self.length, self.drafts = len(sequence), []

    def pending(self, sequence: Sequence, room: int) -> list[int]:
        """Return the next tokens to compute: the sequence's, then draft tokens."""
        start = self.num_computed_tokens
        tokens = sequence.tokens(start, start + room)
        first = max(start - len(sequence), 0)
        return tokens + self.drafts[first : first + room - len(tokens)]


class DraftModel:
    """Drafts the next tokens of several sequences at once.

    context  the most tokens of a sequence that this model reads
    cost     the cost of one of its steps, in steps of the target, as far as their weights tell
    name     as in a request: "draft:MODEL"
    """

    kind = "draft"

    def __init__(self, backend: Backend, context: int, cost: float, name: str = "") -> None:
        self.backend, self.context, self.cost, self.name = backend, context, cost, name
        kv = backend.kv
        windows = Windows(kv.window, kv.block_tokens) if kv.window else None
        self.blocks = BlockManager(backend.kv_blocks, kv.block_tokens, windows)
        self._copies: dict[int, _Copy] = {}  # by sequence id

    def passes(self, count: int) -> int:
        """Return how many steps of this model draft so many tokens."""
        return count

    def count_missed(self, sequence: Sequence) -> int:
        """Return how many tokens it has to read before it can draft, beside the latest two."""
        copy = self._copies.get(sequence.id)
        return max(len(sequence) - (copy.num_computed_tokens if copy else 0) - 2, 0)

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """Draft for each (sequence, number of tokens); none where this model has no room."""
        drafts = [self._begin(sequence, count) for sequence, count in draft_requests]
        while writing := [(d, copy) for d, copy in drafts if not d.is_whole]:
            self._step(writing)
        return [draft.tokens for draft, _ in drafts]

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
        if copy := self._copies.pop(sequence.id, None):
            self.blocks.release(copy.blocks, copy.num_out_of_window)

    def reset(self) -> None:
        """Forget every sequence, even after an exception within a change."""
        self._copies = {}
        self.blocks.reset()

    def _begin(self, sequence: Sequence, count: int) -> tuple[GrowingDraft, _Copy]:
        """Begin a draft of ``count`` tokens, or of fewer where there is no room for them."""
        copy = self._copies.setdefault(sequence.id, _Copy())
        copy.follow(sequence)
        outside = self.blocks.num_out_of_window(copy.num_computed_tokens)
        self.blocks.free_windows(copy.blocks[copy.num_out_of_window : outside])
        copy.num_out_of_window = max(copy.num_out_of_window, outside)
        longest = min(len(sequence) + count, self.context)
        lacking = -(-longest // self.blocks.block) - len(copy.blocks)
        if longest <= len(sequence) or lacking > self.blocks.free:
            return GrowingDraft(sequence, 0, copy.drafts), copy
        copy.blocks += self.blocks.allocate(max(lacking, 0))
        return GrowingDraft(sequence, longest - len(sequence), copy.drafts), copy

    def _step(self, writing: list[tuple[GrowingDraft, _Copy]]) -> None:
        """Compute pending tokens; draw the next token of each draft that has none left."""
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
        outcomes = self.backend.sample(logits, [d.draw() for d in drawing])
        for draft, outcome in zip(drawing, outcomes, strict=True):
            draft.take(outcome)
