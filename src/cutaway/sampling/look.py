"""What a trace wants to know of a row: the whole of it in figures, and a few tokens' way through.

This NumPy text is the definition; native/sampler_look.cpp gives the same bits. Knows who was
in before the first stage and after each. Refuses to know how a token is chosen, and who reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.checks import check_ids, check_int
from cutaway.errors import InputError
from cutaway.sampling.chain import Candidates, Stage, StageReport, logprob, reports
from cutaway.sampling.fixed_math import entropy, log_sum_exp
from cutaway.sampling.logprobs import rank
from cutaway.sampling.luck import gumbel
from cutaway.sampling.params import Row

BINS = 32  # of the sketch, one nat each


@dataclass(frozen=True, slots=True)
class Look:
    """Which tokens of a row to follow: the ``top`` likeliest, and those watched by their ids.

    Raises InputError where either is not a whole number of 0 or more.
    """

    top: int
    watch: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", check_int("look: top", self.top, 0))
        watch = check_ids("look: watch", self.watch)
        for token_id in watch:
            check_int("look: a token id of watch", token_id, 0)
        object.__setattr__(self, "watch", watch)


class Candidate(NamedTuple):
    """One token: what the model said of it, and what became of it on the way to the draw.

    logit           the model's own, a float32
    delta           what bias, penalties and processors together made of it: the logit that
                    reached the temperature, or the token's removal, or the end, less the
                    model's own; a float32
    removed_by      index of the stage that removed it; None where it survived
    final_logprob   natural log-probability among the survivors; None where it was removed
    luck            its Gumbel noise at this seed and position; None where the draw is greedy
    rank            under the model's own logits, 1 being the likeliest
    """

    id: int
    logit: float
    delta: float
    removed_by: int | None
    final_logprob: float | None
    luck: float | None
    rank: int


@dataclass(frozen=True, slots=True)
class Observed:
    """A row in figures, in nats. "The token" is the one that the row was turned into.

    maximum, log_sum_exp, entropy   of the model's own logits
    rank, logprob                   of the token, under them; 1 is the likeliest
    final_rank, final_logprob       of the token among the survivors; None where it is not
    final_log_sum_exp               of the survivors' processed logits
    candidates                      the likeliest under the model, best first, ties to the lowest
                                    id; then the token, then the watched, where not yet named
    stages                          the ledger
    sketch                          how many tokens of the row lie [0, 1), [1, 2), … below its
                                    maximum; the last of 32 counts takes the rest
    """

    maximum: float
    log_sum_exp: float
    entropy: float
    rank: int
    logprob: float
    final_rank: int | None
    final_logprob: float | None
    final_log_sum_exp: float
    candidates: tuple[Candidate, ...]
    stages: tuple[StageReport, ...]
    sketch: tuple[int, ...]


def observe(
    look: Look,
    chain: Sequence[Stage],
    passed: Sequence[Candidates],
    token_id: int,
    luck: tuple[int, int] | None,
) -> Observed:
    """Look at a row whose ``passed`` were in before the first stage and after each.

    luck: the draw's seed and position; None where it is greedy.
    """
    row, last = passed[0].logits, passed[-1]
    wide, at = row.astype(np.float64), last.find(token_id)
    return Observed(
        float(row.max()) + 0.0,  # one zero, not two
        log_sum_exp(wide),
        entropy(wide),
        rank(row, token_id),
        logprob(row, token_id),
        None if at is None else rank(last.logits, at),
        None if at is None else logprob(last.logits, at),
        log_sum_exp(last.logits.astype(np.float64)),
        _candidates(look, chain, passed, token_id, luck),
        reports(chain, passed),
        sketch(row),
    )


def _candidates(
    look: Look,
    chain: Sequence[Stage],
    passed: Sequence[Candidates],
    token_id: int,
    luck: tuple[int, int] | None,
) -> tuple[Candidate, ...]:
    row, last = passed[0].logits, passed[-1]
    ids = list(dict.fromkeys([*_best(passed[0], look.top), token_id, *look.watch]))
    noise = gumbel(*luck, np.array(ids, np.int64)).tolist() if luck else [None] * len(ids)
    total = log_sum_exp(last.logits.astype(np.float64))
    found = []
    for own, i in zip(noise, ids, strict=True):
        removed_by, delta = _way(chain, passed, i)
        at = last.find(i)
        final = None if at is None else float(last.logits[at]) - total
        found.append(Candidate(i, float(row[i]), delta, removed_by, final, own, rank(row, i)))
    return tuple(found)


def _best(c: Candidates, top: int) -> list[int]:
    best: list[int] = c.best_first()[:top].tolist()
    return best


def _way(
    chain: Sequence[Stage], passed: Sequence[Candidates], token_id: int
) -> tuple[int | None, float]:
    """By whom a token was removed, and what was added to its logit until then."""
    raw = logit = passed[0].logits[token_id]
    heated = False
    for n, (stage, after) in enumerate(zip(chain, passed[1:], strict=True)):
        at = after.find(token_id)
        if at is None:
            return n, float(logit - raw)
        heated = heated or stage.name == "temperature"
        logit = logit if heated else after.logits[at]
    return None, float(logit - raw)


def sketch(row: Row) -> tuple[int, ...]:
    """How many logits of a row (vocab,) lie in each nat below its maximum."""
    wide = row.astype(np.float64)
    bins: NDArray[np.int64] = np.minimum(wide.max() - wide, BINS - 1).astype(np.int64)
    return tuple(np.bincount(bins, minlength=BINS).tolist())


def refusal(look: Look | None, forced: int | None, vocab: int) -> InputError | None:
    """Why a look, or a token that is given, cannot be: an id is outside the vocabulary."""
    named = [("look: watch", i) for i in look.watch] if look else []
    if forced is not None:
        named.append(("forced", forced))
    for name, token_id in named:
        if not 0 <= token_id < vocab:
            return InputError(f"{name}: token id {token_id} is not between 0 and {vocab - 1}")
    return None
