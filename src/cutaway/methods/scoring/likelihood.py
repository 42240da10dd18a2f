"""Likelihoods of given tokens: the engine's requests, and their results.

Answers that differ in their last token alone are one request.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from math import exp, fsum
from typing import Any

from cutaway.base.arithmetic import plainly
from cutaway.engine import Event, Request, ScoreAnswers, Scored
from cutaway.methods.scoring.cutting import Cut, Ids
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask
from cutaway.sampling import ReadRow, SamplingParams


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of tokens after others, by the model's unprocessed logits.

    prompt_token_ids  the tokens before
    token_ids         the tokens that are scored
    logprobs          natural, of each, given all before it
    ranks             of each among all tokens, 1 is the likeliest; ties: the lowest id first
    """

    prompt_token_ids: Ids
    token_ids: Ids
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]

    @property
    @plainly
    def total(self) -> float:
        """The log-likelihood of all tokens, in nats: the exact sum, rounded once."""
        return fsum(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the likeliest at its position."""
        return all(rank == 1 for rank in self.ranks)

    @property
    @plainly
    def perplexity(self) -> float:
        """exp of minus the mean log-probability."""
        return exp(-self.total / len(self.token_ids))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"total": self.total, "is_greedy": self.is_greedy}


class LookUpReader(EndListener):
    """Receives the log-probabilities of one text's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[ReadRow] = []

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Scored):
            self._rows += event.rows

    @property
    def found(self) -> int:
        """The number of tokens scored so far."""
        return len(self._rows)

    def rows(self) -> list[ReadRow]:
        """The scored rows, once the text has ended; raises the text's error."""
        self.check("likelihoods")
        return self._rows


def scoring(cuts: Iterable[Cut], adapter: str = "") -> PrefillTask[LookUpReader, list[Likelihood]]:
    """The likelihood of each answer after its prompt. adapter: as in a ``Request``."""
    asked = [*cuts]
    ends_after: dict[Cut, list[int]] = {}  # prompt and answer without its last token -> last tokens
    for prompt, answer in asked:
        ends = ends_after.setdefault(Cut(prompt, answer[:-1]), [])
        if answer[-1] not in ends:
            ends.append(answer[-1])

    def requests() -> Iterator[Request]:
        for (prompt, begun), ends in ends_after.items():
            decoder = ScoreAnswers(len(prompt), tuple(ends))
            yield _template().but(prompt_token_ids=prompt + begun, decoder=decoder, adapter=adapter)

    def found(readers: Sequence[LookUpReader]) -> list[Likelihood]:
        each: dict[Cut, list[ReadRow]] = {}
        for (cut, ends), reader in zip(ends_after.items(), readers, strict=True):
            rows, begun = reader.rows(), len(cut.answer)
            for end, row in zip(ends, rows[begun:], strict=True):
                each[Cut(cut.prompt, (*cut.answer, end))] = [*rows[:begun], row]
        return [_likelihood(cut, each[cut]) for cut in asked]

    return PrefillTask(requests(), LookUpReader, found)


@lru_cache
def _template() -> Request:
    """A request whose parts are checked once for all."""
    return Request(prompt_token_ids=(), sampling=SamplingParams(temperature=0, seed=0))


def _likelihood(cut: Cut, rows: Sequence[ReadRow]) -> Likelihood:
    logprobs, ranks = [], []
    for row in rows:
        assert row.logprob is not None
        assert row.rank is not None
        logprobs.append(row.logprob)
        ranks.append(row.rank)
    return Likelihood(cut.prompt, cut.answer, tuple(logprobs), tuple(ranks))


def joined(parts: Sequence[Likelihood]) -> Likelihood:
    """The likelihood of a text, from those of its windows."""
    return Likelihood(
        parts[0].prompt_token_ids,
        tuple(chain.from_iterable(part.token_ids for part in parts)),
        tuple(chain.from_iterable(part.logprobs for part in parts)),
        tuple(chain.from_iterable(part.ranks for part in parts)),
    )
