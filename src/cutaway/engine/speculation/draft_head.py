"""Drafts by a head: a layer after the model that reads the model's hidden states (MTP, EAGLE-3).

Its row at position p reads the token there and the hidden state of p - 1, from which the model's
head drew that token; it predicts the token at p + 1. After the text's last token it reads its own
drafts and its own hidden states. It lacks rows that were computed without hidden states, such as
those of a cached prefix: nothing attends to them, which lowers acceptance and changes no bit.

A head of EAGLE-3 reads the model's residual stream at some depths, and writes a vocabulary of its
own.
"""

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Backend, Batch, Logits
from cutaway.engine.scheduled import Scheduled, lay_rows
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation.growing_draft import GrowingDraft
from cutaway.sampling import Sampled

Floats = NDArray[np.float32]

_NOT_ITS_OWN = np.float32(-1e4)
"""The logit of tokens that a head cannot predict: finite, and never the largest."""


class DraftVocabulary(NamedTuple):
    """The tokens that a head can draft.

    ids     the model's ids of the head's tokens, below ``tokens``; None: the head has all ids
    tokens  how many tokens the model has
    """

    ids: NDArray[np.int64] | None
    tokens: int

    def widen(self, logits: Logits) -> Logits:
        """Return logits over the model's tokens."""
        if self.ids is None:
            return logits
        wide = np.full((len(logits), self.tokens), _NOT_ITS_OWN)
        wide[:, self.ids] = logits
        return wide


class Hidden(NamedTuple):
    """Hidden states of tokens first, first + 1, … of a sequence; the head has not read them."""

    first: int
    rows: Floats  # (n, hidden)

    @property
    def end(self) -> int:
        """The first token after them."""
        return self.first + len(self.rows)


class _Part(NamedTuple):
    """Rows of one sequence in one step of the head."""

    start: int
    token_ids: list[int]
    blocks: list[int]
    inputs: Floats  # (n, hidden), of the tokens before


