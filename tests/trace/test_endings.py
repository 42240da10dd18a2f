"""Why a text ended, what kept it from ending before, and what a constraint did to it."""

from collections import Counter
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.sampling import Stage
from cutaway.trace import End, Trace, step_view, why
from cutaway.trace.endings import (
    constraint_figures,
    constraint_sentences,
    outcome_phrase,
    status_sentence,
    wanted_sentence,
)
from cutaway.trace.steps import step_from_json, step_to_json
from support.trace_by_hand import (
    END,
    NAMES,
    ROW,
    VOCAB,
    made_step,
    made_text,
    made_trace,
    probabilities,
)

ALIVE = (1.8, 2.0, 1.5, 1.0, 0.0, -1.0)  # the end token is the second likeliest

rows = st.lists(st.floats(-9, 9, width=32), min_size=VOCAB, max_size=VOCAB, unique=True)


def test_the_end_token_that_was_drawn():
    trace = made_trace([made_step(0, 1), made_step(1, END, ALIVE)], "end_token", matched=END)
    answer = why(trace)
    assert answer.sentence == "It ended because the end token '<end>' was chosen at step 2."
    assert [m.outcome for m in answer.moments] == ["top-k 2", "drawn"]
    assert [m.index for m in answer.closest] == [0]  # the drawn one is no near miss


def test_the_stage_that_removed_it():
    (moment,) = why(made_trace([made_step(0, 1)])).moments
    assert (moment.outcome, moment.rank, moment.survived, moment.margin_nats) == (
        "top-k 2",
        5,
        False,
        None,
    )
    assert moment.probability == pytest.approx(probabilities(ROW)[END])
    assert moment.final_probability == 0


def test_a_lost_draw_has_a_margin():
    step = made_step(0, 1, ALIVE, luck={1: 0.75, END: -0.5})
    trace = made_trace([step])
    (moment,) = why(trace).moments
    assert moment.outcome == "lost"
    assert moment.margin_nats == pytest.approx((2.0 + 0.75) - (1.8 - 0.5))
    share = np.exp(1.8) / (np.exp(1.8) + np.exp(2.0))
    assert moment.final_probability == pytest.approx(share)
    assert "2nd likeliest" in status_sentence(trace, moment)
    assert "lost the draw by 1.45" in status_sentence(trace, moment)


def test_greedy_takes_the_likeliest():
    trace = made_trace([made_step(0, 1, ALIVE, source="greedy")])
    (moment,) = why(trace).moments
    assert (moment.outcome, moment.final_probability, moment.survived) == ("outranked", 0, False)
    assert moment.margin_nats == pytest.approx(0.2)
    assert "another token was the likeliest, by 0.20" in status_sentence(trace, moment)
    assert outcome_phrase(moment.outcome) == "was not the likeliest"


def test_greedy_takes_an_end_token_for_certain():
    trace = made_trace([made_step(0, END, (3.0, 2.0, 1, 0, -1, -2), source="greedy")], matched=END)
    (moment,) = why(trace).moments
    assert (moment.outcome, moment.final_probability) == ("drawn", 1)


@pytest.mark.parametrize(("own", "said"), [(1, "was given, not chosen"), (END, "would have been")])
def test_a_forced_token_is_not_drawn(own, said):
    trace = made_trace([made_step(0, 1, ALIVE, source="forced", sampled_id=own)])
    (moment,) = why(trace).moments
    assert moment.outcome == "forced"
    assert said in status_sentence(trace, moment)


def test_penalties_are_named():
    trace = made_trace([made_step(0, 1, delta=-1.5)])
    assert "bias and penalties added -1.50" in status_sentence(trace, why(trace).moments[0])


@pytest.mark.parametrize(
    ("reason", "matched", "said"),
    [
        ("end_token", END, "the end token '<end>' was chosen at step 2"),
        ("stop_token", 2, "the stop token ' sofa' was chosen at step 2"),
        ("stop_string", "\n\n", "reached the stop string '\\n\\n'"),
        ("max_tokens", None, "it had 2 tokens, which is max_tokens"),
        ("context_full", None, "the context was full after 2 tokens"),
        ("aborted", None, "it was aborted after 2 tokens"),
        (None, None, "The record has no end"),
    ],
)
def test_every_reason_has_a_sentence(reason, matched, said):
    answer = why(made_text(1, 2, reason=reason, matched=matched))
    assert said in answer.sentence
    assert answer.reason == (reason or "unfinished")


def test_an_error_is_in_the_sentence():
    trace = made_text(1)
    object.__setattr__(trace, "end", End("error", None, {}, "0" * 16, error="logits: not finite"))
    assert why(trace).sentence == "It ended because of an error after 1 token: logits: not finite."


@pytest.mark.parametrize("reason", ["end_token", None])
def test_a_trace_without_steps(reason):
    answer = why(made_trace([], reason, matched=END))
    assert (answer.moments, answer.closest, answer.outcomes) == ((), (), {})


def test_a_vocabulary_without_end_tokens():
    assert why(made_text(1, 2, end_ids=(), tracked_ids=())).moments == ()


@given(st.lists(st.tuples(rows, st.sampled_from(sorted(NAMES)), st.integers(1, VOCAB)), max_size=8))
def test_moments_agree_with_the_whole_rows(drawn):
    """Rank, probability and fate of the end token, from the definition."""
    steps = [made_step(i, token, row, k=k) for i, (row, token, k) in enumerate(drawn)]
    answer = why(made_trace(steps), closest=3)
    fates = []
    for moment, (row, _, k) in zip(answer.moments, drawn, strict=True):
        rank = 1 + sum(other > row[END] for other in row)
        assert moment.rank == rank
        assert moment.probability == pytest.approx(probabilities(row)[END])
        assert moment.outcome == ("lost" if rank <= k else "top-k 2")
        fates.append(moment.outcome)
    assert answer.outcomes == Counter(fates)
    best = sorted((m.probability for m in answer.moments), reverse=True)[:3]
    assert [m.probability for m in answer.closest] == best


@pytest.mark.parametrize("reason", ["end_token", "stop_token"])
def test_the_step_that_ended_it_is_none_before(reason):
    steps = [made_step(0, 1), made_step(1, END, k=6)]
    answer = why(made_trace(steps, reason, matched=END))
    assert [m.index for m in answer.moments] == [0, 1]
    assert [m.index for m in answer.closest] == [0]


# -- constraints: figures by hand, and the sentences for a person ------------------------------

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
        "most of it at step 2: "
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
