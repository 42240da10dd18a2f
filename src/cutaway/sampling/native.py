"""Sample the rows of a step: natively where the extension was built, else by the NumPy twin.

A chain is passed to native/sampler.cpp once per sequence; an error belongs to its row. The twin,
chain.py and observe.py, defines all results. It takes over where ``cutaway.base._native`` is
missing, and for single rows: those with a user's processors, which are Python, and those whose
logits a stage might carry beyond float32.

It also reads rows without a draw, to say how likely the model makes known tokens.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.errors import CutawayError, InputError
from cutaway.sampling.chain import Stage, StageReport, choose, logprob, run_stages
from cutaway.sampling.definitions import (
    Candidates,
    Context,
    History,
    LogitsRow,
    NothingAllowedError,
)
from cutaway.sampling.fixed_math import entropy, ordered_sum
from cutaway.sampling.luck import place_of
from cutaway.sampling.observe import (
    CandidateTable,
    LikelyTable,
    Observation,
    Observe,
    ReadRow,
    check_vocabulary,
    observe,
    read_row,
    row_hash,
)
from cutaway.sampling.params import SamplingParams
from cutaway.sampling.stages import STAGES

if TYPE_CHECKING:
    from cutaway.base._native import Pool


try:
    NATIVE: Any = import_module("cutaway.base._native")
except ImportError:  # not built: the twin does everything; loading a model reports other reasons
    NATIVE = None
# Read here, so that a build of an older source tree fails at once instead of sampling slowly.
_sample_rows: Any = NATIVE and NATIVE.sample_rows

TWIN = "numpy"
"""The tier at which the NumPy twin samples every row, as the reference backend does."""

_STATUS_DRAWN, _NOT_FINITE, _NOTHING_ALLOWED = 0, 1, 3
_MAX_TOKEN_ID = 2**31  # beyond any vocabulary


class Sampled(NamedTuple):
    """The token that was drawn from a row, and its figures.

    sampled_id   the token that the sampler draws; ``token_id`` differs only if it was forced
    survivors    how many tokens the chain left to draw from
    logprob      the token's natural log-probability under the model's own logits
    logits_hash  the hash of the row: equal hashes mean equal bits
    observed     the row's figures, if the draw asks for them
    unconstrained_id  the token that the same luck draws without the mask, if the draw asks for the
                 ledger; None without a mask, or with a processor after it
    """

    token_id: int
    sampled_id: int
    survivors: int
    logprob: float
    logits_hash: int
    observed: Observation | None = None
    unconstrained_id: int | None = None


class CompiledChain:
    """The chain of one sequence, compiled once for all of its steps."""

    __slots__ = ("chain", "native", "params")

    def __init__(
        self, chain: tuple[Stage, ...], params: SamplingParams, prompt: Sequence[int]
    ) -> None:
        self.chain, self.params = chain, params
        self.native: Any = None  # None if the twin has to compute it
        if NATIVE and all(STAGES[stage.name].native for stage in chain):
            self.native = NATIVE.Chain(params.temperature == 0)
            for stage in chain:
                _add(self.native, stage)
            if any(STAGES[stage.name].history for stage in chain):
                self.native.set_prompt(prompt)


class RowDraw(NamedTuple):
    """How to draw the token at an absolute position from a row.

    redraw   how often this position was drawn before; each redraw has its own luck
    observe  what to record besides the token; None: nothing
    forced   the token, if it is forced; the chain may have removed it
    mask     a bit per token id, uint32 (ceil(vocab / 32),), set where the token is allowed; for
             chains with the stage "constraint". None allows all
    """

    compiled: CompiledChain
    history: History
    seed: int
    position: int
    observe: Observe | None = None
    forced: int | None = None
    mask: NDArray[np.uint32] | None = None
    redraw: int = 0

    @property
    def place(self) -> int:
        """The position and the redraw as one number; luck is a function of it."""
        return place_of(self.position, self.redraw)

    @property
    def asks_unconstrained(self) -> bool:
        """Whether to draw the row without the mask, too."""
        return self.mask is not None and self.observe is not None and self.observe.stages

    def without_mask(self) -> "RowDraw":
        """Return the draw with the same luck and chain, without mask and without records."""
        return self._replace(observe=None, forced=None, mask=None)


def _add(native: Any, stage: Stage) -> None:
    numbers, rule = STAGES[stage.name].native, stage.rule
    assert numbers is not None
    bias = {i: by for i, by in rule.get("bias", {}).items() if i < _MAX_TOKEN_ID}
    native.add(stage.name, numbers(rule), bias, rule.get("breakers", ()))


def sample(
    logits: NDArray[np.float32],
    draws: Sequence[RowDraw],
    *,
    tier: str = "",
    pool: "Pool | None" = None,
) -> list[Sampled | Exception]:
    """Run each row's chain and draw its token.

    logits: (rows, vocab), one row per draw, not changed. tier: the instruction set, as in
    ``Backend.tier``; "" is the machine's best, "numpy" the twin. pool: idle threads to share the
    rows. Neither changes the result.

    The result has a row's error in place of its token, which changes no other row: CutawayError
    if the logits are not finite; InputError if a mask leaves no token, a processor returned no row
    of logits, or an id to track or to force is outside the vocabulary; and what a processor
    raised.
    """
    if len(logits) != len(draws):
        raise ValueError(f"{len(logits)} rows of logits for {len(draws)} draws")
    vocab = logits.shape[1]
    for draw in draws:
        if draw.mask is not None:
            _check_mask(draw, draw.mask, vocab)
    native = [
        i
        for i, draw in enumerate(draws)
        if tier != TWIN
        and draw.compiled.native
        and not check_vocabulary(draw.observe, draw.forced, vocab)
    ]
    again = [i for i in native if draws[i].mask is not None and draws[i].asks_unconstrained]
    sampled: dict[int, Any] = {}
    unconstrained: dict[int, Any] = {}
    if native:
        rows = logits if len(native) == len(draws) and not again else logits[native + again]
        native_draws = [draws[i] for i in native] + [draws[i].without_mask() for i in again]
        rows = np.ascontiguousarray(rows, np.float32)
        native_rows = _sample_rows(rows, native_draws, tier, pool)
        sampled = dict(zip(native, native_rows, strict=False))
        unconstrained = dict(zip(again, native_rows[len(native) :], strict=True))
    return [
        _finish(draw, row, sampled.get(i), unconstrained.get(i))
        for i, (draw, row) in enumerate(zip(draws, logits, strict=True))
    ]


def _check_mask(draw: RowDraw, mask: NDArray[np.uint32], vocab: int) -> None:
    if mask.dtype != np.uint32 or mask.shape != (-(-vocab // 32),):
        raise ValueError(f"a mask of {vocab} tokens is uint32 ({-(-vocab // 32)},)")
    if all(stage.name != "constraint" for stage in draw.compiled.chain):
        raise ValueError("a mask needs a chain with the stage 'constraint'")


def _finish(draw: RowDraw, row: LogitsRow, native: Any, free: Any) -> Sampled | Exception:
    """native, free: the native sampler's results for the row, and for the row without its mask."""
    if native is None:
        return _sample_by_twin(draw, row)
    status, token_id, sampled_id, survivors, log_p, logits_hash, observed = native
    if status == _NOT_FINITE:
        return _not_finite(f"at position {draw.position}")
    if status == _NOTHING_ALLOWED:
        return _nothing_allowed(draw)
    if status != _STATUS_DRAWN:
        return _sample_by_twin(draw, row)
    unconstrained = None
    if free is not None:
        without = _finish(draw.without_mask(), row, free, None)
        assert isinstance(without, Sampled)  # since the row is finite
        unconstrained = without.token_id
    observation = observed and _observation(draw.compiled.chain, *observed)
    return Sampled(token_id, sampled_id, survivors, log_p, logits_hash, observation, unconstrained)


