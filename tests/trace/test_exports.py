"""OpenAI's logprobs and CSV: every figure from the whole row."""

import csv
import io
import json
from dataclasses import replace
from math import exp, log, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.trace import Change, CommonRun, Cost, Parent, diff_texts, to_csv, to_openai
from cutaway.trace.differences import SHORTEST_RUN
from support.trace_by_hand import (
    END,
    NAMES,
    ROW,
    TOP_K,
    VOCAB,
    made_step,
    made_text,
    made_trace,
    probabilities,
)

rows = st.lists(st.floats(-9, 9, width=32), min_size=VOCAB, max_size=VOCAB, unique=True)


def test_the_form_of_a_chat_completion():
    found = to_openai(made_text(1, 2))
    assert list(found) == ["content", "refusal"]
    first, _ = json.loads(json.dumps(found))["content"]
    assert list(first) == ["token", "logprob", "bytes", "top_logprobs"]
    assert (first["token"], bytes(first["bytes"])) == (" mat", b" mat")
    assert [list(top) for top in first["top_logprobs"]] == [["token", "logprob", "bytes"]] * 3


@given(rows, st.integers(1, VOCAB))
def test_before_and_after_the_chain(row, k):
    """candidates is 3, so "before" has three; "after" has all survivors on record."""
    order = np.argsort(-np.asarray(row))
    names = {END: "<end>"} | NAMES
    trace = made_trace([made_step(0, int(order[0]), row, k=k)])
    for when, kept, count in (("before", order, 3), ("after", order[:k], k)):
        (entry,) = to_openai(trace, when)["content"]
        share = np.exp(np.asarray(row, np.float64))[order[:count]]
        expected = np.log(share / np.exp(np.asarray(row, np.float64))[kept].sum())
        top = entry["top_logprobs"]
        assert [t["token"] for t in top] == [names[i] for i in order[:count]]
        assert [t["logprob"] for t in top] == pytest.approx(list(expected), abs=1e-9)
        assert entry["logprob"] == top[0]["logprob"]


def test_a_given_token_that_did_not_survive():
    trace = made_trace([made_step(0, 5, source="forced")])
    assert to_openai(trace, "after")["content"][0]["logprob"] == -9999.0
    assert to_openai(trace)["content"][0]["logprob"] == pytest.approx(log(probabilities(ROW)[5]))


@pytest.mark.parametrize(("reason", "count"), [("end_token", 1), ("max_tokens", 2), (None, 2)])
def test_the_token_that_ended_the_text_is_left_out(reason, count):
    trace = made_trace(
        [made_step(0, 1), made_step(1, END)], reason, matched=END if reason else None
    )
    assert len(to_openai(trace)["content"]) == count


def test_tokens_that_are_no_text():
    content = to_openai(made_text(1, END, names={1: b"\xe4\xbd"}))["content"]
    assert (content[0]["token"], content[0]["bytes"]) == ("\ufffd", [0xE4, 0xBD])
    assert (content[1]["token"], content[1]["bytes"]) == ("<end>", None)


def test_csv_has_a_row_per_step():
    trace = made_text(1, 2, names={1: 'a "b",\nc', 2: b"\xff"})
    first, second = csv.DictReader(io.StringIO(to_csv(trace)))
    assert (first["token"], second["token"]) == ('a "b",\nc', "\\xff")
    assert exp(float(first["logprob"])) == pytest.approx(probabilities(ROW)[1])
    assert 2 ** -float(first["bits"]) == pytest.approx(probabilities(ROW)[1])
    share = probabilities(ROW)
    assert float(first["entropy_bits"]) == pytest.approx(-(share * np.log2(share)).sum())
    assert float(first["end_probability"]) == pytest.approx(share[END])
    assert (first["end_rank"], first["end_outcome"], first["survivors"]) == ("5", "top-k 2", "2")
    assert (second["step"], second["position"], second["run_ms"]) == ("1", "3", "5.0")


