"""The next cell of a canvas by hand: right is what the rule says of these figures."""

import io

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.engine.canvas import Rule
from cutaway.errors import InputError
from cutaway.features.practice import SAMPLE_CELLS, cell_exercises, cells_of_trace
from cutaway.features.practice.cells import THRESHOLD, revealed
from cutaway.trace import Trace

ANSWERS = ("cat", "sat", "on", "warm", "4")


@pytest.fixture(scope="module")
def canvas(tiny_diffusion_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("cells") / "canvas.jsonl"
    llm = LLM(tiny_diffusion_path, threads=1, progress=False)
    llm.generate("ab", denoise={"steps": 4}, max_tokens=12, seed=3, trace=path)
    return path


def test_each_rule_reveals_another_cell():
    asked = cell_exercises(SAMPLE_CELLS)
    assert tuple(one.answer.solution for one in asked[:4]) == ANSWERS[:4]
    assert len({*ANSWERS}) == len(ANSWERS)


@pytest.mark.parametrize("index", [None, 0, 5, 11])
def test_the_cells_of_a_run_are_judged_as_their_figures_say(canvas, index):
    trace = Trace.read(canvas)
    cells = cells_of_trace(trace, index)
    made = trace.passes[cells.made]
    if index is not None:
        assert cells.made == trace.steps[index].pass_index
    masked = [c for c in made.cells if c.was is None]
    best = max(range(len(cells.p)), key=lambda i: cells.p[i])
    assert revealed(cells, Rule())[0] == [best]
    assert max(cells.p) == pytest.approx(max(c.figure for c in masked))
    margins = [a - b for a, b in zip(cells.p, cells.second, strict=True)]
    assert revealed(cells, Rule(order="margin"))[0] == [margins.index(max(margins))]
    sure = [i for i, p in enumerate(cells.p) if p >= THRESHOLD] or [best]
    assert revealed(cells, Rule(threshold=THRESHOLD))[0] == sure
    for exercise in cell_exercises(cells):
        assert exercise.answer.judge(exercise.answer.solution).right


def test_a_run_from_left_to_right_has_no_cells(tiny_path, tmp_path):
    run = tmp_path / "run.jsonl"
    LLM(tiny_path, threads=1).generate("ab", max_tokens=2, trace=run)
    with pytest.raises(InputError, match="this trace is of no canvas"):
        cells_of_trace(Trace.read(run))


def test_the_command_asks_and_judges(capsys, monkeypatch, canvas):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*ANSWERS, "0"]) + "\n"))
    assert main(["practice", "cells"]) == 0
    said = capsys.readouterr().out
    assert said.count("Right.") == 5
    assert "Of 6: 5 right, 1 missed." in said
    assert main(["practice", "cells", "--answers", "--from", str(canvas), "--step", "5"]) == 0
    assert "of your run" in capsys.readouterr().out