def _observation(chain: tuple[Stage, ...], *figures: Any) -> Observation:
    *numbers, candidates, reports, histogram, after_chain = figures
    reported = zip(chain, reports, strict=False)  # none without the ledger
    stages = tuple(StageReport(stage, *report) for stage, report in reported)
    rest = CandidateTable(candidates), stages, histogram, LikelyTable(after_chain)
    fields = [*numbers, *rest]
    return Observation(*fields)


@plainly
def _sample_by_twin(draw: RowDraw, row: LogitsRow) -> Sampled | Exception:
    if not np.isfinite(row).all():
        return _not_finite(f"at position {draw.position}")
    if (vocabulary_error := check_vocabulary(draw.observe, draw.forced, len(row))) is not None:
        return vocabulary_error
    chain, params = draw.compiled.chain, draw.compiled.params
    context = Context(draw.history, draw.mask, draw.seed, draw.place)
    try:
        states = run_stages(chain, row, context)
        unconstrained = (
            _draw_unconstrained(draw, states, context) if draw.asks_unconstrained else None
        )
    except NothingAllowedError:
        return _nothing_allowed(draw)
    except Exception as error:  # whatever a user's processor may raise
        return error
    last = states[-1]
    sampled_id = choose(last, params, draw.seed, draw.place)
    token_id = sampled_id if draw.forced is None else draw.forced
    luck = (draw.seed, draw.place) if params.temperature > 0 else None
    return Sampled(
        token_id,
        sampled_id,
        len(last.ids),
        logprob(row, token_id),
        row_hash(row),
        observe(draw.observe, chain, states, token_id, luck) if draw.observe else None,
        unconstrained,
    )


