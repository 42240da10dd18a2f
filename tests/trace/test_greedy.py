"""Temperature 0 is argmax on every face: one token has 100%, the others 0%, and none is drawn."""

import csv
import io
import json
import shutil

import pytest

from cutaway.cli.main import main
from cutaway.cli.terminal.drawing import Style
from cutaway.features.players.step_player import StepPlayer, step_line
from cutaway.rerun import rescore
from cutaway.trace import Trace, step_view, to_csv, to_openai, why
from cutaway.trace.endings import status_sentence
from cutaway.trace.exports import REMOVED
from support.page_modules import JS, run_node
from support.trace_by_hand import END, made_bytes, made_step

ROW = (1.8, 2.0, 1.5, 1.0, 0.0, -1.0)
"""The end token is the second likeliest; top-k 2 leaves it and " mat"."""
PLAIN = Style(ansi=False, colour=False, unicode=True)


def greedy_step(index, token_id, sampled_id=1, row=ROW):
    return made_step(index, token_id, row, source="greedy", sampled_id=sampled_id)


@pytest.fixture
def path(tmp_path):
    """Greedy steps: mat is taken; sofa is given in mat's place; the end token is the likeliest."""
    given = greedy_step(1, 2)._replace(source="forced")
    ending = greedy_step(2, END, END, (2.5, *ROW[1:]))
    file = tmp_path / "run.jsonl"
    file.write_bytes(made_bytes([greedy_step(0, 1), given, ending], "end_token", matched=END,
                                params={"temperature": 0, "top_k": 2}))  # fmt: skip
    return file


@pytest.fixture
def trace(path):
    return Trace.read(path)


def test_the_views(trace):
    views = [step_view(trace, step) for step in trace.steps]
    assert [view.final_probability for view in views] == [1, None, 1]
    shares = [{c.token: c.final_probability for c in view.candidates} for view in views]
    assert shares[0] == {" mat": 1, "<end>": 0} | dict.fromkeys(
        (" sofa", " roof", " moon", " idea")
    )
    assert shares[1] == shares[0]  # what was given changes no chance
    assert [view.end.final_probability for view in views] == [0, 0, 1]
    assert json.dumps([view.to_dict() for view in views])


def test_why_it_ended(trace, path, capsys):
    assert why(trace).outcomes == {"outranked": 1, "forced": 1, "drawn": 1}
    assert not any(moment.survived for moment in why(trace).moments[:2])
    assert main(["trace", "why", str(path)]) == 0
    told = capsys.readouterr().out
    assert "the end token was not the likeliest (1)" in told
    assert "after the chain another token was the likeliest, by 0.20" in told
    assert "draw" not in told  # nothing is


def test_the_exports(trace):
    content = to_openai(trace, "after")["content"]  # without the end token
    assert [entry["logprob"] for entry in content] == [0, REMOVED]
    for entry in content:
        assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [(" mat", 0)]
    rows = [*csv.DictReader(io.StringIO(to_csv(trace)))]
    assert [row["final_logprob"] for row in rows] == ["0.0", "", "0.0"]
    assert [row["end_outcome"] for row in rows] == ["outranked", "forced", "drawn"]


def test_the_terminal(trace):
    frame = StepPlayer(trace).frame(100, 40, PLAIN)
    (mat,) = (line for line in frame if line.startswith(" ●"))
    (end,) = (line for line in frame if "<end>" in line and "→" in line)
    assert "→ 100%" in mat
    assert "→ 0.0%" in end
    assert "→ 100%" in step_line(PLAIN, trace, trace.steps[0])
    player = StepPlayer(trace)
    player.press("x")
    assert player.at == 2  # the only step that could end the text


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_page_shows_what_python_does(trace, path, tiny, tmp_path):
    drawn = tmp_path / "drawn.jsonl"
    tiny.generate("ab", max_tokens=12, seed=3, temperature=0.8, top_k=300, trace=drawn)
    for file in (path, drawn):
        run = Trace.read(file)
        for step, shown in zip(
            run.steps, json.loads(run_node(JS / "finals.mjs", file)), strict=True
        ):
            view = step_view(run, step)
            assert shown["final"] == pytest.approx(view.final_probability)
            assert shown["candidates"] == pytest.approx(
                [c.final_probability for c in view.candidates]
            )
            assert shown["outcome"] == view.end.outcome
            assert shown["end"] == pytest.approx(view.end.final_probability)
            assert shown["sentence"] == status_sentence(run, view.end)


def test_a_text_that_is_read_again(tiny, tmp_path):
    path = tmp_path / "run.jsonl"
    tiny.generate("ab", max_tokens=8, temperature=0, ignore_eos=True, trace=path)
    done = rescore(tiny, Trace.read(path))
    assert [reading.final_bits for reading in done.old] == [0] * 8
    assert [reading.final_bits for reading in done.new] == [0] * 8
