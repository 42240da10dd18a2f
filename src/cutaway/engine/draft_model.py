"""A smaller model of the same vocabulary that writes guesses, with KV blocks of its own.

Knows a backend and how far each text was computed on it. Draws with the target's own chain
and luck, so that where both models agree on what is likely they draw the same token.
Refuses to know how many guesses are worth while, and what becomes of them.
"""

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from cutaway.backends import Backend, Batch
from cutaway.engine.batch import lay_rows
from cutaway.engine.block_manager import BlockManager
from cutaway.engine.sequence import Sequence
from cutaway.sampling import RowDraw, Sampled

MAX_ROWS = 512
"""Rows per step of the draft model, while it reads what was written without it."""


@dataclass(slots=True)
class _Text:
    """A sequence as the draft model has it: so many tokens, and what was guessed to follow."""

    blocks: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    length: int = 0
    guesses: list[int] = field(default_factory=list)

    def follow(self, sequence: Sequence) -> None:
        """Go on from the sequence as it is now; what was guessed wrong is not computed."""
        came = sequence.tokens(self.length, self.length + len(self.guesses))
        right = takewhile(lambda pair: pair[0] == pair[1], zip(came, self.guesses, strict=False))
        known = min(self.length + len(list(right)), len(sequence) - 1)  # its logits are wanted
        self.num_computed_tokens = min(self.num_computed_tokens, known)
        self.length, self.guesses = len(sequence), []


@dataclass(slots=True)
class _Draft:
    """The guesses for one sequence while they are being made."""

    sequence: Sequence
    text: _Text
    wanted: int

    @property
    def guesses(self) -> list[int]:
        return self.text.guesses

    def pending(self, room: int) -> list[int]:
        """The next tokens to compute: of the text, then of the guesses."""
        start = self.text.num_computed_tokens
        known = self.sequence.tokens(start, start + room)
        first = max(start - len(self.sequence), 0)
        return known + self.guesses[first : first + room - len(known)]

    @property
    def end(self) -> int:
        """How long the text is with its guesses."""
        return len(self.sequence) + len(self.guesses)

    @property
    def draw(self) -> RowDraw:
        """The draw of the next guess: the target's own, but for the logits."""
        s = self.sequence
        return RowDraw(s.compiled, s.history(self.guesses), s.seed, self.end)


class DraftModel:
    """Guesses the next tokens of several sequences at once.

    context  how long a text this model takes
    cost     of one of its steps, in steps of the target
    """

    def __init__(self, backend: Backend, context: int, cost: float) -> None:
        self.backend, self.context, self.cost = backend, context, cost
        self.blocks = BlockManager(backend.kv_blocks, backend.kv.block_tokens)
        self._texts: dict[int, _Text] = {}  # by sequence id

    def propose(self, wishes: list[tuple[Sequence, int]]) -> list[list[int]]:
        """That many guesses for each sequence; none where this model has no room."""
        drafts = [self._draft(sequence, wanted) for sequence, wanted in wishes]
        while writing := [d for d in drafts if len(d.guesses) < d.wanted]:
            self._step(writing)
        return [d.guesses for d in drafts]

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if text := self._texts.pop(sequence.id, None):
            self.blocks.give_back(text.blocks)

    def _draft(self, sequence: Sequence, wanted: int) -> _Draft:
        """Begin, if there is room."""
        text = self._texts.setdefault(sequence.id, _Text())
        text.follow(sequence)
        longest = len(sequence) + wanted
        lacking = -(-longest // self.blocks.block) - len(text.blocks)
        if longest > self.context or lacking > self.blocks.free:
            return _Draft(sequence, text, 0)
        text.blocks += self.blocks.take(max(lacking, 0))
        return _Draft(sequence, text, wanted)

    def _step(self, writing: list[_Draft]) -> None:
        """Compute what is pending; draw a guess for those of which nothing is left."""
        room = max(1, MAX_ROWS // len(writing))
        parts = [(d.text.num_computed_tokens, d.pending(room), d.text.blocks) for d in writing]
        done = [start + len(tokens) for start, tokens, _ in parts]
        ready = [reached == d.end for d, reached in zip(writing, done, strict=True)]
        ends = np.cumsum([len(tokens) for _, tokens, _ in parts]) - 1
        logits = self.backend.run(Batch(*lay_rows(parts), ends[ready].astype(np.int32)))
        for draft, reached in zip(writing, done, strict=True):
            draft.text.num_computed_tokens = reached
        drawing = [d for d, r in zip(writing, ready, strict=True) if r]
        drawn = self.backend.sample(logits, [d.draw for d in drawing])
        for draft, outcome in zip(drawing, drawn, strict=True):
            if isinstance(outcome, Sampled):
                draft.guesses.append(outcome.token_id)
            else:  # not finite: this model has nothing to say here
                draft.wanted = len(draft.guesses)
