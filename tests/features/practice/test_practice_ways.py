"""Three ways to write: every figure is that of the engine's own runs."""

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.features.practice.lessons.ways import TEXT, ways

SETTINGS = {"seed": 1, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def canvas(tiny_diffusion_path):
    return LLM(tiny_diffusion_path, threads=1, progress=False)


@pytest.fixture(scope="module")
def left(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


def test_of_a_canvas(canvas):
    direction, mistake, latency = ways(canvas).exercises
    done = canvas.generate(TEXT, denoise="confidence", **SETTINGS)
    came = {c.position: m.index for m in done.passes for c in m.cells if c.now is not None}
    order = [came[position] for position in sorted(came)]
    late = sum(any(later < one for later in order[i:]) for i, one in enumerate(order))
    assert direction.answer.values == (late,)
    assert latency.answer.values == (sum(made.rows for made in done.passes),)
    [wrong] = canvas.tokenizer.encode("Z")[-1:]
    kept = 0
    for rule, at in (("left", 3), ({"steps": 6}, 0), ({"rule": "mask-predict", "steps": 6}, 0)):
        settings = {"rule": rule} if isinstance(rule, str) else rule
        forced = settings | {"forced_cells": [(at, 3, wrong)]}
        ids = canvas.generate(TEXT, denoise=forced, **SETTINGS).token_ids
        kept += ids[3] == wrong
    assert mistake.answer.values == (kept,)
    assert kept >= 2  # a rule that masks nothing again keeps what is there


def test_of_a_model_that_sees_the_past(left):
    mistake, latency = ways(left).exercises
    assert mistake.answer.values == (0,)
    assert latency.answer.values == (len(left.tokenize(TEXT)) + SETTINGS["max_tokens"] - 1,)
    done = left.generate(TEXT, **SETTINGS)
    assert f"is the same, {done.fingerprint}." in latency.arithmetic[-1]


@pytest.mark.parametrize("fixture", ["tiny_path", "tiny_diffusion_path"])
def test_the_command_shows_the_ways(capsys, request, fixture):
    path = request.getfixturevalue(fixture)
    assert main(["practice", "ways", "--answers", "-m", str(path)]) == 0
    assert "Latency." in capsys.readouterr().out
