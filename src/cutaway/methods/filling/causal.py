"""Scores texts with a causal model, many at a time; common prefixes are computed once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Logits
from cutaway.engine import Event, Request, RunParams, Score, Scored
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import R, each_ended
from cutaway.requests.stream import LogitsReader
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import read_rows
from cutaway.sampling.fixed_math import log_sum_exp
from cutaway.text import Tokenizer

Ids = tuple[int, ...]
PerToken = Callable[[Logits, Sequence[int]], list[float]]
"""Rows of logits, and the token that follows each -> a number for each."""


class Stopped(Exception):  # noqa: N818  it is none
    """The caller asked to stop."""


class ScoredText(NamedTuple):
    """A text whose tokens from position ``first``, 1 or more, are scored."""

    text: Ids
    first: int


class Causal:
    """One model's predictions after texts, and its log-probabilities of given tokens.

    salt     see ``RunParams``
    rows     computed so far: tokens that were not in the prefix cache
    stopped  called between two steps; once it returns True, Stopped is raised
    """

    stopped: Callable[[], bool]

    def __init__(self, llm: SyncLLM, salt: str | None = None) -> None:
        self._llm, self._run, self.stopped, self.rows = llm, RunParams(cache_salt=salt), bool, 0

    def following(self, texts: Iterable[Ids]) -> Iterator[tuple[int, Logits]]:
        """(index, logits (1, vocab)) of what follows each text, in the order they end."""
        vocab = self._llm.tokenizer.vocab_size
        jobs = (
            (self._scored(text, len(text) - 1), LogitsReader(1, vocab, len(text) - 1))
            for text in texts
        )
        for index, reader in self._ended(jobs):
            yield index, reader.logits()

    def known(self, texts: Sequence[ScoredText], look: PerToken | None = None) -> list[list[float]]:
        """The log-probability of each scored token, given those before it.

        look: computes another number for each token, from rows of logits and the tokens themselves
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
        return self._llm.request(text, decoder=Score(logits_from=logits_from), run=self._run)

    def _ended(self, jobs: Iterable[tuple[Request, R]]) -> Iterator[tuple[int, R]]:
        for index, reader in each_ended(self._llm.owner, jobs, self.stopped):
            assert reader.ended
            self.rows += reader.ended.usage.prompt_tokens - reader.ended.usage.cached_tokens
            yield index, reader
        if self.stopped():
            raise Stopped


def adding_text(tokenizer: Tokenizer, *, spaced: bool = False) -> NDArray[np.bool_]:
    """Which tokens add bytes to a text, (vocab,); spaced: only those that begin with a space."""
    each = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    fits = (bool(data) and (data.startswith(b" ") or not spaced) for data in each)
    return np.fromiter(fits, np.bool_, tokenizer.vocab_size)


def likeliest(row: Logits, allowed: NDArray[np.bool_], count: int) -> list[int]:
    """Ids of the ``count`` likeliest allowed tokens. Ties: the lowest id first."""
    fits = np.where(allowed, row, -np.inf)
    order = np.argsort(-fits, kind="stable")[:count]
    return [i for i in order.tolist() if fits[i] > -np.inf]


def all_logprobs(row: Logits) -> NDArray[np.float64]:
    """Log-probabilities of every token, (vocab,), of a row (1, vocab); the same as ``known``'s."""
    _look_up(row, [0])  # raises where it is not finite
    wide: NDArray[np.float64] = row[0].astype(np.float64)
    return np.subtract(wide, log_sum_exp(wide))


def _look_up(logits: Logits, known: Sequence[int]) -> list[float]:
    """The log-probability of the token that follows each row."""
    found = []
    for read in read_rows(logits, known, 0):
        if isinstance(read, Exception):
            raise read
        assert read.logprob is not None
        found.append(read.logprob)
    return found


class _Lookup(EndListener):
    """Scores a text's tokens from one position on, without keeping logits."""

    def __init__(self, text: Ids, first: int, look: PerToken) -> None:
        super().__init__()
        self._text, self._first, self._look = text, first, look
        self._each: list[float] = []

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Scored) and (rows := event.logits) is not None:
            following = self._text[event.position : event.position + len(rows)]
            self._each += self._look(rows[: len(following)], following)

    def logprobs(self) -> list[float]:
        """A number for each token; raises what the text failed with."""
        self.check("logits")
        assert len(self._each) == len(self._text) - self._first
        return self._each