@pytest.mark.parametrize("token", ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1", "="])
def test_a_spreadsheet_runs_no_token(token):
    (row,) = csv.DictReader(io.StringIO(to_csv(made_text(1, names={1: token})), newline=""))
    assert row["token"] == "'" + token
    assert row["logprob"].startswith("-"), "a figure is no formula"


def test_the_draft_models_time_is_on_record_where_it_ran():
    first = made_step(0, 1)
    second = made_step(1, 2)._replace(phases=replace(first.phases, draft=2.5e-3))
    rows = [*csv.DictReader(io.StringIO(to_csv(made_trace([first, second]))))]
    assert [row["draft_ms"] for row in rows] == ["", "2.5"]


def test_csv_leaves_empty_what_is_not_on_record():
    trace = made_trace([made_step(0, 5, source="forced")], end_ids=(), tracked_ids=())
    (row,) = csv.DictReader(io.StringIO(to_csv(trace)))
    assert (row["final_logprob"], row["final_rank"], row["end_probability"]) == ("", "", "")


def test_csv_of_no_steps_is_its_header():
    assert to_csv(made_trace([])).startswith("step,position,token_id,token,")
    assert to_csv(made_trace([])).count("\n") == 1


# -- trace diff ------------------------------------------------------------------------------------

# Two traces side by side.


texts = st.lists(st.integers(1, 5), max_size=30)


def test_a_trace_and_itself():
    trace = made_text(1, 2, 3)
    found = diff_texts(trace, trace)
    assert (found.changes, found.divergence, found.common_runs) == ((), None, ())
    assert (found.common, found.logits_differ_at, found.same_prompt) == (3, None, True)
    assert found.a == found.b
    assert found.a_after == Cost(0, 0.0)
    assert found.a_after.per_token is None


def test_where_they_diverge_and_what_each_text_cost():
    found = diff_texts(made_text(1, 2, 3), made_text(1, 4, 3))
    shares = probabilities(ROW)
    assert found.divergence.index == found.common == 1
    assert (found.divergence.a.token, found.divergence.b.token) == (" sofa", " moon")
    assert found.divergence.a.under_b == pytest.approx(shares[2])
    assert found.divergence.b.under_a == pytest.approx(shares[4])
    bits = -sum(log2(shares[i]) for i in (4, 3))
    assert found.b_after.bits == pytest.approx(bits)
    assert found.b_after.per_token == pytest.approx(bits / 2)


def test_one_text_continues_where_the_other_ended():
    found = diff_texts(made_text(1, 2), made_text(1, 2, 3)).divergence
    assert (found.index, found.a, found.b.token) == (2, None, " roof")


def test_they_meet_again():
    same = (1, 2, 3, 4, 5, 4, 3, 2, 1)
    found = diff_texts(made_text(1, 2, *same), made_text(1, 3, 5, *same))
    assert found.common_runs == (CommonRun(2, 3, 9),)


def test_a_fork_names_its_parent():
    first = made_text(1, 2, 3)
    fork = made_text(1, 4, 3, parent=Parent(first.sha256, 1, 4))
    assert diff_texts(first, fork).is_fork
    assert not diff_texts(fork, first).is_fork
    assert not diff_texts(made_text(1, 2), fork).is_fork


def test_settings_and_fields_that_differ_are_named_once():
    other = TOP_K | {"k": 3}
    found = diff_texts(
        made_text(1),
        made_text(1, seed=8, chain=(other,), params={"top_k": 3, "extra": 1, "seed": 8}),
    )
    assert found.changes == (
        Change("chain", (TOP_K,), (other,)), Change("seed", 7, 8),
        Change("top_k", 2, 3), Change("extra", None, 1),
    )  # fmt: skip


def test_the_first_logits_that_differ():
    a = made_trace([made_step(i, t) for i, t in enumerate((1, 2, 3))])
    b = made_trace([made_step(i, t, bits="0f" if i else "00") for i, t in enumerate((1, 4, 3))])
    assert diff_texts(a, b).logits_differ_at == 1  # that step still follows equal tokens
    late = made_trace(
        [made_step(i, t, bits="0f" if i > 1 else "00") for i, t in enumerate((1, 4, 3))]
    )
    assert diff_texts(a, late).logits_differ_at is None


def test_prompts_that_differ():
    assert not diff_texts(made_text(1), made_text(1, prompt_token_ids=(2, 2))).same_prompt


@given(texts, texts)
def test_the_definitions_hold(x, y):
    found = diff_texts(made_text(*x), made_text(*y))
    n = found.common
    assert x[:n] == y[:n]
    assert x[n : n + 1] != y[n : n + 1] or n == len(x) == len(y)
    assert (found.divergence is None) == (x == y)
    at = (n, n)
    for m in found.common_runs:
        assert m.length >= SHORTEST_RUN
        assert x[m.a : m.a + m.length] == y[m.b : m.b + m.length]
        assert m.a >= at[0]
        assert m.b >= at[1]
        at = (m.a + m.length, m.b + m.length)
    assert found.a.tokens == len(x)
    assert found.b_after.tokens == len(y) - n


@given(texts)
def test_a_long_enough_equal_stretch_is_found(x):
    """One token in front: the rest is the same text, one step later."""
    same = [1, 2, 3, 4, 4, 3, 2, 1, *x]
    found = diff_texts(made_text(5, *same), made_text(4, 3, *same))
    assert sum(m.length for m in found.common_runs) >= SHORTEST_RUN
