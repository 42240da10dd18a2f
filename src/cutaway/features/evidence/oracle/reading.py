"""Reading given tokens with the model: of each, three log-probabilities, rank, surviving mass.

The model is run once, at the rate of a prompt; settings are then applied to its rows of logits, so
that other settings cost no run.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import exp, inf
from typing import Any, Literal

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.errors import InputError
from cutaway.features.evidence.oracle.told import Told
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
"""What an engine may tell: the model's own, after the temperature, after the whole chain."""

_SAMPLER = tuple(SamplingParams.__dataclass_fields__)
_FILTERS = tuple(name for name, stage in STAGES.items() if stage.filter)


@dataclass(frozen=True, slots=True)
class TokenReading:
    """A token under the model, natural logarithms.

    raw       under its own logits; rank: under them, 1 is the likeliest
    tempered  after penalties and temperature, over the whole vocabulary
    final     after the whole chain; None where the chain removes the token
    mass      the share of probability that truncation left, where it removes
    """

    token_id: int
    rank: int
    raw: float
    tempered: float
    final: float | None
    mass: float

    def logprob(self, kind: Kind) -> float | None:
        """Of one kind; None where the token was removed."""
        found: float | None = getattr(self, kind)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def rows_of(llm: LLM, told: Told, first: int = 0, count: int | None = None) -> Logits:
    """Float32 (count, vocab): what each token was drawn from, from number ``first`` on."""
    end = len(told.token_ids) if count is None else min(first + count, len(told.token_ids))
    before = len(told.prompt_token_ids)
    if not before:
        raise InputError("an answer has no prompt: give at least its begin token")
    if before + end > llm.room + 1:
        raise InputError(
            f"an answer has {before + end} tokens with its prompt, and the context {llm.room}: "
            "give the model more context"
        )
    ids = [*told.prompt_token_ids, *told.token_ids[: end - 1]]
    return llm.logits(ids, before - 1 + first)


def read(rows: Logits, told: Told, params: SamplingParams, first: int = 0) -> list[TokenReading]:
    """What rows, (n, vocab), say of the answer's tokens from number ``first`` on."""
    whole = _observed(rows, told, params, first)
    filtered = any(report.stage.name in _FILTERS for o in whole for report in o.stages)
    cold = _observed(rows, told, _without_filters(params), first) if filtered else whole
    return [
        _reading(token_id, a, b)
        for token_id, a, b in zip(told.token_ids[first:], whole, cold, strict=False)
    ]


def check_settings(llm: LLM, settings: Mapping[str, Any]) -> SamplingParams:
    """The settings, temperature and top_p 1 unless given; InputError names one that is wrong."""
    for name in settings:
        if name not in _SAMPLER:
            raise InputError(f"{name} is no setting of the sampler: {', '.join(_SAMPLER)} are")
    order = SamplingParams(**{k: v for k, v in settings.items() if k in ("preset", "chain")}).order
    neutral = {name: value for name, value in _NEUTRAL.items() if name in order}
    return llm.parse_options({"seed": 0, **neutral, **settings}).sampling  # no luck is looked at


_NEUTRAL = {"temperature": 1.0, "top_p": 1.0}
"""Where the other engine was told none, none is applied: not this sampler's own defaults."""


def _observed(rows: Logits, told: Told, params: SamplingParams, first: int) -> list[Observation]:
    compiled = CompiledChain(build_chain(params), params, told.prompt_token_ids)
    ledger, start = Observe(stages=True), len(told.prompt_token_ids)
    draws = [
        RowDraw(
            compiled, History(told.prompt_token_ids, told.token_ids[:at]), 0, start + at, ledger,
            told.token_ids[at],
        )
        for at in range(first, first + len(rows))
    ]  # fmt: skip
    found = []
    for one in sample(rows, draws):
        if isinstance(one, Exception):
            raise one
        assert one.observed is not None
        found.append(one.observed)
    return found


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
    """|exp(delta) - 1|: how far an importance ratio is from 1 where it ought to be 1."""
    return abs(exp(min(delta, 700.0)) - 1)
