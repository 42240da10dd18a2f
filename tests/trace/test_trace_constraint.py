"""What a trace says of a constraint: figures by hand, and the sentences for a person."""

from math import log
from pathlib import Path

import pytest

from cutaway.sampling import Stage
from cutaway.trace import Trace, step_view, why
from cutaway.trace.endings import constraint_figures, constraint_sentences, wanted_sentence
from cutaway.trace.steps import step_from_json, step_to_json
from support.trace_by_hand import made_step, made_text, made_trace

HELD = Path(__file__).parent / "web" / "data" / "held.jsonl"


def held_step(index, left, wanted=None, *, before=3.0, **more):
    """A step whose first stage, the constraint, left this much of the mass."""
    step = made_step(index, 1, **more)
    seen = step.observed
    report = seen.stages[0]._replace(stage=Stage("constraint", {}), log_sum_exp=before + log(left))
    return step._replace(
        unconstrained_id=wanted, observed=seen._replace(log_sum_exp=before, stages=(report,))
    )


def held_trace(*steps):
    return made_trace(steps, chain=({"stage": "constraint"},))


def test_the_sum_and_the_step_that_was_bent_most():
    trace = held_trace(
        held_step(0, 0.5, 1), held_step(1, 0.125, 2), held_step(2, 1e-9, 3, source="forced"),
        held_step(3, 1.0),
    )  # fmt: skip
    found = constraint_figures(trace)
    assert found.neg_log_z == pytest.approx(log(16))
    assert (found.most, found.differed) == (1, 2)
    assert [*constraint_sentences(trace)] == [
        "The sum of −ln Z, where Z is the probability that the constraint left, is 2.77 nats; "
        "most of it at step 1: "
        "the model wanted “ sofa”; the constraint left “ mat”.",
        "At 2 of 4 steps the model wanted another token.",
    ]
    assert why(trace).to_dict()["constraint"]["most"] == 1


def test_a_step_names_what_was_wanted_where_it_is_another_token():
    trace = held_trace(held_step(0, 0.5, 1), held_step(1, 0.5, 2), held_step(2, 1.0))
    wanted = [wanted_sentence(trace, step) for step in trace.steps]
    assert wanted == [None, "the model wanted “ sofa”; the constraint left “ mat”", None]
    views = [step_view(trace, step).to_dict() for step in trace.steps]
    assert [view.get("unconstrained_id") for view in views] == [1, 2, None]
    assert [view.get("bent") for view in views] == wanted


def test_a_constraint_that_removed_nothing():
    trace = held_trace(held_step(0, 1.0))
    assert [*constraint_sentences(trace)] == [
        "The sum of −ln Z, where Z is the probability that the constraint left, is 0: "
        "it removed nothing."
    ]


def test_without_a_constraint_nothing_is_said():
    trace = made_text(1, 2)
    assert constraint_figures(trace) is None
    assert [*constraint_sentences(trace)] == []
    assert "constraint" not in why(trace).to_dict()
    assert (
        not {"neg_log_z", "unconstrained_id", "bent"}
        & step_view(trace, trace.steps[0]).to_dict().keys()
    )


def test_a_grammar_is_called_one():
    assert "; the grammar left “:”" in "".join(constraint_sentences(Trace.read(HELD)))


def test_a_step_keeps_which_checks_spoke():
    trace = held_trace(held_step(0, 0.5, 1)._replace(refused_by=("arithmetic",)), held_step(1, 1.0))
    lines = [step_to_json(step) for step in trace.steps]
    assert lines[0]["refused_by"] == ["arithmetic"] and "refused_by" not in lines[1]
    read = [step_from_json(line, trace.head).refused_by for line in lines]
    assert read == [("arithmetic",), ()]
