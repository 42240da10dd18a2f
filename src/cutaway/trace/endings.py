"""Explain why a text ended when it did, and how a constraint changed the text.

Knows how likely the end token was and which stage excluded it, how much probability a constraint
removed, and which draws the constraint changed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cutaway.base.arithmetic import plainly
from cutaway.base.counting import count_from_1
from cutaway.engine.events import Step, neg_log_z
from cutaway.sampling import Candidate
from cutaway.trace.figures import (
    chosen_candidate,
    final_probability,
    ordinal,
    percent,
    phrase,
    probability,
    stage_label,
)
from cutaway.trace.read import Trace
from cutaway.trace.steps import observation_of

# -- constraints -------------------------------------------------------------------------------

_BUDGET = "thinking_budget"
"""The entry of ``Step.refused_by`` when the budget of a thought left one token."""


@dataclass(frozen=True, slots=True)
class ConstraintFigures:
    """The effect of a constraint on a whole text.

    neg_log_z  the sum of -ln Z over the drawn steps, in nats
    most       index of the step with the largest term
    differed   number of steps at which the same luck draws another token without the constraint
    """

    neg_log_z: float
    most: int
    differed: int


def constraint_figures(trace: Trace) -> ConstraintFigures | None:
    """Return the figures of a text; None if no drawn token was constrained."""
    total = neg_log_z(trace.steps)
    if total is None:
        return None
    largest = max(trace.steps, key=lambda step: step.neg_log_z or 0.0)
    return ConstraintFigures(total, largest.index, sum(map(_differs, trace.steps)))


def constraint_sentences(trace: Trace) -> Iterator[str]:
    """Yield a trace's constraint figures as sentences."""
    figures = constraint_figures(trace)
    if figures is None:
        return
    if not figures.neg_log_z:
        yield phrase("bent nothing", rule=_rule(trace))
        return
    nats = f"{figures.neg_log_z:.2f}"
    at = wanted_sentence(trace, trace.steps[figures.most])
    yield phrase(
        "bent",
        rule=_rule(trace),
        nats=nats,
        step=count_from_1(figures.most),
        at=f": {at}" if at else "",
    )
    yield phrase("differed", count=figures.differed, steps=len(trace.steps))


def wanted_sentence(trace: Trace, step: Step) -> str | None:
    """Tell the token that would be drawn without the constraint; None if it is the same."""
    if not _differs(step):
        return None
    assert step.unconstrained_id is not None
    unconstrained, drawn_name = trace.name_of(step.unconstrained_id), trace.name_of(step.sampled_id)
    return phrase("wanted", wanted=unconstrained, rule=_rule(trace, step), left=drawn_name)


def ends_thought(step: Step) -> bool:
    """Return whether the budget of a thought left only this token."""
    return _BUDGET in step.refused_by


def _differs(step: Step) -> bool:
    return step.unconstrained_id not in (None, step.sampled_id)


def _rule(trace: Trace, step: Step | None = None) -> str:
    if step and ends_thought(step):
        return phrase("budget")
    return phrase("grammar" if trace.head.grammar else "no grammar")


# -- ends --------------------------------------------------------------------------------------

CLOSEST = 5
UNKNOWN = "an unknown stage"
"""The stage that removed a token, if the record does not name it."""


@dataclass(frozen=True, slots=True)
class EndTokenStatus:
    """How close one step came to ending the text.

    token_id           the likeliest recorded end token, to which rank and delta belong
    probability        of all recorded end tokens together, under the model's own logits
    final_probability  of drawing one of them; 0 if none survived, or temperature 0 took another
    rank               under the model's own logits; 1 is the likeliest
    delta              the sum that bias, penalties and processors added to the logit
    outcome            "drawn", "forced" (another token was forced), "lost" (it survived and lost
                       the draw), "outranked" (it survived, and temperature 0 took a likelier
                       token), or the stage that removed it, such as "top-k 40"
    margin_nats        by how many nats the best end token lost the draw, which compares
                       log-probability plus luck, or was outranked; None for other outcomes
    """

    index: int
    token_id: int
    probability: float
    final_probability: float
    rank: int
    delta: float
    outcome: str
    margin_nats: float | None

    @property
    def survived(self) -> bool:
        """Whether an end token could have been drawn."""
        return self.final_probability > 0

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Why:
    """The condition that ended a text, and how close the text came to ending before.

    reason      the recorded reason; "unfinished" if the file has no end
    matched     the stop string, or the id of the end or stop token
    sentence    ``reason`` and ``matched`` in words
    moments     a status for each step that recorded an end token
    closest     the likeliest moments at which the text continued, best first
    outcomes    outcome -> number of moments with it
    constraint  the effect of a constraint on the text; None if no constraint applied
    """

    reason: str
    matched: str | int | None
    sentence: str
    moments: tuple[EndTokenStatus, ...]
    closest: tuple[EndTokenStatus, ...]
    outcomes: Mapping[str, int]
    constraint: ConstraintFigures | None

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        plain = asdict(self)
        return plain if self.constraint else {k: v for k, v in plain.items() if k != "constraint"}


