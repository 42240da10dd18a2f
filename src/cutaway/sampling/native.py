"""From the rows of a step to its tokens: natively where that was built, else by the twin.

Knows how a chain is told to native/sampler.cpp, once per sequence. chain.py is the
definition of everything that it computes, takes its place where ``cutaway._native`` is
missing, and takes single rows: those with a user's processors, which are Python, and
those whose logits a stage might carry beyond float32.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError
from cutaway.sampling.chain import Draw, History, Stage, StageReport, draw, logprob
from cutaway.sampling.fixed_math import scalar_log
from cutaway.sampling.params import Row, SamplingParams
from cutaway.sampling.row_hash import row_hash

try:
    _native: Any = import_module("cutaway._native")
    _native.sample_rows  # noqa: B018
except (ImportError, AttributeError):  # not built, or by an older source tree
    _native = None

TIER = os.environ.get("CUTAWAY_ISA", "")
"""The instruction set to sample with; empty is the machine's best."""

_DRAWN, _NOT_FINITE = 0, 1
_MANY = 2**31  # beyond any vocabulary


class Sampled(NamedTuple):
    """A drawn token, its log-probability under the model's own logits, and the row's hash."""

    draw: Draw
    logprob: float
    row_hash: int


class Recipe:
    """What one sequence asks of every step, encoded once."""

    __slots__ = ("chain", "encoded", "params")

    def __init__(
        self, chain: tuple[Stage, ...], params: SamplingParams, prompt: Sequence[int]
    ) -> None:
        self.chain, self.params = chain, params
        self.encoded: Any = None  # the twin's
        if _native and all(stage.name != "processors" for stage in chain):
            self.encoded = _native.Chain(params.temperature == 0)
            for stage in chain:
                _encode(self.encoded, stage, prompt)


class Request(NamedTuple):
    """What one row is to be turned into: the token at an absolute position."""

    recipe: Recipe
    history: History
    seed: int
    position: int
    ledger: bool = False


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
    logits: NDArray[np.float32], requests: Sequence[Request], *, tier: str = TIER
) -> list[Sampled]:
    """Run each row's chain and draw its token.

    logits: (rows, vocab), one row per request, left as they are. CutawayError where a row
    is not finite, naming its position; InputError where a processor misbehaves.
    """
    if len(logits) != len(requests):
        raise ValueError(f"{len(logits)} rows of logits for {len(requests)} requests")
    encoded = [i for i, request in enumerate(requests) if request.recipe.encoded]
    drawn: dict[int, Any] = {}
    if encoded:
        rows = logits if len(encoded) == len(requests) else logits[encoded]
        asked = [_row(requests[i]) for i in encoded]
        rows = np.ascontiguousarray(rows, np.float32)
        drawn = dict(zip(encoded, _native.sample_rows(rows, asked, tier), strict=True))
    return [
        _finish(request, row, drawn.get(i))
        for i, (request, row) in enumerate(zip(requests, logits, strict=True))
    ]


def _row(request: Request) -> tuple[Any, int, int, bool, Sequence[int] | None]:
    encoded = request.recipe.encoded
    output = request.history.output_token_ids if encoded.wants_output else None
    return encoded, request.seed, request.position, request.ledger, output


def _finish(request: Request, row: Row, native: Any) -> Sampled:
    if native is None:
        return _by_twin(request, row)
    status, token_id, survivors, log_p, bits, reports = native
    if status == _NOT_FINITE:
        raise _not_finite(request)
    if status != _DRAWN:
        return _by_twin(request, row)
    ledger = tuple(
        StageReport(stage, *report)
        for stage, report in zip(request.recipe.chain, reports, strict=False)
    )  # without a ledger there are no reports
    return Sampled(Draw(token_id, survivors, ledger), log_p, bits)


def _by_twin(request: Request, row: Row) -> Sampled:
    if not np.isfinite(row).all():
        raise _not_finite(request)
    recipe = request.recipe
    drawn = draw(
        recipe.chain, recipe.params, row, request.history,
        seed=request.seed, position=request.position, ledger=request.ledger,
    )  # fmt: skip
    return Sampled(drawn, logprob(row, drawn.token_id), row_hash(row))


def _not_finite(request: Request) -> CutawayError:
    return CutawayError(f"the model's logits at position {request.position} are not finite")
