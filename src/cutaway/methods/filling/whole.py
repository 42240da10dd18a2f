"""What a model that sees more than the past says of positions in many texts at a time.

Knows which row is of a position. Refuses to know what is asked.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cutaway.compute.backends import Logits
from cutaway.engine import ReadWhole, Request
from cutaway.requests.reading import each_ended
from cutaway.requests.runner import Runner
from cutaway.requests.stream import LogitsReader
from cutaway.sampling import ReadRow, read_rows

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

Ids = tuple[int, ...]
Asked = tuple[Ids, Ids]
"""A text, and the positions of which the logits are wanted."""


class Whole:
    """Asks one model."""

    def __init__(self, llm: "BaseLLM", runner: Runner) -> None:
        self._llm, self._runner = llm, runner

    def logits(self, asked: Sequence[Asked]) -> list[Logits]:
        """Of the wanted positions of each text."""
        vocab, config = self._llm.tokenizer.vocab_size, self._llm.config
        rows = [tuple(max(i - config.shift, 0) for i in wanted) for _, wanted in asked]
        jobs = (
            (
                Request(prompt_token_ids=ids, decoder=ReadWhole(wanted, config.attention)),
                LogitsReader(len(wanted), vocab, 0),
            )
            for (ids, _), wanted in zip(asked, rows, strict=True)
        )
        found = {i: reader.logits() for i, reader in each_ended(self._runner, jobs)}
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
