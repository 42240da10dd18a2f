"""BlockHead: drafts a block of tokens in one pass, as DFlash and DSpark do.

It stores keys and values of the text from the model's residual stream. For each draft it computes a
block: the text's last token, then mask tokens. Draft tokens are drawn from the block's logits one
after the other, with the target's own chain, constraint and luck; a Markov head adds to a row's
logits what follows from the token drawn before. Nothing of a block is kept.
"""

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from cutaway.compute.backends import Backend, Batch, Logits
from cutaway.compute.backends.base import Ints
from cutaway.engine.scheduled import Scheduled, lay_rows
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation.draft_head import DraftHead, DraftVocabulary, Floats, Hidden
from cutaway.engine.speculation.growing_draft import GrowingDraft

MAX_UNREAD = 32
"""How many rows of a text may wait to be stored while nothing is drafted for it."""


class BlockForm(NamedTuple):
    """What a block drafter is given, and how it is read.

    reads       the model's tensors that are its inputs, side by side
    block_size  the most rows of a block
    mask_id     the token of the rows that are to be guessed
    first       the first row of a block that drafts
    vocabulary  the tokens that are drafted
    """

    reads: tuple[str, ...]
    block_size: int
    mask_id: int
    first: int
    vocabulary: DraftVocabulary


class BlockHead(DraftHead):
    """Drafts blocks for several sequences at once.

    kind, name  as in a request: "dflash", "dflash:PATH"
    backend     computes blocks
    context     stores keys and values of texts where ``backend`` reads them
    markov      computes what a token adds to the next row's logits; None: nothing
    """

    def __init__(
        self, name: str, form: BlockForm, cost: float,
        *, backend: Backend, context: Backend, markov: Backend | None = None,
    ) -> None:  # fmt: skip
        super().__init__(backend, cost)
        self.kind, _, _ = name.partition(":")
        self.name, self.form, self.reads = name, form, form.reads
        self._context, self._markov = context, markov

    def passes(self, count: int) -> int:
        """Return 1, or 0 for no tokens: a block is drafted in one pass."""
        return min(count, 1)

    @property
    def longest(self) -> int:
        """The most tokens of a draft."""
        return self.form.block_size - self.form.first

    def observe(self, scheduled: Items[Scheduled], hidden: Items[Floats | None]) -> None:
        """Note rows that the model has computed; store those of prompts, and of long pauses."""
        certain: list[tuple[Sequence, int]] = []
        for entry, rows in zip(scheduled, hidden, strict=True):
            sequence, start = entry.sequence, entry.start
            self._note(sequence.memory.blocks, start, start + entry.num_rows, read=False)
            if rows is None:
                self._hidden.pop(sequence.id, None)
                continue
            hidden_rows = self._hidden[sequence.id] = self._join(sequence, start, rows)
            end = start + len(entry.token_ids)
            if len(entry.token_ids) > 1 or end - hidden_rows.first > MAX_UNREAD:
                certain.append((sequence, end))
        self._store(certain)

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """Draft for each (sequence, number of tokens); none if it lacks a row of the text's end."""
        drafts = [GrowingDraft(s, min(count, self.longest)) for s, count in draft_requests]
        writing = [draft for draft in drafts if not draft.is_whole and self._knows(draft.sequence)]
        if writing:
            self._store([(draft.sequence, len(draft.sequence) - 1) for draft in writing])
            self._draw(writing, self._blocks_logits(writing))
        return [draft.tokens for draft in drafts]

    # -- the text ----------------------------------------------------------------------------------

    def _join(self, sequence: Sequence, start: int, rows: Floats) -> Hidden:
        """Put a step's hidden states after those that wait; rows from ``start`` on are replaced."""
        before = self._hidden.get(sequence.id)
        if before is None or not before.first <= start <= before.end:
            return Hidden(start, rows.copy())
        return Hidden(before.first, np.concatenate([before.rows[: start - before.first], rows]))

    def _knows(self, sequence: Sequence) -> bool:
        """Whether all rows of the text, but its last token's, are stored or can be."""
        hidden = self._hidden.get(sequence.id)
        return hidden is not None and hidden.end >= len(sequence) - 1

    def _store(self, texts: list[tuple[Sequence, int]]) -> None:
        """Store keys and values of each text's waiting rows before a position."""
        parts, inputs = [], []
        for sequence, end in texts:
            first, rows = self._hidden[sequence.id]
            self._hidden[sequence.id] = Hidden(end, rows[end - first :].copy())
            if end > first:
                self._note(sequence.memory.blocks, first, end, read=True)
                parts.append((first, sequence.tokens(first, end), sequence.memory.blocks))
                inputs.append(rows[: end - first])
        if parts:
            batch = Batch(*lay_rows(parts), np.empty(0, np.int32), given=np.concatenate(inputs))
            self._context.run(batch)

    # -- a block -----------------------------------------------------------------------------------

    def _blocks_logits(self, drafts: list[GrowingDraft]) -> list[Logits]:
        """Compute a block for each draft; return the logits of the rows that draft."""
        parts = []
        for draft in drafts:
            length, rows = len(draft.sequence), draft.count + self.form.first
            masks = [self.form.mask_id] * (rows - 1)
            tokens = draft.sequence.tokens(length - 1, length) + masks
            parts.append((length - 1, tokens, draft.sequence.memory.blocks))
        logits = self.backend.run(self._blocks_batch(parts)).copy()
        return np.split(logits, np.cumsum([draft.count for draft in drafts])[:-1])

    def _blocks_batch(self, parts: list[tuple[int, list[int], list[int]]]) -> Batch:
        """Return the rows of blocks, (start, tokens, KV blocks); they see all stored rows."""
        tokens, positions, sequences, tables = lay_rows(parts)
        lengths = [len(part) for _, part, _ in parts]
        for start, part, blocks in parts:
            self._note(blocks, start, start + len(part), read=True)
        is_read = self._has_read[tables].reshape(len(tables), -1)
        for start, part, blocks in parts:
            self._note(blocks, start, start + len(part), read=False)
        ends = np.array([start + len(part) - 1 for start, part, _ in parts], np.int32)
        first = np.cumsum([0, *lengths[:-1]])
        is_guess = np.arange(len(tokens)) >= np.repeat(first, lengths) + self.form.first
        return Batch(
            tokens, positions, sequences, tables, np.flatnonzero(is_guess).astype(np.int32),
            limits=ends[sequences],
            hidden_from=np.where(is_read, np.float32(np.inf), np.float32(0)),
        )  # fmt: skip

    def _draw(self, drafts: list[GrowingDraft], logits: list[Logits]) -> None:
        """Draw the drafts' tokens, each from its row."""
        pairs = list(zip(drafts, logits, strict=True))
        while pairs := [(draft, rows) for draft, rows in pairs if not draft.is_whole]:
            rows = np.stack([rows[len(draft.tokens)] for draft, rows in pairs])
            if self._markov:
                rows += self._markov.run(_single_rows([draft.last_token for draft, _ in pairs]))
            rows = self.form.vocabulary.widen(rows)
            outcomes = self.backend.sample(rows, [draft.draw() for draft, _ in pairs])
            for (draft, _), outcome in zip(pairs, outcomes, strict=True):
                draft.take(outcome)


def _single_rows(tokens: list[int]) -> Batch:
    """Return rows of a graph without attention."""
    numbers: Ints = np.arange(len(tokens), dtype=np.int32)
    tables = np.zeros((len(tokens), 1), np.int32)
    return Batch(np.array(tokens, np.int32), 0 * numbers, numbers, tables, numbers)