class DraftHead:
    """Drafts the next tokens of several sequences at once, by a layer after the model.

    backend  the draft head's; its KV blocks have the same ids as the model's
    cost     of one of its steps, in steps of the model
    """

    kind = name = "mtp"
    reads: tuple[str, ...] = ()
    """The model's tensors that it reads; (): the input of the model's head."""
    shares_blocks = False
    """Whether it reads the keys and values that the model itself has stored."""

    def __init__(self, backend: Backend, cost: float) -> None:
        self.backend, self.cost = backend, cost
        # By KV block: which of its current tokens the head has read.
        self._has_read = np.zeros((backend.kv_blocks, backend.kv.block_tokens), bool)
        self._hidden: dict[int, Hidden] = {}  # by sequence id

    def observe(self, scheduled: Items[Scheduled], hidden: Items[Floats | None]) -> None:
        """Note rows that the model has computed; hidden: (rows, hidden), or None if not known.

        Prompts are read at once, so that no more than a step's hidden states are kept.
        """
        chunks: list[_Part] = []
        for entry, rows in zip(scheduled, hidden, strict=True):
            sequence, end = entry.sequence, entry.start + len(entry.token_ids)
            self._note(
                sequence.memory.blocks, entry.start, entry.start + entry.num_rows, read=False
            )
            if rows is None:
                self._hidden.pop(sequence.id, None)
                continue
            self._hidden[sequence.id] = self._join_hidden(sequence, entry.start, rows)
            if len(entry.token_ids) > 1:
                chunks.append(self._part(sequence, end))
                self._hidden[sequence.id] = self._hidden_from(sequence, end)
        if chunks := [part for part in chunks if part.token_ids]:
            self._run(chunks, ())

    def passes(self, count: int) -> int:
        """Return how many steps of the head draft so many tokens."""
        return count

    def count_missed(self, sequence: Sequence) -> int:
        """Return 0: rows that it has not followed stay unread."""
        del sequence
        return 0

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """Draft for each (sequence, number of tokens); none without the last hidden state."""
        drafts = [GrowingDraft(sequence, count) for sequence, count in draft_requests]
        parts = [self._part(draft.sequence, len(draft.sequence)) for draft in drafts]
        writing = [(d, p) for d, p in zip(drafts, parts, strict=True) if p.token_ids]
        while writing := [(d, p) for d, p in writing if not d.is_whole]:
            writing = self._step(writing)
        return [draft.tokens for draft in drafts]

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks like the model's: (source, target) ids."""
        self.backend.copy_blocks(pairs)
        for source, target in pairs:
            self._has_read[target] = self._has_read[source]

    def forget_block(self, block_id: int) -> None:
        """Forget what was read into a block, whose tokens are others now."""
        self._has_read[block_id] = False

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended, or whose rows will be computed again."""
        self._hidden.pop(sequence.id, None)

    def reset(self) -> None:
        """Forget every sequence, and what was read for it."""
        self._hidden = {}
        self._has_read[:] = False

    # -- what it has to read -------------------------------------------------------------------

    def _join_hidden(self, sequence: Sequence, start: int, rows: Floats) -> Hidden:
        """Put a step's hidden states after the one before them, if it is known."""
        before = self._hidden.get(sequence.id)
        if before is None or not before.first < start <= before.end:
            return Hidden(start, rows)
        last = before.rows[start - 1 - before.first]
        return Hidden(start - 1, np.concatenate([last[None], rows]))

    def _hidden_from(self, sequence: Sequence, end: int) -> Hidden:
        """Return the known hidden states from token ``end`` - 1 on."""
        hidden = self._hidden[sequence.id]
        return Hidden(end - 1, hidden.rows[end - 1 - hidden.first :].copy())

    def _part(self, sequence: Sequence, end: int) -> _Part:
        """The rows before ``end`` that can be read; none if the last one's input is unknown."""
        hidden = self._hidden.get(sequence.id)
        if hidden is None or hidden.end < end - 1:
            return _Part(0, [], [], np.empty((0, 0), np.float32))
        start, rows = hidden.first + 1, hidden.rows[: end - 1 - hidden.first]
        inputs = self._inputs_from_model(rows)
        return _Part(start, sequence.tokens(start, end), sequence.memory.blocks, inputs)

    # -- its steps -----------------------------------------------------------------------------

    def _step(self, writing: list[tuple[GrowingDraft, _Part]]) -> list[tuple[GrowingDraft, _Part]]:
        """Draw the next draft token of each; return the rows of the next step."""
        drafts = [draft for draft, _ in writing]
        last, hidden, outcomes = self._run([part for _, part in writing], drafts)
        following = []
        for draft, (_, part), row, outcome in zip(drafts, writing, last, outcomes, strict=True):
            draft.take(outcome)
            inputs = self._inputs_from_itself(hidden[row : row + 1], part.inputs)
            following.append((draft, _Part(draft.end - 1, draft.tokens[-1:], part.blocks, inputs)))
        return following

    def _inputs_from_model(self, rows: Floats) -> Floats:
        """Return the inputs of the head's rows from the model's hidden states."""
        return rows

    def _inputs_from_itself(self, rows: Floats, like: Floats) -> Floats:
        """Return the inputs of the head's rows from its own hidden states; like: earlier inputs."""
        del like
        return rows

    def _compute(self, batch: Batch) -> tuple[Logits, Floats]:
        """Return logits over the model's tokens, and the head's own hidden states of all rows."""
        return self.backend.run_whole(batch)

    def _run(
        self, parts: list[_Part], drafts: Items[GrowingDraft]
    ) -> tuple[list[int], Floats, list[Sampled | Exception]]:
        """Run these rows, and draw from the last of each part.

        Returns the numbers of these last rows, all hidden states, and the outcomes of the draws.
        """
        ends = np.cumsum([len(part.token_ids) for part in parts]) - 1
        for part in parts:
            self._note(part.blocks, part.start, part.start + len(part.token_ids), read=True)
        rows = lay_rows([(part.start, part.token_ids, part.blocks) for part in parts])
        tables = rows[3]
        is_read = self._has_read[tables].reshape(len(tables), -1)
        batch = Batch(
            *rows, ends.astype(np.int32) if drafts else np.empty(0, np.int32),
            hidden_from=np.where(is_read, np.float32(np.inf), np.float32(0)),
            given=np.concatenate([part.inputs for part in parts]),
        )  # fmt: skip
        logits, hidden = self._compute(batch)
        outcomes = self.backend.sample(logits, [draft.draw() for draft in drafts]) if drafts else []
        return ends.tolist(), hidden, outcomes

    def _note(self, blocks: list[int], start: int, end: int, *, read: bool) -> None:
        """Note whether the head has read tokens start … end - 1."""
        size = self._has_read.shape[1]
        for i in range(start // size, -(-end // size)):
            self._has_read[blocks[i], max(start - i * size, 0) : end - i * size] = read


# -- EAGLE-3 ---------------------------------------------------------------------------------------


class EagleTensors(NamedTuple):
    """The tensors and the vocabulary of an EAGLE head.

    reads       the model's tensors that are its inputs, side by side
    own_hidden  its own tensor that is the input after its own drafts, and the tensor's width
    """

    reads: tuple[str, ...]
    own_hidden: tuple[str, int]
    vocabulary: DraftVocabulary


class EagleHead(DraftHead):
    """A ``DraftHead`` of EAGLE. name: its name in a request, "eagle:PATH"."""

    kind = "eagle"

    def __init__(self, backend: Backend, cost: float, name: str, tensors: EagleTensors) -> None:
        super().__init__(backend, cost)
        self.name, self.reads, self._tensors = name, tensors.reads, tensors

    def _inputs_from_model(self, rows: Floats) -> Floats:
        return np.pad(rows, ((0, 0), (0, self._tensors.own_hidden[1])))

    def _inputs_from_itself(self, rows: Floats, like: Floats) -> Floats:
        return np.pad(rows, ((0, 0), (like.shape[1] - rows.shape[1], 0)))

    def _compute(self, batch: Batch) -> tuple[Logits, Floats]:
        logits, hidden = self.backend.run_whole(batch, (self._tensors.own_hidden[0],))
        return self._tensors.vocabulary.widen(logits), hidden
