"""Read given tokens with the model: three log-probabilities, rank, surviving mass of each token.

The model runs once, at the rate of a prompt. Settings are then applied to its rows of logits, so
other settings need no other run. A fit measures how well readings explain an engine's figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import exp, fsum, inf, sqrt
from statistics import median
from typing import Any, Literal

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.errors import InputError
from cutaway.features.evidence.oracle.answers import EngineAnswer
from cutaway.sampling import (
    STAGES,
    CompiledChain,
    History,
    Observation,
    Observe,
    RowDraw,
    SamplingParams,
    build_chain,
    sample,
)

Kind = Literal["raw", "tempered", "final"]
KINDS: tuple[Kind, ...] = ("raw", "tempered", "final")
"""The kinds of log-probabilities: of the model alone, after penalties and temperature, after the
whole chain."""

_SAMPLER = tuple(SamplingParams.__dataclass_fields__)
_FILTERS = tuple(name for name, stage in STAGES.items() if stage.filter)


@dataclass(frozen=True, slots=True)
class TokenReading:
    """A token under the model, in natural logarithms.

    rank      the rank under the model's own logits; 1 is the likeliest token
    raw       the log-probability under the model's own logits
    tempered  the log-probability after penalties and temperature, over the whole vocabulary
    final     the log-probability after the whole chain; None where the chain removes the token
    mass      the share of probability that truncation left; 1.0 without truncation
    """

    token_id: int
    rank: int
    raw: float
    tempered: float
    final: float | None
    mass: float

    def logprob(self, kind: Kind) -> float | None:
        """Return the log-probability of a kind; None where the token was removed."""
        logprob: float | None = getattr(self, kind)
        return logprob

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that can be written as JSON."""
        return asdict(self)


def rows_of(llm: LLM, answer: EngineAnswer, first: int = 0, count: int | None = None) -> Logits:
    """Compute the logits of ``count`` tokens from number ``first`` on: float32 (count, vocab)."""
    end = len(answer.token_ids) if count is None else min(first + count, len(answer.token_ids))
    before = len(answer.prompt_token_ids)
    if not before:
        raise InputError("an answer has no prompt: give at least its begin token")
    if before + end > llm.room + 1:
        raise InputError(
            f"an answer has {before + end} tokens with its prompt, and the context {llm.room}: "
            "give the model more context"
        )
    ids = [*answer.prompt_token_ids, *answer.token_ids[: end - 1]]
    return llm.logits(ids, before - 1 + first, prompt_tokens=before)


def read(
    rows: Logits, answer: EngineAnswer, params: SamplingParams, first: int = 0
) -> list[TokenReading]:
    """Read the answer's tokens from number ``first`` on. rows: their logits, (n, vocab)."""
    whole = _observe(rows, answer, params, first)
    filtered = any(report.stage.name in _FILTERS for o in whole for report in o.stages)
    cold = _observe(rows, answer, _without_filters(params), first) if filtered else whole
    return [
        _reading(token_id, a, b)
        for token_id, a, b in zip(answer.token_ids[first:], whole, cold, strict=False)
    ]


def check_settings(llm: LLM, settings: Mapping[str, Any]) -> SamplingParams:
    """Check the settings; temperature and top_p default to 1. InputError names a wrong setting."""
    for name in settings:
        if name not in _SAMPLER:
            raise InputError(name, f" is no setting of the sampler: {', '.join(_SAMPLER)} are")
    order = SamplingParams(**{k: v for k, v in settings.items() if k in ("preset", "chain")}).order
    neutral = {name: value for name, value in _NEUTRAL.items() if name in order}
    return llm.parse_options({"seed": 0, **neutral, **settings}).sampling  # no luck is looked at


_NEUTRAL = {"temperature": 1.0, "top_p": 1.0}
"""Settings that the other engine was not given are neutral, not this sampler's defaults."""


def _observe(
    rows: Logits, answer: EngineAnswer, params: SamplingParams, first: int
) -> list[Observation]:
    compiled = CompiledChain(build_chain(params), params, answer.prompt_token_ids)
    ledger, start = Observe(stages=True), len(answer.prompt_token_ids)
    draws = [
        RowDraw(
            compiled, History(answer.prompt_token_ids, answer.token_ids[:at]), 0, start + at,
            ledger, answer.token_ids[at],
        )
        for at in range(first, first + len(rows))
    ]  # fmt: skip
    observations = []
    for sampled in sample(rows, draws):
        if isinstance(sampled, Exception):
            raise sampled
        assert sampled.observed is not None
        observations.append(sampled.observed)
    return observations


def _without_filters(params: SamplingParams) -> SamplingParams:
    chain = tuple(name for name in params.order if name not in _FILTERS)
    default = SamplingParams()
    off = {n: getattr(default, n) for stage in _FILTERS for n in STAGES[stage].params}
    return replace(params, preset="cutaway", chain=chain, **off)


