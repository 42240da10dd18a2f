"""A causal model's predictions after many texts, and its log-probabilities of given tokens.

The requests here only read texts, many at a time; common beginnings are computed once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Logits
from cutaway.engine import Event, Request, RunParams, Score, Scored
from cutaway.methods.rows import Ids
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import R, iterate_ended
from cutaway.requests.sync_llm import LogitsReader, SyncLLM
from cutaway.sampling import read_rows
from cutaway.sampling.fixed_math import log_sum_exp
from cutaway.text import Tokenizer

PerToken = Callable[[Logits, Sequence[int]], list[float]]
"""(rows of logits, the token that follows each row) -> a number for each token."""


class Stopped(Exception):  # noqa: N818  it is no error
    """The caller asked to stop."""


class ScoredText(NamedTuple):
    """A text whose tokens from position ``first``, 1 or more, are scored."""

    text: Ids
    first: int


class Causal:
    """One model's predictions after texts, and its log-probabilities of given tokens.

    salt     see ``RunParams``
    prompt_tokens  see ``logits``
    rows     how many tokens were computed so far: those that were not in the prefix cache
    stopped  called between two steps; once it returns True, Stopped is raised
    """

    stopped: Callable[[], bool]

    def __init__(self, llm: SyncLLM, salt: str | None = None, *, prompt_tokens: int = 0) -> None:
        self._llm, self._run, self._prompt_tokens = llm, RunParams(cache_salt=salt), prompt_tokens
        self.stopped, self.rows = bool, 0

    def following(self, texts: Iterable[Ids]) -> Iterator[tuple[int, Logits]]:
        """Yield (index, logits (1, vocab)) of the token after each text, in the order they end."""
        vocab = self._llm.tokenizer.vocab_size
        jobs = (
            (self._request(text, len(text) - 1), LogitsReader(1, vocab, len(text) - 1))
            for text in texts
        )
        for index, reader in self._iterate_ended(jobs):
            yield index, reader.logits()

    def score_tokens(
        self, texts: Sequence[ScoredText], look: PerToken | None = None
    ) -> list[list[float]]:
        """Return the log-probability of each scored token, given the tokens before it.

        look: computes another number for each token, from rows of logits and the tokens themselves
        """
        scores: list[list[float]] = [[] for _ in texts]
        indices = [
            i for i, scored_text in enumerate(texts) if scored_text.first < len(scored_text.text)
        ]
        jobs = (
            (self._request(texts[i].text, texts[i].first - 1), _Lookup(*texts[i], look or _look_up))
            for i in indices
        )
        for index, reader in self._iterate_ended(jobs):
            scores[indices[index]] = reader.logprobs()
        return scores

    def _request(self, text: Ids, logits_from: int) -> Request:
        decoder = Score(logits_from, self._prompt_tokens)
        return self._llm.request(text, decoder=decoder, run=self._run)

    def _iterate_ended(self, jobs: Iterable[tuple[Request, R]]) -> Iterator[tuple[int, R]]:
        for index, reader in iterate_ended(self._llm.owner, jobs, self.stopped):
            assert reader.end
            self.rows += reader.end.usage.prompt_tokens - reader.end.usage.cached_tokens
            yield index, reader
        if self.stopped():
            raise Stopped


def adding_text(tokenizer: Tokenizer, *, spaced: bool = False) -> NDArray[np.bool_]:
    """Return which tokens add bytes to a text, (vocab,). spaced: the bytes begin with a space."""
    token_bytes = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    fits = (bool(data) and (data.startswith(b" ") or not spaced) for data in token_bytes)
    return np.fromiter(fits, np.bool_, tokenizer.vocab_size)


def likeliest(row: Logits, allowed: NDArray[np.bool_], count: int) -> list[int]:
    """Return ids of the ``count`` likeliest allowed tokens; in a tie the lowest id comes first."""
    fits = np.where(allowed, row, -np.inf)
    order = np.argsort(-fits, kind="stable")[:count]
    return [i for i in order.tolist() if fits[i] > -np.inf]


def all_logprobs(row: Logits) -> NDArray[np.float64]:
    """Return the log-probability of each token, (vocab,), of a row (1, vocab)."""
    _look_up(row, [0])  # raises where it is not finite
    wide: NDArray[np.float64] = row[0].astype(np.float64)
    return np.subtract(wide, log_sum_exp(wide))


def _look_up(logits: Logits, next_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of the token that follows each row."""
    logprobs = []
    for read in read_rows(logits, next_ids, 0):
        if isinstance(read, Exception):
            raise read
        assert read.logprob is not None
        logprobs.append(read.logprob)
    return logprobs


class _Lookup(EndListener):
    """Scores a text's tokens from a position on, without keeping logits."""

    def __init__(self, text: Ids, first: int, look: PerToken) -> None:
        super().__init__()
        self._text, self._first, self._look = text, first, look
        self._numbers: list[float] = []

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Scored) and (rows := event.logits) is not None:
            following = self._text[event.position : event.position + len(rows)]
            self._numbers += self._look(rows[: len(following)], following)

    def logprobs(self) -> list[float]:
        """Return a number for each token; raise the error of the text's sequence."""
        self.check("logits")
        assert len(self._numbers) == len(self._text) - self._first
        return self._numbers