@plainly
def why(trace: Trace, closest: int = CLOSEST) -> Why:
    """Explain from the record alone why the text ended. closest: how many near misses to name."""
    moments = tuple(m for step in trace.steps if (m := end_token_status(trace, step)))
    before = [m for m in moments if m.index < len(trace.steps) - ended_by_token(trace)]
    return Why(
        reason=trace.end.reason if trace.end else "unfinished",
        matched=trace.end.matched if trace.end else None,
        sentence=_sentence(trace),
        moments=moments,
        closest=tuple(sorted(before, key=lambda m: -m.probability)[:closest]),
        outcomes=dict(Counter(m.outcome for m in moments).most_common()),
        constraint=constraint_figures(trace),
    )


def ended_by_token(trace: Trace) -> bool:
    """Return whether the last step's token ended the text; the text then lacks this token."""
    return trace.end is not None and trace.end.reason in ("end_token", "stop_token")


def end_token_status(trace: Trace, step: Step) -> EndTokenStatus | None:
    """Return how close a step came to ending the text; None if it recorded no end token."""
    seen = observation_of(step)
    ends = [c for c in seen.candidates if c.id in trace.head.end_ids]
    if not ends:
        return None
    best = max(ends, key=lambda c: c.logit)
    final = sum(p for c in ends if (p := final_probability(step, c)) is not None)
    outcome, margin = _outcome(trace, step, ends)
    mass = sum(probability(c.logit - seen.log_sum_exp) for c in ends)
    return EndTokenStatus(step.index, best.id, mass, final, best.rank, best.delta, outcome, margin)


def _outcome(trace: Trace, step: Step, ends: list[Candidate]) -> tuple[str, float | None]:
    if step.token_id in trace.head.end_ids:
        return "drawn" if step.source != "forced" else "forced", None
    alive = [_score(c) for c in ends if c.final_logprob is not None]
    if not alive:
        stages = [c.removed_by for c in ends if c.removed_by is not None]
        return stage_label(trace.head.chain[max(stages)]) if stages else UNKNOWN, None
    if step.source == "forced":
        return "forced", None
    candidate = chosen_candidate(step)
    outcome = "outranked" if candidate.luck is None else "lost"
    return outcome, _score(candidate) - max(alive)


def _score(c: Candidate) -> float:
    """Return the score that the draw compares, except for a constant."""
    return (c.final_logprob or 0.0) + (c.luck or 0.0)


def outcome_phrase(outcome: str) -> str:
    """Tell in words what happened to the end token."""
    was_in_play = outcome in ("drawn", "forced", "lost", "outranked")
    return phrase(outcome) if was_in_play else phrase("removed", stage=outcome)


def status_sentence(trace: Trace, moment: EndTokenStatus) -> str:
    """Describe a moment in a sentence."""
    return phrase(
        "status",
        step=count_from_1(moment.index),
        rank=phrase("likeliest" if moment.rank == 1 else "nth likeliest", nth=ordinal(moment.rank)),
        share=percent(moment.probability),
        changed=phrase("changed", delta=f"{moment.delta:+.2f}") if moment.delta else "",
        became=_what_became(trace, trace.steps[moment.index], moment),
    )


def _what_became(trace: Trace, step: Step, moment: EndTokenStatus) -> str:
    if moment.outcome == "drawn":
        return phrase("it was drawn" if step is trace.steps[-1] else "drawn and passed")
    if moment.outcome == "forced":
        would = step.sampled_id in trace.head.end_ids and step.token_id != step.sampled_id
        return phrase("given instead" if would else "given")
    if moment.margin_nats is None:
        return phrase("a stage removed it", stage=moment.outcome)
    margin = f"{moment.margin_nats:.2f}"
    if moment.outcome == "outranked":
        return phrase("outranked by", margin=margin)
    return phrase("lost the draw", share=percent(moment.final_probability), margin=margin)


def _sentence(trace: Trace) -> str:
    end, count = trace.end, len(trace.steps)
    if end is None:
        return phrase("unfinished")
    tokens = phrase("one token") if count == 1 else phrase("many tokens", count=count)
    name = repr(trace.name_of(end.matched) if isinstance(end.matched, int) else end.matched)
    figures = {"tokens": tokens, "name": name, "came": _came(trace), "error": end.error}
    return phrase("ended", reason=phrase(end.reason, **figures))


def _came(trace: Trace) -> str:
    if not trace.steps:
        return phrase("reached")
    step = trace.steps[-1]
    return phrase(
        "given at" if step.source == "forced" else "drawn at", step=count_from_1(step.index)
    )