def _reading(token_id: int, whole: Observation, cold: Observation) -> TokenReading:
    mass = 1.0
    for report in whole.stages:
        if report.stage.name in _FILTERS:
            mass *= 1 - report.removed_mass
    tempered = -inf if cold.final_logprob is None else cold.final_logprob
    return TokenReading(token_id, whole.rank, whole.logprob, tempered, whole.final_logprob, mass)


def importance_error(delta: float) -> float:
    """|exp(delta) - 1|: how far an importance ratio that ought to be 1 is from 1."""
    return abs(exp(min(delta, 700.0)) - 1)


# -- the fit: |delta| of each kind of log-probability ----------------------------------------------


MAX_DELTA, REMOVED_DELTA = 10.0, 1.0
"""The cap of |delta| in nats, and the |delta| that is counted for a token that the chain removes:
rounding alone may remove a token at the edge of the survivors."""


@dataclass(frozen=True, slots=True)
class Distance:
    """The engine's log-probabilities minus the model's of one kind, over all tokens, in nats.

    mean_abs, median_abs, max_abs  the mean, median and maximum of |delta|
    importance_error               mean |exp(delta) - 1|: the error of importance ratios. Each ratio
                                   ought to be 1 at the first step of reinforcement learning
    removed                        how many tokens have no log-probability of this kind; the other
                                   figures leave these tokens out
    """

    mean_abs: float
    median_abs: float
    max_abs: float
    importance_error: float
    removed: int

    @classmethod
    def from_deltas(cls, deltas: Sequence[float | None]) -> "Distance":
        """Sum up deltas; None is a removed token. All figures are inf if no token is left."""
        deltas_left = [d for d in deltas if d is not None]
        if not deltas_left:
            return cls(inf, inf, inf, inf, len(deltas))
        sizes = [abs(d) for d in deltas_left]
        ratio = fsum(map(importance_error, deltas_left)) / len(deltas_left)
        mean, removed = fsum(sizes) / len(sizes), len(deltas) - len(deltas_left)
        return cls(mean, median(sizes), max(sizes), ratio, removed)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that can be written as JSON; None stands for infinity."""
        return {k: None if v == inf else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Fit:
    """The engine's answers with this model's readings: for each answer, one reading per token."""

    answers: tuple[EngineAnswer, ...]
    readings: tuple[tuple[TokenReading, ...], ...]

    def deltas(self, kind: Kind) -> list[list[float | None]]:
        """The engine's minus the model's log-probabilities, by answer; None for a removed token."""
        return [
            [
                _delta(logprob, reading.logprob(kind))
                for logprob, reading in pairs
                if logprob is not None
            ]
            for pairs in self._pairs()
        ]

    def _pairs(self) -> Iterator[list[tuple[float | None, TokenReading]]]:
        for answer, readings in zip(self.answers, self.readings, strict=True):
            yield [*zip(answer.logprobs, readings, strict=True)]

    def sizes(self, kind: Kind) -> list[float]:
        """|delta| of every token with a log-probability of the engine; at most ``MAX_DELTA``."""
        flat = (delta for answer in self.deltas(kind) for delta in answer)
        return [REMOVED_DELTA if d is None else min(abs(d), MAX_DELTA) for d in flat]

    def cost(self, kind: Kind) -> float:
        """The mean of ``sizes``, by which hypotheses are compared."""
        sizes = self.sizes(kind)
        return fsum(sizes) / len(sizes)

    @cached_property
    def costs(self) -> dict[Kind, float]:
        """The cost of each kind."""
        return {kind: self.cost(kind) for kind in KINDS}

    @cached_property
    def kind(self) -> Kind:
        """The kind that explains the engine's figures best; the first of several equal ones."""
        return min(KINDS, key=self.costs.__getitem__)

    @property
    def best(self) -> float:
        """The cost of the best kind."""
        return self.costs[self.kind]

    def distance(self, kind: Kind) -> Distance:
        """Return the distance over all tokens."""
        return Distance.from_deltas([delta for answer in self.deltas(kind) for delta in answer])

    @property
    def same_kinds(self) -> list[Kind]:
        """The kinds that fit about as well as the best one, such as all kinds at temperature 1."""
        best_sizes = self.sizes(self.kind)
        return [k for k in KINDS if k == self.kind or not clearly_less(best_sizes, self.sizes(k))]


def _delta(engine_logprob: float, model_logprob: float | None) -> float | None:
    return (
        None if model_logprob is None or model_logprob == -inf else engine_logprob - model_logprob
    )


def clearly_less(new: Sequence[float], old: Sequence[float]) -> bool:
    """Whether sizes fell by more than chance explains (z above 4), and by at least a third."""
    gains = [b - a for a, b in zip(new, old, strict=True)]
    n, mean = len(gains), fsum(gains) / len(gains)
    if n < 2 or fsum(new) > fsum(old) * 2 / 3:
        return False
    spread = sqrt(fsum((g - mean) ** 2 for g in gains) / (n - 1) / n)
    return mean > 4 * spread
