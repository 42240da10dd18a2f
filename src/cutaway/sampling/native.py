"""From the rows of a step to its tokens: natively where that was built, else by the twin.

Knows how a chain is told to native/sampler.cpp, once per sequence, and that an error
belongs to its row. chain.py, logprobs.py and look.py are the definition of everything that it
computes, take its place where ``cutaway._native`` is missing, and take single rows: those
with a user's processors, which are Python, and those whose logits a stage might carry
beyond float32.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError
from cutaway.sampling.chain import (
    Draw,
    History,
    Stage,
    StageReport,
    choose,
    logprob,
    reports,
    states,
)
from cutaway.sampling.fixed_math import scalar_log
from cutaway.sampling.logprobs import Logprobs, logprobs
from cutaway.sampling.look import Candidate, Look, Observed, observe, refusal
from cutaway.sampling.params import Row, SamplingParams
from cutaway.sampling.row_hash import row_hash

if TYPE_CHECKING:
    from cutaway._native import Pool

try:
    NATIVE: Any = import_module("cutaway._native")
except ModuleNotFoundError:  # not built: the twin does everything
    NATIVE = None
# Taken here, so that a build of an older source tree fails at once instead of sampling slowly.
_sample_rows: Any = NATIVE and NATIVE.sample_rows

TIER = os.environ.get("CUTAWAY_ISA", "")
"""The instruction set to sample with; empty is the machine's best."""

_DRAWN, _NOT_FINITE = 0, 1
_MANY = 2**31  # beyond any vocabulary


class Sampled(NamedTuple):
    """A row's token, its log-probability under the model's own logits, and the row's hash.

    own        what the sampler draws here; the token itself, but where that was given
    logprobs   where the request asked for any
    observed   where the request asked to look
    """

    draw: Draw
    logprob: float
    row_hash: int
    own: int
    logprobs: Logprobs | None = None
    observed: Observed | None = None


class Recipe:
    """What one sequence asks of every step, encoded once."""

    __slots__ = ("chain", "encoded", "params")

    def __init__(
        self, chain: tuple[Stage, ...], params: SamplingParams, prompt: Sequence[int]
    ) -> None:
        self.chain, self.params = chain, params
        self.encoded: Any = None  # the twin's
        if NATIVE and all(stage.name != "processors" for stage in chain):
            self.encoded = NATIVE.Chain(params.temperature == 0)
            for stage in chain:
                _encode(self.encoded, stage, prompt)


class Request(NamedTuple):
    """What one row is to be turned into: the token at an absolute position.

    top      how many of the likeliest tokens to tell; more than there are tells all, 0 or less none
    look     what else to tell
    forced   the token that stands here, where it is given; the chain need not have kept it
    """

    recipe: Recipe
    history: History
    seed: int
    position: int
    ledger: bool = False
    top: int = 0
    look: Look | None = None
    forced: int | None = None


def _encode(encoded: Any, stage: Stage, prompt: Sequence[int]) -> None:
    rule = stage.rule
    match stage.name:
        case "logit_bias":
            encoded.logit_bias({i: by for i, by in rule["bias"].items() if i < _MANY})
        case "penalties":
            encoded.penalties(rule["repetition"], rule["presence"], rule["frequency"], prompt)
        case "temperature":
            encoded.temperature(rule["temperature"])
        case "top_k":
            encoded.top_k(min(rule["k"], _MANY))
        case "top_p":
            encoded.top_p(rule["p"])
        case "min_p":
            encoded.min_p(scalar_log(rule["p"]))
        case name:
            raise ValueError(f"the native sampler has no stage {name!r}")


def sample(
    logits: NDArray[np.float32],
    requests: Sequence[Request],
    *,
    tier: str = TIER,
    pool: "Pool | None" = None,
) -> list[Sampled | Exception]:
    """Run each row's chain and draw its token.

    logits: (rows, vocab), one row per request, left as they are. pool: threads to share the
    rows, which must have nothing else to do; the result is the same without.

    In the place of a row that failed stands its error, and the others do not notice: a
    CutawayError where the logits are not finite, InputError where a processor returned no
    row of logits or an id to look at or to force is outside the vocabulary, and whatever a
    processor raised.
    """
    if len(logits) != len(requests):
        raise ValueError(f"{len(logits)} rows of logits for {len(requests)} requests")
    vocab = logits.shape[1]
    encoded = [
        i
        for i, r in enumerate(requests)
        if r.recipe.encoded and not refusal(r.look, r.forced, vocab)
    ]
    drawn: dict[int, Any] = {}
    if encoded:
        rows = logits if len(encoded) == len(requests) else logits[encoded]
        asked = [encoded_row(requests[i]) for i in encoded]
        rows = np.ascontiguousarray(rows, np.float32)
        drawn = dict(zip(encoded, _sample_rows(rows, asked, tier, pool), strict=True))
    return [
        _finish(request, row, drawn.get(i))
        for i, (request, row) in enumerate(zip(requests, logits, strict=True))
    ]


def told(top: int) -> int:
    """How many of the likeliest to tell, as the native sampler takes it."""
    return max(0, min(top, _MANY))


def encoded_row(r: Request) -> tuple[Any, ...]:
    """A request as the native sampler takes it."""
    encoded = r.recipe.encoded
    output = r.history.output_token_ids if encoded.wants_output else None
    look = r.look and (told(r.look.top), r.look.watch)
    return encoded, r.seed, r.position, r.ledger, told(r.top), output, look, r.forced


def _finish(request: Request, row: Row, native: Any) -> Sampled | Exception:
    if native is None:
        return _by_twin(request, row)
    status, token_id, own, survivors, log_p, bits, stages, likely, observed = native
    if status == _NOT_FINITE:
        return _not_finite(request)
    if status != _DRAWN:
        return _by_twin(request, row)
    ledger = tuple(
        StageReport(stage, *report)
        for stage, report in zip(request.recipe.chain, stages, strict=False)
    )  # there are no reports where nobody looks
    return Sampled(
        Draw(token_id, survivors, ledger if request.ledger else ()),
        log_p,
        bits,
        own,
        likely and Logprobs(*likely),
        observed and _observed(ledger, *observed),
    )


def _observed(ledger: tuple[StageReport, ...], *figures: Any) -> Observed:
    *numbers, candidates, sketch = figures
    fields = [*numbers, tuple(map(Candidate._make, candidates)), ledger, sketch]
    return Observed(*fields)


def _by_twin(r: Request, row: Row) -> Sampled | Exception:
    if not np.isfinite(row).all():
        return _not_finite(r)
    if (refused := refusal(r.look, r.forced, len(row))) is not None:
        return refused
    chain, params = r.recipe.chain, r.recipe.params
    try:
        passed = states(chain, row, r.history)
    except Exception as error:  # whatever a user's processor may raise
        return error
    last = passed[-1]
    own = choose(last, params, r.seed, r.position)
    token_id = own if r.forced is None else r.forced
    luck = (r.seed, r.position) if params.temperature > 0 else None
    return Sampled(
        Draw(token_id, len(last.ids), reports(chain, passed) if r.ledger else ()),
        logprob(row, token_id),
        row_hash(row),
        own,
        logprobs(row, last, token_id, r.top) if r.top > 0 else None,
        observe(r.look, chain, passed, token_id, luck) if r.look else None,
    )


def _not_finite(request: Request) -> CutawayError:
    return CutawayError(f"the model's logits at position {request.position} are not finite")
