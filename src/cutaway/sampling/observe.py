"""Observations of a row besides its token: its hash, its likely tokens, the effect of the chain.

Equal hashes mean equal logits, to the last bit. A row's hash is a wrapping 64-bit sum, so that any
order of addition gives the same number; the fingerprint of a run is a hash of its rows' hashes.

This NumPy code is the definition; the native sampler (sample_kernels.inc, sampler.cpp,
sampler_observe.cpp) gives the same bits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import PlainArithmetic
from cutaway.base.checks import check_bool, check_ids, check_int
from cutaway.errors import InputError
from cutaway.sampling.chain import Stage, StageReport, logprob, reports
from cutaway.sampling.definitions import Candidates, LogitsRow
from cutaway.sampling.fixed_math import entropy, log_sum_exp
from cutaway.sampling.luck import gumbel

# -- the hash of a row -----------------------------------------------------------------------------

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xD6E8FEB86659FD93)  # the multiplier of Pelle Evensen's rrmxmx
_HALF = np.uint64(32)
_GOLDEN, _MIX = int(GOLDEN), int(MIX)

START = 0xC07A_0A1D
"""The fingerprint of a run without rows."""


def row_hash(logits: NDArray[np.float32]) -> int:
    """Return a 64-bit hash of logits (vocab,): the sum of a mix of each value's bits and place."""
    x = np.ascontiguousarray(logits).view(np.uint32).astype(np.uint64)
    x += np.arange(1, len(x) + 1, dtype=np.uint64) * GOLDEN
    x ^= x >> _HALF
    x *= MIX
    x ^= x >> _HALF
    return int(x.sum(dtype=np.uint64))


def chain_hash(so_far: int, row: int) -> int:
    """Append one row's hash to the fingerprint of the rows before it."""
    mixed = (so_far ^ row) * _MIX % 2**64
    return (mixed ^ (mixed >> 29)) * _GOLDEN % 2**64


# -- how likely tokens are -------------------------------------------------------------------------

Likeliest = tuple[tuple[int, float], ...]
"""(token id, natural log-probability), best first; ties go to the lowest id."""


class Logprobs(NamedTuple):
    """A draw's likeliest tokens and the drawn token's own log-probability, natural logarithms.

    model, chosen_model   under the model's own logits
    chain, chosen_chain   after the chain: among the survivors, whose probabilities sum to 1. At
                          temperature 0 the chain has no temperature and no filters. None if
                          the token was forced and did not survive
    """

    model: Likeliest
    chain: Likeliest
    chosen_model: float
    chosen_chain: float | None


class ReadRow(NamedTuple):
    """How likely the model's own logits make the next token.

    logprob, rank   of that token, 1 is the likeliest; None if no token was given
    top             the likeliest tokens
    """

    logprob: float | None
    rank: int | None
    top: Likeliest


def likeliest(c: Candidates, count: int) -> Likeliest:
    """Return the ``count`` likeliest candidates, or all if there are fewer."""
    best, wide = c.best_first()[:count], c.logits.astype(np.float64)
    total = log_sum_exp(wide)
    return tuple((int(c.ids[i]), float(wide[i]) - total) for i in best)


def rank(logits: LogitsRow, index: int) -> int:
    """Return the rank of a logit: 1 for the highest; of equal logits, the first ranks higher."""
    logit = logits[index]
    ahead = np.count_nonzero(logits > logit) + np.count_nonzero(logits[:index] == logit)
    return 1 + int(ahead)


def read_row(logits: LogitsRow, next_id: int | None, top: int) -> ReadRow:
    """Read one row of finite logits (vocab,)."""
    best = likeliest(Candidates.all_of(logits), top)
    if next_id is None:
        return ReadRow(None, None, best)
    return ReadRow(logprob(logits, next_id), rank(logits, next_id), best)


# -- what is noted ---------------------------------------------------------------------------------

BINS = 32  # of the histogram, one nat each
MAX_TOP = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """What to record of each step.

    top          the N likeliest tokens under the model, 0 to 1000
    track        these token ids, however unlikely
    stages       the ledger: what each stage of the chain removed
    after_chain  also the ``top`` likeliest among the survivors of the chain
    prompt_top   at every position of the prompt, the N likeliest tokens, 0 to 1000

    Raises InputError naming the field.
    """

    top: int = 0
    track: tuple[int, ...] = ()
    stages: bool = False
    after_chain: bool = False
    prompt_top: int = 0

    def __post_init__(self) -> None:
        for name in ("top", "prompt_top"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 0, MAX_TOP))
        for name in ("stages", "after_chain"):
            check_bool(name, getattr(self, name))
        object.__setattr__(self, "track", check_ids("track", self.track))

    @property
    def any_step(self) -> bool:
        """Whether anything is recorded of steps, not only of the prompt."""
        return bool(self.top or self.track or self.stages or self.after_chain)