def _draw_unconstrained(
    draw: RowDraw, states: Sequence[Candidates], context: Context
) -> int | None:
    """Draw from the candidates before the mask; None where a processor would see them again."""
    chain = draw.compiled.chain
    at = next(i for i, stage in enumerate(chain) if stage.name == "constraint")
    after = chain[at + 1 :]
    if any(stage.name == "processors" for stage in after):
        return None
    free = states[at]
    for stage in after:
        free = STAGES[stage.name].apply(free, stage.rule, context)
    return choose(free, draw.compiled.params, draw.seed, draw.place)


def _not_finite(place: str) -> CutawayError:
    return CutawayError(f"the model's logits {place} are not finite")


def _nothing_allowed(draw: RowDraw) -> InputError:
    return InputError(
        f"the constraint allows no token at position {draw.position}: loosen it, or what else "
        "forbids tokens there (allowed_token_ids, bad_words, min_tokens, a chain's earlier stages)"
    )


# -- what chains leave -----------------------------------------------------------------------------

_read_distributions: Any = NATIVE and NATIVE.read_distributions


class Distributions(NamedTuple):
    """The distributions that chains leave of rows of logits.

    entropies  in nats, (rows,)
    chances    each token's probability, (rows, vocab), 0 if a stage removed it; None if not read
    """

    entropies: NDArray[np.float64]
    chances: NDArray[np.float32] | None


def read_distributions(
    logits: NDArray[np.float32],
    draws: Sequence[RowDraw],
    *,
    with_chances: bool,
    tier: str = "",
    pool: "Pool | None" = None,
) -> Distributions:
    """Return the distributions from which ``sample`` drew these rows, without an error.

    logits: (rows, vocab), not changed. tier, pool: as for ``sample``.
    """
    logits = np.ascontiguousarray(logits, np.float32)
    read = Distributions(np.zeros(len(draws)), np.zeros_like(logits) if with_chances else None)
    statuses = [-1] * len(draws)
    if tier != TWIN and all(draw.compiled.native for draw in draws):  # so there is a build
        statuses = _read_distributions(logits, list(draws), *read, tier, pool)
    for n, status in enumerate(statuses):
        if status != _STATUS_DRAWN:
            _read_distribution_by_twin(draws[n], logits[n], n, read)
    return read


@plainly
def _read_distribution_by_twin(draw: RowDraw, row: LogitsRow, n: int, read: Distributions) -> None:
    context = Context(draw.history, draw.mask, draw.seed, draw.place)
    survivors = run_stages(draw.compiled.chain, row, context)[-1]
    read.entropies[n] = entropy(survivors.logits.astype(np.float64))
    if read.chances is not None:
        weights = survivors.weights()
        read.chances[n, survivors.ids] = weights / ordered_sum(weights)


# -- rows that are read ----------------------------------------------------------------------------

_read_rows: Any = NATIVE and NATIVE.read_rows


def read_rows(
    logits: NDArray[np.float32],
    next_ids: Sequence[int | None],
    top: int,
    *,
    tier: str = "",
    pool: "Pool | None" = None,
) -> list[ReadRow | Exception]:
    """Return the probability and rank of a given next token in each row, and the likeliest tokens.

    logits: (rows, vocab), not changed. next_ids: one per row, None if no token is given. top: how
    many of the likeliest tokens to return, at most the vocabulary. tier, pool: as for ``sample``.

    A row that is not finite gives a CutawayError in its place. Raises InputError for an id outside
    the vocabulary.
    """
    rows, vocab = logits.shape
    if rows != len(next_ids):
        raise ValueError(f"{rows} rows of logits for {len(next_ids)} next ids")
    for next_id in next_ids:
        if next_id is not None and not 0 <= next_id < vocab:
            raise InputError("next_ids", f": token id {next_id} is not between 0 and {vocab - 1}")
    if _read_rows is None or tier == TWIN:
        return [
            _read_by_twin(n, row, next_id, top)
            for n, (row, next_id) in enumerate(zip(logits, next_ids, strict=True))
        ]
    ids = np.array([-1 if next_id is None else next_id for next_id in next_ids], np.int32)
    read = _read_rows(
        np.ascontiguousarray(logits, np.float32), ids, max(0, min(top, vocab)), tier, pool
    )
    return [
        _finish_read(n, next_id, native)
        for n, (next_id, native) in enumerate(zip(next_ids, read, strict=True))
    ]


def _finish_read(n: int, next_id: int | None, native: Any) -> ReadRow | Exception:
    finite, log_p, rank, best = native
    if not finite:
        return _not_finite(f"in row {n}")
    return ReadRow(None, None, best) if next_id is None else ReadRow(log_p, rank, best)


def _read_by_twin(n: int, row: LogitsRow, next_id: int | None, top: int) -> ReadRow | Exception:
    if not np.isfinite(row).all():
        return _not_finite(f"in row {n}")
    return read_row(row, next_id, max(0, top))
