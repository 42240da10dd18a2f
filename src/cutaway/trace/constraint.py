"""What a constraint did to a text: how much probability it removed, and which draws it changed."""

from collections.abc import Iterator
from dataclasses import dataclass

from cutaway.engine.events import Step, neg_log_z
from cutaway.trace.phrases import phrase
from cutaway.trace.read import Trace

_BUDGET = "thinking_budget"
"""What ``Step.refused_by`` says where the budget of a thought left one token."""


@dataclass(frozen=True, slots=True)
class ConstraintFigures:
    """Of a whole text.

    neg_log_z  the sum of -ln Z over the steps that were drawn, in nats
    most       the step with the largest of them
    differed   at how many steps the same luck would have drawn another token without it
    """

    neg_log_z: float
    most: int
    differed: int


def constraint_figures(trace: Trace) -> ConstraintFigures | None:
    """The figures of a text; None where no drawn token was constrained."""
    total = neg_log_z(trace.steps)
    if total is None:
        return None
    most = max(trace.steps, key=lambda step: step.neg_log_z or 0.0)
    return ConstraintFigures(total, most.index, sum(map(_differs, trace.steps)))


def constraint_sentences(trace: Trace) -> Iterator[str]:
    """The figures in words."""
    figures = constraint_figures(trace)
    if figures is None:
        return
    if not figures.neg_log_z:
        yield phrase("bent nothing", rule=_rule(trace))
        return
    nats = f"{figures.neg_log_z:.2f}"
    at = wanted_sentence(trace, trace.steps[figures.most])
    yield phrase(
        "bent", rule=_rule(trace), nats=nats, step=figures.most, at=f": {at}" if at else ""
    )
    yield phrase("differed", count=figures.differed, steps=len(trace.steps))


def wanted_sentence(trace: Trace, step: Step) -> str | None:
    """What would have been drawn without the constraint, in words; None where it is the same."""
    if not _differs(step):
        return None
    assert step.unconstrained_id is not None
    wanted, left = trace.name_of(step.unconstrained_id), trace.name_of(step.sampled_id)
    return phrase("wanted", wanted=wanted, rule=_rule(trace, step), left=left)


def ends_thought(step: Step) -> bool:
    """Whether the budget of a thought left no other token."""
    return _BUDGET in step.refused_by


def _differs(step: Step) -> bool:
    return step.unconstrained_id not in (None, step.sampled_id)


def _rule(trace: Trace, step: Step | None = None) -> str:
    if step and ends_thought(step):
        return phrase("budget")
    return phrase("grammar" if trace.head.grammar else "no grammar")