class Candidate(NamedTuple):
    """One token: its logit, and the effect of the chain on it.

    logit           the model's own, a float32
    delta           what bias, penalties and processors together added to the logit before the
                    temperature and before the token's removal, a float32
    removed_by      index of the stage that removed it; None if it survived
    final_logprob   natural log-probability among the survivors; None if it was removed
    luck            its Gumbel noise at this seed and position; None if the draw is greedy
    rank            under the model's own logits, 1 being the likeliest
    """

    id: int
    logit: float
    delta: float
    removed_by: int | None
    final_logprob: float | None
    luck: float | None
    rank: int


class Observation(NamedTuple):
    """Figures of a row, in nats. "The token" is the one that was drawn or forced.

    maximum, log_sum_exp, entropy   of the model's own logits
    rank, logprob                   of the token, under them; 1 is the likeliest
    final_rank, final_logprob       of the token among the survivors; None if it was removed
    final_log_sum_exp               of the survivors' processed logits
    candidates                      the likeliest under the model, best first, ties to the lowest
                                    id; then the token and the tracked ones, if not among them
    stages                          the ledger, if it is observed
    logit_histogram                 how many tokens of the row are [0, 1), [1, 2), … below its
                                    maximum; the last of 32 counts includes all that are lower
    after_chain                     the likeliest survivors, if they are observed
    """

    maximum: float
    log_sum_exp: float
    entropy: float
    rank: int
    logprob: float
    final_rank: int | None
    final_logprob: float | None
    final_log_sum_exp: float
    candidates: Sequence[Candidate]
    stages: tuple[StageReport, ...]
    logit_histogram: tuple[int, ...]
    after_chain: Sequence[tuple[int, float]]

    @property
    def neg_log_z(self) -> float | None:
        """-ln Z in nats, where the constraint kept a share of Z of the mass before it.

        It is a difference of two normalisers, and exact even if almost all mass was removed.
        None if the ledger has no constraint.
        """
        before = self.log_sum_exp
        for report in self.stages:
            if report.stage.name == "constraint":
                with PlainArithmetic():
                    return max(before - report.log_sum_exp, 0.0)
            before = report.log_sum_exp
        return None

    def logprobs(self, top: int) -> Logprobs:
        """The ``top`` likeliest tokens before and after the chain, if as many were observed."""
        best, total = self.candidates, self.log_sum_exp
        with PlainArithmetic():
            if isinstance(best, CandidateTable):
                model = best.likeliest(top, total)
            else:
                model = tuple((c.id, c.logit - total) for c in best[:top])
        chain = tuple(self.after_chain[:top])
        return Logprobs(model, chain, self.logprob, self.final_logprob)


Row = TypeVar("Row", bound=tuple[Any, ...])


class NumberTable(Sequence[Row]):
    """Rows of numbers that are kept as one array, and become tuples when they are read.

    The steps of an answer may have a million candidates, and are kept until the answer is
    written. As tuples, each candidate took 300 bytes, and all together took the garbage collector
    a third of a second, during which no thread of the process runs.

    data: the bytes of rows of ``DTYPE``
    """

    DTYPE: ClassVar[np.dtype[np.void]]
    __slots__ = ("_array",)

    def __init__(self, data: bytes) -> None:
        self._array = np.frombuffer(data, self.DTYPE)

    def _read(self, array: NDArray[np.void]) -> Iterable[Row]:
        rows: list[Row] = array.tolist()
        return rows

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, at: int | slice) -> Row | tuple[Row, ...]:
        """Return a row, or several as a tuple."""
        if isinstance(at, slice):
            return tuple(self._read(self._array[at]))
        [row] = self._read(self._array[[at]])
        return row

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._array)

    def __iter__(self) -> Iterator[Row]:
        """Yield each row."""
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        """Return whether the rows are equal to those of a table or a tuple."""
        return self[:] == tuple(other) if isinstance(other, NumberTable | tuple) else NotImplemented

    def __hash__(self) -> int:
        """Return the hash of the rows as a tuple."""
        return hash(self[:])

    def __repr__(self) -> str:
        """Show the rows as a tuple."""
        return repr(self[:])


