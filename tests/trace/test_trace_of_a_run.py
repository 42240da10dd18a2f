"""A real run's trace, from a tiny model: its views agree with the whole rows of logits."""

import csv
import io
from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest

from cutaway.trace import Trace, to_csv, to_html, to_openai, why
from support.full_logits import probabilities
from support.made_traces import embedded


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
