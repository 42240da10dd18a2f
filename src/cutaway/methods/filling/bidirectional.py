"""What a bidirectional or block-causal model says of positions in texts, many at a time."""

from collections.abc import Sequence

import numpy as np

from cutaway.compute.backends import Logits
from cutaway.engine import ScoreBidirectional
from cutaway.requests.prefill import each_ended
from cutaway.requests.stream import LogitsReader
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import ReadRow, read_rows

Ids = tuple[int, ...]
TextPositions = tuple[Ids, Ids]
"""A text, and the positions of which the logits are wanted."""


class Bidirectional:
    """Asks one model."""

    def __init__(self, llm: SyncLLM) -> None:
        self._llm = llm

    def logits(self, asked: Sequence[TextPositions]) -> list[Logits]:
        """Of the wanted positions of each text."""
        vocab, config = self._llm.tokenizer.vocab_size, self._llm.config
        rows = [tuple(max(i - config.shift, 0) for i in wanted) for _, wanted in asked]
        jobs = (
            (
                self._llm.request(ids, decoder=ScoreBidirectional(wanted)),
                LogitsReader(len(wanted), vocab, 0),
            )
            for (ids, _), wanted in zip(asked, rows, strict=True)
        )
        found = {i: reader.logits() for i, reader in each_ended(self._llm.owner, jobs)}
        return [found[i] for i in range(len(asked))]


def read(logits: Logits, top: int) -> list[ReadRow]:
    """The likeliest tokens of each row."""
    rows = read_rows(logits, [None] * len(logits), top)
    return [_sound(row) for row in rows]


def logprob_of(logits: Logits, token_id: int) -> float:
    """Of a token in one row."""
    found = _sound(read_rows(np.atleast_2d(logits), [token_id], 0)[0]).logprob
    assert found is not None
    return found


def _sound(row: ReadRow | Exception) -> ReadRow:
    if isinstance(row, Exception):
        raise row
    return row