class CandidateTable(NumberTable[Candidate]):
    """A table of candidates, in which -1 or NaN stands for None."""

    DTYPE = np.dtype(
        [
            ("id", "u4"), ("logit", "f4"), ("delta", "f4"), ("removed_by", "i4"),
            ("final_logprob", "f8"), ("luck", "f8"), ("rank", "u4"),
        ],
        align=True,
    )  # fmt: skip
    __slots__ = ()

    def _read(self, array: NDArray[np.void]) -> Iterable[Candidate]:
        columns = {name: array[name].tolist() for name in Candidate._fields}
        for name in ("removed_by", "final_logprob", "luck"):
            is_none = array[name] < 0 if name == "removed_by" else np.isnan(array[name])
            if is_none.any():
                values = zip(columns[name], is_none.tolist(), strict=True)
                columns[name] = [None if none else value for value, none in values]
        return map(Candidate._make, zip(*columns.values(), strict=True))

    def likeliest(self, count: int, log_sum_exp: float) -> Likeliest:
        """Return the first ``count`` tokens with their log-probabilities."""
        best = self._array[:count]
        logprobs = best["logit"].astype(np.float64) - log_sum_exp
        return tuple(zip(best["id"].tolist(), logprobs.tolist(), strict=True))


class LikelyTable(NumberTable[tuple[int, float]]):
    """A table of the pairs of a ``Likeliest``."""

    DTYPE = np.dtype([("id", "u4"), ("logprob", "f8")], align=True)
    __slots__ = ()


def observe(
    settings: Observe,
    chain: Sequence[Stage],
    states: Sequence[Candidates],
    token_id: int,
    luck: tuple[int, int] | None,
) -> Observation:
    """Observe a row; states: its candidates before the first stage and after each.

    luck: the draw's seed and place; None if it is greedy.
    """
    row, last = states[0].logits, states[-1]
    wide, at = row.astype(np.float64), last.find(token_id)
    return Observation(
        float(row.max()) + 0.0,  # one zero, not two
        log_sum_exp(wide),
        entropy(wide),
        rank(row, token_id),
        logprob(row, token_id),
        None if at is None else rank(last.logits, at),
        None if at is None else logprob(last.logits, at),
        log_sum_exp(last.logits.astype(np.float64)),
        _candidates(settings, chain, states, token_id, luck),
        reports(chain, states) if settings.stages else (),
        logit_histogram(row),
        likeliest(last, settings.top) if settings.after_chain else (),
    )


def _candidates(
    settings: Observe,
    chain: Sequence[Stage],
    states: Sequence[Candidates],
    token_id: int,
    luck: tuple[int, int] | None,
) -> tuple[Candidate, ...]:
    row, last = states[0].logits, states[-1]
    best = states[0].best_first()[: settings.top].tolist()
    ids = list(dict.fromkeys([*best, token_id, *settings.track]))
    noise = gumbel(*luck, np.array(ids, np.int64)).tolist() if luck else [None] * len(ids)
    total = log_sum_exp(last.logits.astype(np.float64))
    candidates = []
    for token_luck, i in zip(noise, ids, strict=True):
        removed_by, delta = _trace_token(chain, states, i)
        at = last.find(i)
        final = None if at is None else float(last.logits[at]) - total
        candidates.append(
            Candidate(i, float(row[i]), delta, removed_by, final, token_luck, rank(row, i))
        )
    return tuple(candidates)


def _trace_token(
    chain: Sequence[Stage], states: Sequence[Candidates], token_id: int
) -> tuple[int | None, float]:
    """Find the stage that removed a token, and what was added to its logit before that stage.

    What is added after the temperature is not counted.
    """
    raw = logit = states[0].logits[token_id]
    heated = False
    for n, (stage, after) in enumerate(zip(chain, states[1:], strict=True)):
        at = after.find(token_id)
        if at is None:
            return n, float(logit - raw)
        heated = heated or stage.name == "temperature"
        logit = logit if heated else after.logits[at]
    return None, float(logit - raw)


def logit_histogram(row: LogitsRow) -> tuple[int, ...]:
    """Return how many logits of a row (vocab,) are in each nat below its maximum, (32,)."""
    wide = row.astype(np.float64)
    bins: NDArray[np.int64] = np.minimum(wide.max() - wide, BINS - 1).astype(np.int64)
    return tuple(np.bincount(bins, minlength=BINS).tolist())


def check_vocabulary(settings: Observe | None, forced: int | None, vocab: int) -> InputError | None:
    """Return the error for a tracked or forced token id outside the vocabulary, if any."""
    named_ids = [("track", i) for i in settings.track] if settings else []
    if forced is not None:
        named_ids.append(("forced", forced))
    for name, token_id in named_ids:
        if not 0 <= token_id < vocab:
            return InputError(name, f": token id {token_id} is not between 0 and {vocab - 1}")
    return None
