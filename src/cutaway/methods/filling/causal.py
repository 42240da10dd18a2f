"""What a causal model says of texts, many at a time; equal beginnings are computed once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Logits
from cutaway.engine import Event, Request, Score, Scored
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import R, each_ended
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import read_rows
from cutaway.sampling.fixed_math import log_sum_exp
from cutaway.text import Tokenizer

Ids = tuple[int, ...]
PerToken = Callable[[Logits, Sequence[int]], list[float]]
"""Rows of logits and the tokens that follow them -> a number of each."""


class Stopped(Exception):  # noqa: N818  it is none
    """Nobody waits for the answer any more."""


class ScoredText(NamedTuple):
    """A text of which all tokens from one position on are looked up; something is before it."""

    text: Ids
    first: int


class Causal:
    """Asks one model what follows texts, and how likely it found what does.

    rows     computed so far: tokens that were not in the prefix cache
    stopped  asked between two steps: whether nobody waits for answers any more; Stopped then
    """

    stopped: Callable[[], bool]

    def __init__(self, llm: SyncLLM) -> None:
        self._llm, self.stopped, self.rows = llm, bool, 0

    def following(self, texts: Iterable[Ids]) -> Iterator[tuple[int, Logits]]:
        """(index, logits (1, vocab)) of what comes after each, in the order in which they end."""
        jobs = ((self._scored(text, len(text) - 1), _LastRow()) for text in texts)
        for index, reader in self._ended(jobs):
            yield index, reader.row()

    def known(self, texts: Sequence[ScoredText], look: PerToken | None = None) -> list[list[float]]:
        """The log-probability of each token that is looked up, given those before it.

        look: what else is to be found of rows and the tokens that follow them
        """
        found: list[list[float]] = [[] for _ in texts]
        asked = [i for i, one in enumerate(texts) if one.first < len(one.text)]
        jobs = (
            (self._scored(texts[i].text, texts[i].first - 1), _Lookup(*texts[i], look or _look_up))
            for i in asked
        )
        for index, reader in self._ended(jobs):
            found[asked[index]] = reader.logprobs()
        return found

    def _scored(self, text: Ids, logits_from: int) -> Request:
        return self._llm.request(text, decoder=Score(logits_from=logits_from))

    def _ended(self, jobs: Iterable[tuple[Request, R]]) -> Iterator[tuple[int, R]]:
        for index, reader in each_ended(self._llm.owner, jobs, self.stopped):
            assert reader.ended
            self.rows += reader.ended.usage.prompt_tokens - reader.ended.usage.cached_tokens
            yield index, reader
        if self.stopped():
            raise Stopped


def adding_text(tokenizer: Tokenizer, *, spaced: bool = False) -> NDArray[np.bool_]:
    """Which tokens add to a text, (vocab,); spaced: with a space in front."""
    each = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    fits = (bool(data) and (data.startswith(b" ") or not spaced) for data in each)
    return np.fromiter(fits, np.bool_, tokenizer.vocab_size)


def likeliest(row: Logits, allowed: NDArray[np.bool_], count: int) -> list[int]:
    """The likeliest tokens that are allowed. Ties: the lowest id."""
    fits = np.where(allowed, row, -np.inf)
    order = np.argsort(-fits, kind="stable")[:count]
    return [i for i in order.tolist() if fits[i] > -np.inf]


def all_logprobs(row: Logits) -> NDArray[np.float64]:
    """Of every token, (vocab,), by a row (1, vocab); the very numbers that are looked up."""
    _look_up(row, [0])  # raises where it is not finite
    wide: NDArray[np.float64] = row[0].astype(np.float64)
    return np.subtract(wide, log_sum_exp(wide))


def _look_up(logits: Logits, known: Sequence[int]) -> list[float]:
    """How likely each row found the token that follows it."""
    found = []
    for read in read_rows(logits, known, 0):
        if isinstance(read, Exception):
            raise read
        assert read.logprob is not None
        found.append(read.logprob)
    return found


class _LastRow(EndListener):
    """The logits of the last row."""

    _row: Logits

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Scored) and event.logits is not None:
            self._row = event.logits[-1:]

    def row(self) -> Logits:
        """(1, vocab)."""
        self.check("logits")
        return self._row


class _Lookup(EndListener):
    """How likely a text's tokens were from one position on, without keeping logits."""

    def __init__(self, text: Ids, first: int, look: PerToken) -> None:
        super().__init__()
        self._text, self._first, self._look = text, first, look
        self._each: list[float] = []

    def take(self, event: Event) -> None:
        """PerToken up the tokens that follow the rows."""
        if isinstance(event, Scored) and (rows := event.logits) is not None:
            following = self._text[event.position : event.position + len(rows)]
            self._each += self._look(rows[: len(following)], following)

    def logprobs(self) -> list[float]:
        """Of each of them."""
        self.check("logits")
        assert len(self._each) == len(self._text) - self._first
        return self._each
