"""Logits of a bidirectional or block-causal model at positions of texts, many at a time."""

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
"""A text, and the positions whose logits are wanted."""


def logits_at(llm: SyncLLM, asked: Sequence[TextPositions]) -> list[Logits]:
    """The logits at the wanted positions of each text, (positions, vocab) each."""
    vocab, config = llm.tokenizer.vocab_size, llm.config
    rows = [tuple(max(i - config.shift, 0) for i in wanted) for _, wanted in asked]
    jobs = (
        (llm.request(ids, decoder=ScoreBidirectional(wanted)), LogitsReader(len(wanted), vocab, 0))
        for (ids, _), wanted in zip(asked, rows, strict=True)
    )
    found = {i: reader.logits() for i, reader in each_ended(llm.owner, jobs)}
    return [found[i] for i in range(len(asked))]


def read(logits: Logits, top: int) -> list[ReadRow]:
    """The ``top`` likeliest tokens of each row."""
    return [_sound(row) for row in read_rows(logits, [None] * len(logits), top)]


def logprob_of(logits: Logits, token_id: int) -> float:
    """The log-probability of a token, by one row."""
    found = _sound(read_rows(np.atleast_2d(logits), [token_id], 0)[0]).logprob
    assert found is not None
    return found


def _sound(row: ReadRow | Exception) -> ReadRow:
    """The row; raises where its logits are not finite."""
    if isinstance(row, Exception):
        raise row
    return row
