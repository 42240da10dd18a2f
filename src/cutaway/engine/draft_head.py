"""A draft head: a layer behind the model that drafts from what the model computed (MTP).

Its row at position p reads the token there and the hidden state of p - 1, which the model's head
read before it drew that token; it predicts the token at p + 1. After the text's last token it reads
its own drafts, and its own hidden states. Rows that were computed without hidden states, such as
those of a cached prefix, it lacks: nothing attends to them, which costs acceptance and no bit.
"""

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Backend, Batch, Logits
from cutaway.engine.growing_draft import GrowingDraft
from cutaway.engine.scheduled import Scheduled, lay_rows
from cutaway.engine.sequence import Sequence
from cutaway.sampling import Sampled

Floats = NDArray[np.float32]


class _Hidden(NamedTuple):
    """Hidden states of a sequence's tokens that the head has yet to read: first, first + 1 …"""

    first: int
    rows: Floats  # (n, hidden)

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class _Part(NamedTuple):
    """Rows of one sequence in one step of the head."""

    start: int
    token_ids: list[int]
    blocks: list[int]
    given: Floats  # (n, hidden), of the tokens before


class DraftHead:
    """Drafts the next tokens of several sequences at once.

    backend  beside the model's: its KV blocks have the model's ids
    cost     of one of its steps, in steps of the model
    """

    kind = name = "mtp"
    reads: tuple[str, ...] = ()
    """The model's tensors that it reads; none: what the model's head reads."""

    def __init__(self, backend: Backend, cost: float) -> None:
        self.backend, self.cost = backend, cost
        # By KV block: which of its tokens the head has read, as they stand there now.
        self._has_read = np.zeros((backend.kv_blocks, backend.kv.block_tokens), bool)
        self._hidden: dict[int, _Hidden] = {}  # by sequence id

    def observe(self, scheduled: Items[Scheduled], hidden: Items[Floats | None]) -> None:
        """The model has computed these rows; hidden: of each, (rows, hidden), if it is known.

        Prompts are read at once, so that no more than a step's hidden states are kept.
        """
        chunks: list[_Part] = []
        for one, rows in zip(scheduled, hidden, strict=True):
            sequence, end = one.sequence, one.start + len(one.token_ids)
            self._note(sequence.blocks, one.start, one.start + one.num_rows, read=False)
            if rows is None:
                self._hidden.pop(sequence.id, None)
                continue
            self._hidden[sequence.id] = self._joined(sequence, one.start, rows)
            if len(one.token_ids) > 1:
                chunks.append(self._part(sequence, end))
                self._hidden[sequence.id] = self._rest(sequence, end)
        if chunks := [part for part in chunks if part.token_ids]:
            self._run(chunks, ())

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """As many draft tokens for each as asked; none where its last hidden state is not known."""
        drafts = [GrowingDraft(sequence, wanted) for sequence, wanted in draft_requests]
        parts = [self._part(draft.sequence, len(draft.sequence)) for draft in drafts]
        writing = [(d, p) for d, p in zip(drafts, parts, strict=True) if p.token_ids]
        while writing := [(d, p) for d, p in writing if not d.is_whole]:
            writing = self._step(writing)
        return [draft.tokens for draft in drafts]

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """The model's blocks are copied: (source, target) ids."""
        self.backend.copy_blocks(pairs)
        for source, target in pairs:
            self._has_read[target] = self._has_read[source]

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended, or its rows will be computed again."""
        self._hidden.pop(sequence.id, None)

    def reset(self) -> None:
        """Forget every sequence, and what was read for it."""
        self._hidden = {}
        self._has_read[:] = False

    # -- what it has to read -------------------------------------------------------------------

    def _joined(self, sequence: Sequence, start: int, rows: Floats) -> _Hidden:
        """Those of a step, behind the one before where that is known."""
        before = self._hidden.get(sequence.id)
        if before is None or not before.first < start <= before.end:
            return _Hidden(start, rows)
        last = before.rows[start - 1 - before.first]
        return _Hidden(start - 1, np.concatenate([last[None], rows]))

    def _rest(self, sequence: Sequence, end: int) -> _Hidden:
        """From the last of the text's first ``end`` tokens on."""
        known = self._hidden[sequence.id]
        return _Hidden(end - 1, known.rows[end - 1 - known.first :].copy())

    def _part(self, sequence: Sequence, end: int) -> _Part:
        """The rows before ``end`` whose hidden state is known; none where the last one's is not."""
        known = self._hidden.get(sequence.id)
        if known is None or known.end < end - 1:
            return _Part(0, [], [], np.empty((0, 0), np.float32))
        start, rows = known.first + 1, known.rows[: end - 1 - known.first]
        given = self._of_model(rows)
        return _Part(start, sequence.tokens(start, end), sequence.blocks, given)

    # -- its steps -----------------------------------------------------------------------------

    def _step(self, writing: list[tuple[GrowingDraft, _Part]]) -> list[tuple[GrowingDraft, _Part]]:
        """Draw the next draft token of each; the rows of the step after."""
        drafts = [draft for draft, _ in writing]
        last, hidden, outcomes = self._run([part for _, part in writing], drafts)
        following = []
        for draft, (_, part), row, outcome in zip(drafts, writing, last, outcomes, strict=True):
            draft.take(outcome)
            given = self._of_itself(hidden[row : row + 1], part.given)
            following.append((draft, _Part(draft.end - 1, draft.tokens[-1:], part.blocks, given)))
        return following

    def _of_model(self, rows: Floats) -> Floats:
        """What its rows are given, of the model's hidden states."""
        return rows

    def _of_itself(self, rows: Floats, like: Floats) -> Floats:
        """The same of its own hidden states; like: what rows were given before."""
        del like
        return rows

    def _compute(self, batch: Batch) -> tuple[Logits, Floats]:
        """Logits over the model's tokens, and its own hidden states of all rows."""
        return self.backend.run_whole(batch)

    def _run(
        self, parts: list[_Part], drafts: Items[GrowingDraft]
    ) -> tuple[list[int], Floats, list[Sampled | Exception]]:
        """Read these rows, and draw from the last of each; its number and all hidden states."""
        ends = np.cumsum([len(part.token_ids) for part in parts]) - 1
        for part in parts:
            self._note(part.blocks, part.start, part.start + len(part.token_ids), read=True)
        rows = lay_rows([(part.start, part.token_ids, part.blocks) for part in parts])
        tables = rows[3]
        is_read = self._has_read[tables].reshape(len(tables), -1)
        batch = Batch(
            *rows, ends.astype(np.int32) if drafts else np.empty(0, np.int32),
            hidden_from=np.where(is_read, np.float32(np.inf), np.float32(0)),
            given=np.concatenate([part.given for part in parts]),
        )  # fmt: skip
        logits, hidden = self._compute(batch)
        drawn = self.backend.sample(logits, [draft.draw() for draft in drafts]) if drafts else []
        return ends.tolist(), hidden, drawn

    def _note(self, blocks: list[int], start: int, end: int, *, read: bool) -> None:
        """Of tokens start … end - 1: whether the head has read them."""
        positions, size = np.arange(start, end), self._has_read.shape[1]
        self._has_read[np.array(blocks)[positions // size], positions % size] = read
