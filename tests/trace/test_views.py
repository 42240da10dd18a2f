"""Views of a trace: as whole rows of logits say of a real run, and of every trace that is valid."""

import csv
import io
import json
from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cli.terminal.drawing import Style, width
from cutaway.features.players import step_player
from cutaway.features.players.step_player import StepPlayer
from cutaway.trace import Trace, diff_texts, step_view, to_csv, to_html, to_openai, why
from support.full_logits import probabilities
from support.made_traces import embedded, runs, write


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.jsonl.gz"
    done = tiny.generate(
        "ab", max_tokens=30, seed=3, trace=path, temperature=0.8, top_k=5, ignore_eos=True
    )
    return done, Trace.read(path)


@pytest.fixture(scope="module")
def shares(tiny, run):
    """Of every step, the model's probabilities of all tokens. (steps, vocab)"""
    done, _ = run
    ids = [*done.prompt_token_ids, *done.token_ids]
    return probabilities(tiny, ids)[len(done.prompt_token_ids) - 1 : -1]


def test_why(run, shares):
    _, trace = run
    ends = list(trace.head.end_ids)
    moments = why(trace).moments
    assert [m.probability for m in moments] == pytest.approx(list(shares[:, ends].sum(axis=1)))
    for moment, row in zip(moments, shares, strict=True):
        assert moment.rank == 1 + min((row > row[i]).sum() for i in ends)


def test_exports(run, shares):
    done, trace = run
    content = to_openai(trace)["content"]
    for entry, token_id, row in zip(content, done.token_ids, shares, strict=True):
        assert np.exp(entry["logprob"]) == pytest.approx(row[token_id])
        best = np.sort(row)[::-1][: trace.head.candidates]
        assert [np.exp(top["logprob"]) for top in entry["top_logprobs"]] == pytest.approx(
            list(best)
        )
    rows = list(csv.DictReader(io.StringIO(to_csv(trace))))
    assert [int(row["token_id"]) for row in rows] == list(done.token_ids)


def test_a_notebook_shows_what_was_held_back(run):
    done, _ = run
    assert "and so<" in replace(done, text=f"{done.text}and so")._repr_html_()


def test_pages(run):
    done, trace = run
    assert embedded(to_html(trace)) == replace(trace, path=None, sha256=ANY)
    assert done._repr_html_().count('class="t s') == len(done.token_ids) + 9  # and the legend
    assert trace._repr_html_().count('class="t s') == len(done.token_ids) + 9


# -- every valid trace: nothing fails and nothing leaks ----------------------------------------


@given(runs(), st.booleans())
def test_every_view_of_anything(tmp_path_factory, run, unicode):
    path = tmp_path_factory.mktemp("any") / "run.jsonl"
    write(path, run)
    trace, style = Trace.read(path), Style(ansi=False, colour=False, unicode=unicode)
    # Figures at the end of float64 may add up to infinity; those of a run never do.
    json.dumps([step_view(trace, s).to_dict() for s in trace.steps])
    json.dumps([why(trace).to_dict(), diff_texts(trace, trace).to_dict()])
    json.dumps([to_openai(trace), to_openai(trace, "after")])
    assert len(list(csv.reader(io.StringIO(to_csv(trace))))) == 1 + len(trace.steps)
    assert embedded(to_html(trace)).steps == trace.steps
    shown = [step_player.summary(style, trace), step_player.ending(style, trace)]
    shown += [step_player.step_line(style, trace, step) for step in trace.steps]
    shown += StepPlayer(trace).frame(90, 40, style)
    for line in shown:
        assert line.isprintable()
        assert unicode or line.isascii()
    assert max(map(width, StepPlayer(trace).frame(90, 40, style))) <= 90
