"""Return one step of a trace in figures for people: probabilities, bits, names of stages.

Names of tokens are raw: whoever shows them must escape them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log
from typing import Any

from cutaway.base.arithmetic import plainly
from cutaway.engine.events import Step
from cutaway.sampling import Candidate
from cutaway.trace.endings import EndTokenStatus, end_token_status, wanted_sentence
from cutaway.trace.figures import (
    bits,
    chosen_candidate,
    final_probability,
    probability,
    stage_label,
    stage_letter,
    to_bits,
)
from cutaway.trace.read import Trace
from cutaway.trace.steps import milliseconds, observation_of


@dataclass(frozen=True, slots=True)
class CandidateView:
    """One token at one step.

    probability         under the model's own logits
    final_probability   of being drawn; None if a stage removed it. At temperature 0 the likeliest
                        survivor has 1 and the others 0
    rank, logit, luck   as in the record
    delta               the sum that bias, penalties and processors added to the logit
    letter, removed_by  letter and label of the stage that removed the token: "K", "top-k 40"
    chosen, drawn       whether the text continues with the token; whether the sampler drew it
    """

    id: int
    token: str
    probability: float
    final_probability: float | None
    rank: int
    logit: float
    delta: float
    luck: float | None
    letter: str | None
    removed_by: str | None
    chosen: bool
    drawn: bool


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage's letter, label, effect, and the names of the likeliest tokens that it removed."""

    letter: str
    label: str
    survivors: int
    removed_mass: float
    top_removed: tuple[str, ...]


_OF_A_CONSTRAINT = ("neg_log_z", "unconstrained_id", "bent")


@dataclass(frozen=True, slots=True)
class StepView:
    """One step. ``bits`` (the token's surprise) and ``entropy`` are in bits.

    end   how close the step came to ending the text; None if it recorded no end token
    ms    milliseconds of the engine's step, by phase
    neg_log_z, unconstrained_id  as in ``Step``, the first in nats
    bent  the draw without the constraint, in words; None if it is the same
    """

    index: int
    position: int
    token_id: int
    token: str
    source: str
    rank: int
    bits: float
    entropy: float
    probability: float
    final_probability: float | None
    end: EndTokenStatus | None
    candidates: tuple[CandidateView, ...]
    stages: tuple[StageView, ...]
    kv_tokens: int | None
    kv_bytes: int | None
    ms: Mapping[str, float]
    neg_log_z: float | None
    unconstrained_id: int | None
    bent: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON; without a constraint, its fields are absent."""
        return {k: v for k, v in asdict(self).items() if v is not None or k not in _OF_A_CONSTRAINT}


@plainly
def step_view(trace: Trace, step: Step) -> StepView:
    """Return all figures of a step."""
    seen, kv_tokens = observation_of(step), step.position if step.pass_index is None else None
    return StepView(
        index=step.index,
        position=step.position,
        token_id=step.token_id,
        token=trace.name_of(step.token_id),
        source=step.source,
        rank=seen.rank,
        bits=bits(step.logprob),
        entropy=to_bits(seen.entropy),
        probability=probability(step.logprob),
        final_probability=final_probability(step, chosen_candidate(step)),
        end=end_token_status(trace, step),
        candidates=tuple(_candidate(trace, step, c) for c in seen.candidates),
        stages=_stages(trace, step),
        kv_tokens=kv_tokens,
        kv_bytes=None if kv_tokens is None else kv_tokens * trace.head.kv_bytes_per_token,
        ms=milliseconds(step.phases),
        neg_log_z=step.neg_log_z,
        unconstrained_id=step.unconstrained_id,
        bent=wanted_sentence(trace, step),
    )


def is_uncertain(step: Step) -> bool:
    """Return whether every token's probability is below one half."""
    seen = observation_of(step)
    return seen.maximum - seen.log_sum_exp < log(0.5)


def _candidate(trace: Trace, step: Step, c: Candidate) -> CandidateView:
    stage = None if c.removed_by is None else trace.head.chain[c.removed_by]
    return CandidateView(
        id=c.id,
        token=trace.name_of(c.id),
        probability=probability(c.logit - observation_of(step).log_sum_exp),
        final_probability=final_probability(step, c),
        rank=c.rank,
        logit=c.logit,
        delta=c.delta,
        luck=c.luck,
        letter=stage_letter(stage) if stage else None,
        removed_by=stage_label(stage) if stage else None,
        chosen=c.id == step.token_id,
        drawn=c.id == step.sampled_id,
    )


def _stages(trace: Trace, step: Step) -> tuple[StageView, ...]:
    return tuple(
        StageView(
            stage_letter(stage),
            stage_label(stage),
            report.survivors,
            report.removed_mass,
            tuple(trace.name_of(i) for i in report.top_removed),
        )
        for stage, report in zip(trace.head.chain, observation_of(step).stages, strict=True)
    )
