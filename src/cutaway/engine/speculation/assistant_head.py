"""AssistantHead: drafts with a small model that reads what the model has stored (Gemma 4's).

It stores nothing of a text. All draft tokens of a block are guessed from the place of the text's
last token, whose own keys and values do not exist yet: each row sees the tokens before.
"""

from collections.abc import Sequence as Items

import numpy as np

from cutaway.compute.backends import Backend, Batch, Logits
from cutaway.engine.scheduled import Scheduled, lay_rows
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation.draft_head import DraftHead, Floats, Hidden
from cutaway.engine.speculation.growing_draft import GrowingDraft


class AssistantHead(DraftHead):
    """Drafts tokens one after another for several sequences at once.

    backend  computes the assistant over the KV blocks of the model
    name     as in a request: "assistant:PATH"
    output   the tensor that it reads back after its own draft token
    """

    kind = "assistant"
    shares_blocks = True

    def __init__(self, backend: Backend, cost: float, name: str, output: str) -> None:
        super().__init__(backend, cost)
        self.name, self._output = name, output

    def observe(self, scheduled: Items[Scheduled], hidden: Items[Floats | None]) -> None:
        """Note the hidden states of the last token and of draft tokens."""
        for entry, rows in zip(scheduled, hidden, strict=True):
            last = len(entry.token_ids) - 1
            if rows is None:
                self._hidden.pop(entry.sequence.id, None)
            else:
                hidden_rows = Hidden(entry.start + last, rows[last:].copy())
                self._hidden[entry.sequence.id] = hidden_rows

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """Draft for each (sequence, number of tokens); none without the last hidden state."""
        drafts = [GrowingDraft(sequence, count) for sequence, count in draft_requests]
        writing = [(d, self._last_hidden(d.sequence)) for d in drafts if not d.is_whole]
        writing = [(draft, rows) for draft, rows in writing if len(rows)]
        while writing := [(draft, rows) for draft, rows in writing if not draft.is_whole]:
            drawing = [draft for draft, _ in writing]
            logits, outputs = self._guess(drawing, np.concatenate([rows for _, rows in writing]))
            outcomes = self.backend.sample(logits, [draft.draw() for draft in drawing])
            for draft, outcome in zip(drawing, outcomes, strict=True):
                draft.take(outcome)
            writing = [(d, outputs[i : i + 1].copy()) for i, d in enumerate(drawing)]
        return [draft.tokens for draft in drafts]

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Do nothing: the model copies the blocks, which are its own."""

    def forget_block(self, block_id: int) -> None:
        """Do nothing: nothing is stored beside the model's blocks."""

    def _last_hidden(self, sequence: Sequence) -> Floats:
        """Return the row from which the text's last token was drawn, (1, hidden); (0, 0): none."""
        hidden, position = self._hidden.get(sequence.id), len(sequence) - 2
        if hidden is None or not hidden.first <= position < hidden.end:
            return np.empty((0, 0), np.float32)
        return hidden.rows[position - hidden.first :][:1]

    def _guess(self, drafts: list[GrowingDraft], before: Floats) -> tuple[Logits, Floats]:
        """Compute a row of each draft; return its logits, and what it reads back.

        before: for each, the row from which its last token was drawn
        """
        lengths = [len(draft.sequence) for draft in drafts]
        parts = [
            (length - 1, [draft.last_token], draft.sequence.memory.blocks)
            for draft, length in zip(drafts, lengths, strict=True)
        ]
        rows = np.arange(len(drafts), dtype=np.int32)
        limits = np.array(lengths, np.int32) - 2
        batch = Batch(*lay_rows(parts), rows, limits=limits, given=before)
        return self.backend.run_whole(batch, (self._output,))
