"""``cutaway revise``."""

import json
import signal
from contextlib import contextmanager
from functools import partial

import pytest

from cutaway import LLM
from cutaway.cli.terminal import console
from support.revised import DRAFT


@pytest.fixture(scope="module")
def tiny(tiny_path):
    with LLM(tiny_path, progress=False) as llm:
        yield llm


@pytest.fixture
def command(tiny_path, cutaway):
    return partial(cutaway, "revise", "-m", tiny_path, "ba", "--seed", "3")


def test_the_command_shows_both_texts_side_by_side(tiny, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = command("--draft", DRAFT, "--trials", "--share", "0.5")
    done = tiny.revise("ba", DRAFT, seed=3, share=0.5)
    assert code == 0
    both, _, table = out.partition("\n\n")
    head, *lines = both.splitlines()
    assert head.split() == ["draft", "│", "revision"]
    left, right = ("".join(line.split(" │ ")[i].strip() for line in lines) for i in (0, 1))
    changed = [p for p in done.pieces(tiny.tokenizer) if p.changed]
    assert changed
    assert left.count("‹") == right.count("›") == len(changed)
    assert left.replace(" ", "").count("ab") <= DRAFT.count("ab")
    assert len(table.splitlines()) == 1 + len(done.trials)
    assert max(map(len, lines)) <= 60
    assert f"{len(done.trials)} trials" in err
    assert "seed 3]" in err
    assert "\x1b" not in out + err


def test_json_has_every_trial(tiny, command):
    code, out, err = command(
        "--draft", DRAFT, "--json", "-q", "--rule", "metropolis", "--span", "2"
    )
    done = tiny.revise("ba", DRAFT, seed=3, rule="metropolis", span=2)
    said = json.loads(out)
    assert (code, err) == (0, "")
    assert said | {"cost": 0} == json.loads(json.dumps(done.to_dict())) | {"cost": 0}
    assert {"was", "proposed", "now", "accepted", "luck"} <= {*said["trials"][0]}


def test_ctrl_c_keeps_what_there_is(tiny, command, monkeypatch):
    @contextmanager
    def interrupted(**_):
        def report(what, done, total):
            if done == 2:
                signal.raise_signal(signal.SIGINT)

        yield report

    whole = tiny.revise("ba", DRAFT, seed=3, sweeps=3)
    monkeypatch.setattr(console, "progress", interrupted)
    code, out, err = command("--draft", DRAFT, "--sweeps", "3", "--trials")
    assert code == 0
    assert f"[2 of {whole.planned} trials" in err
    assert len(out.partition("\n\n")[2].splitlines()) == 1 + 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["ba", "--rule", "best"], "rule must be one of"),
        (
            ["ba", "--draft", "ab", "--top-p", "0.5"],
            "--top-p: leave it out, since",
        ),
        (["ba", "--share", "much"], "--share must be a number"),
        ([], "give a prompt to write a draft from"),
    ],
)
def test_the_command_refuses_in_a_sentence(refused, tiny_path, args, sentence):
    assert sentence in refused("revise", "-m", tiny_path, *args)
