"""How likely the tokens of a row are: the likeliest, and the rank of one.

This NumPy code is the definition; native/sampler.cpp gives the same bits.
"""

from typing import NamedTuple

import numpy as np

from cutaway.sampling.candidates import Candidates, LogitsRow
from cutaway.sampling.chain import logprob
from cutaway.sampling.fixed_math import log_sum_exp

Likeliest = tuple[tuple[int, float], ...]
"""(token id, natural log-probability), best first; ties go to the lowest id."""


class Logprobs(NamedTuple):
    """A draw's likeliest tokens and the drawn token's own log-probability, natural logarithms.

    model, chosen_model   under the model's own logits
    chain, chosen_chain   after the chain: among the survivors, whose probabilities sum to 1. At
                          temperature 0 the chain has no temperature and no filters. None where
                          the token was forced and did not survive
    """

    model: Likeliest
    chain: Likeliest
    chosen_model: float
    chosen_chain: float | None


class ReadRow(NamedTuple):
    """What the model's own logits say of the token that follows them.

    logprob, rank   of that token, 1 being the likeliest; None where no token was given
    top             the likeliest tokens
    """

    logprob: float | None
    rank: int | None
    top: Likeliest


def likeliest(c: Candidates, count: int) -> Likeliest:
    """The ``count`` likeliest candidates, or all where they are fewer."""
    best, wide = c.best_first()[:count], c.logits.astype(np.float64)
    total = log_sum_exp(wide)
    return tuple((int(c.ids[i]), float(wide[i]) - total) for i in best)


def rank(logits: LogitsRow, index: int) -> int:
    """1 for the likeliest of a vector; of equals the lowest index comes first."""
    own = logits[index]
    ahead = np.count_nonzero(logits > own) + np.count_nonzero(logits[:index] == own)
    return 1 + int(ahead)


def read_row(logits: LogitsRow, next_id: int | None, top: int) -> ReadRow:
    """Read one row of finite logits (vocab,)."""
    best = likeliest(Candidates.all_of(logits), top)
    if next_id is None:
        return ReadRow(None, None, best)
    return ReadRow(logprob(logits, next_id), rank(logits, next_id), best)
