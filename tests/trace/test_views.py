"""Views of a trace: as whole rows of logits say of a real run, and of every trace that is valid."""

import csv
import io
import json
import random
from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.cli.terminal.drawing import Style, width
from cutaway.features.players import step_player
from cutaway.features.players.step_player import StepPlayer
from cutaway.trace import Trace, diff_texts, step_view, to_csv, to_html, to_openai, why
from support.full_logits import probabilities
from support.made_traces import read_embedded, runs, write


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
    assert read_embedded(to_html(trace)) == replace(trace, path=None, sha256=ANY)
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
    assert read_embedded(to_html(trace)).steps == trace.steps
    shown = [step_player.summary(style, trace), step_player.ending(style, trace)]
    shown += [step_player.step_line(style, trace, step) for step in trace.steps]
    shown += StepPlayer(trace).frame(90, 40, style)
    for line in shown:
        assert line.isprintable()
        assert unicode or line.isascii()
    assert max(map(width, StepPlayer(trace).frame(90, 40, style))) <= 90


# -- ledger smollm2 --------------------------------------------------------------------------------

# The ledger of real steps, computed once more by brute force from the full logits.
#
# The definitions are written down here a second time, in float64 over the whole vocabulary, a
# removed token being one of no probability.


SETTINGS = {
    "cutaway": {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    "hf": {"preset": "hf", "temperature": 0.9, "repetition_penalty": 1.1, "top_p": 0.95},
    "llama.cpp": {
        "preset": "llama.cpp", "temperature": 0.6, "frequency_penalty": 0.4,
        "presence_penalty": 0.3, "logit_bias": {260: -2.5, 28: 1.5}, "min_p": 0.05, "top_k": 50,
    },
    "greedy": {"temperature": 0, "repetition_penalty": 1.2},
}  # fmt: skip


@pytest.fixture(scope="module")
def llm(smollm2_path):
    return LLM(smollm2_path, progress=False)


def near(value):
    return pytest.approx(value, rel=1e-5, abs=2e-6)


def log_sum(z):
    return float(np.log(np.sum(np.exp(z - z.max()))) + z.max())


def after(stage, z, prompt, output):
    """What a stage makes of all logits; minus infinity is a token that it removes."""
    z, p = z.copy(), np.exp(z - log_sum(z))
    likeliest = np.lexsort((np.arange(len(z)), -z))
    match stage["stage"]:
        case "logit_bias":
            for token, by in stage["bias"].items():
                z[token] += by
        case "penalties":
            for token in {*prompt, *output}:
                z[token] *= stage["repetition"] if z[token] < 0 else 1 / stage["repetition"]
            for token in {*output}:
                z[token] -= stage["presence"] + stage["frequency"] * output.count(token)
        case "temperature":
            z /= stage["temperature"]
        case "top_k":
            z[likeliest[stage["k"] :]] = -np.inf
        case "top_p":
            needed = 1 + int(np.sum(np.cumsum(p[likeliest]) < stage["p"]))
            z[likeliest[needed:]] = -np.inf
        case "min_p":
            z[p < stage["p"] * p.max()] = -np.inf
        case name:
            raise AssertionError(f"there is no definition of {name}")
    return z


def check(step, head, row, output):
    """Every figure of a step against the row of logits that it came from."""
    seen = step.observed
    raw = row.astype(np.float64)
    p = np.exp(raw - log_sum(raw))
    ranked = np.lexsort((np.arange(len(raw)), -raw)).tolist()
    assert seen.maximum == row.max()
    assert seen.log_sum_exp == near(log_sum(raw))
    assert seen.entropy == near(-np.sum(p * np.log(p)))
    assert seen.rank == 1 + ranked.index(step.token_id)
    assert seen.logprob == near(np.log(p[step.token_id]))
    depth = np.minimum(np.floor(raw.max() - raw), 31).astype(int)
    assert seen.logit_histogram == tuple(int(np.sum(depth == b)) for b in range(32))
    assert [c.id for c in seen.candidates[: head.candidates]] == ranked[: head.candidates]

    z, removed_by, steady = raw, {}, raw
    for index, (stage, report) in enumerate(zip(head.chain, seen.stages, strict=True)):
        made = after(stage, z, head.prompt_token_ids, output)
        gone = np.isneginf(made) & ~np.isneginf(z)
        before = np.exp(z - log_sum(z))
        assert report.survivors == np.sum(~np.isneginf(made))
        assert report.removed_mass == near(np.sum(before[gone]))
        assert report.log_sum_exp == near(log_sum(made))
        lowest = near(made[~np.isneginf(made)].min()) if gone.any() else None
        assert report.min_kept_logit == lowest
        most = np.lexsort((np.arange(len(z)), -np.where(gone, z, -np.inf)))[:8]
        assert report.top_removed == tuple(i for i in most.tolist() if gone[i])
        removed_by |= dict.fromkeys(np.flatnonzero(gone).tolist(), index)
        if stage["stage"] in ("logit_bias", "penalties"):
            steady = made
        z = made

    final, scores = z - log_sum(z), {}
    assert seen.final_log_sum_exp == near(log_sum(z))
    assert seen.final_logprob == near(final[step.token_id])
    assert seen.final_rank == 1 + np.sum(final > final[step.token_id])
    for c in seen.candidates:
        assert c.logit == row[c.id]
        assert c.rank == 1 + ranked.index(c.id)
        assert c.removed_by == removed_by.get(c.id)
        assert c.delta == near(steady[c.id] - raw[c.id])
        assert (c.luck is None) == (step.source == "greedy")
        if c.removed_by is None:
            assert c.final_logprob == near(final[c.id])
            scores[c.id] = c.final_logprob + (c.luck or 0)
        else:
            assert c.final_logprob is None
    whole = len(scores) == np.sum(~np.isneginf(z))  # all who took part in the draw are here
    assert not whole or max(scores, key=scores.get) == step.sampled_id == step.token_id
    return whole


@pytest.mark.model
@pytest.mark.parametrize("name", SETTINGS)
def test_every_figure_of_ten_steps(llm, name, tmp_path):
    llm.generate(
        "Once upon a time there was a little", trace=tmp_path / "t", max_tokens=60, seed=11,
        candidates=300, ignore_eos=True, track=(5, 260), **SETTINGS[name],
    )  # fmt: skip
    trace = Trace.read(tmp_path / "t")
    prompt, output = trace.head.prompt_token_ids, list(trace.output_token_ids)
    logits = llm.logits([*prompt, *output])
    steps = random.Random(name).sample(trace.steps, 10)
    draws = [
        check(s, trace.head, logits[s.position - 1], output[: s.index])
        for s in steps
    ]  # fmt: skip
    assert sum(draws) >= 5 or name == "greedy"
