"""OpenAI's logprobs and CSV: every figure from the whole row."""

import csv
import io
import json
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.trace import to_csv, to_openai
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
