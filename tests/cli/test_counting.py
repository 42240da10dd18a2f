"""Steps, passes and cells in the terminal: what is typed and what is printed counts from 1."""

import re

import pytest

from cutaway import LLM
from cutaway.trace import Trace
from support.canvas_traces import RULES, events_of, file_of

ZERO = re.compile(r"\b(steps?|pass(es)?|cells?|(?<!first )token) 0\b", re.IGNORECASE)
SAMPLED = {"seed": 3, "max_tokens": 6, "ignore_eos": True, "temperature": 1}


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """A run, a fork at its first step, a run with a wrong hash at its first step, a canvas."""
    folder, llm = tmp_path_factory.mktemp("counting"), LLM(tiny, threads=1)
    llm.generate("ab ba", trace=folder / "run", **SAMPLED)
    run = Trace.read(folder / "run")
    other = (run.output_token_ids[0] + 1) % 200
    llm.generate("ab ba", trace=folder / "fork", forced=[other], **SAMPLED)
    wrong = (folder / "run").read_text().replace(f"{run.steps[0].logits_hash:016x}", "0" * 16)
    (folder / "wrong").write_text(wrong)
    (folder / "canvas").write_bytes(file_of(*events_of(RULES[0], cells=10)))
    return folder


PRINTED = [
    ("trace play run --static", "    1  "),
    ("trace play run --step 1", " step 1/6 "),
    ("trace play canvas --static", "    1  "),
    ("trace play canvas --pass 1", "    1  "),
    ("trace why run --closest 6", "  step 1: "),
    ("trace why canvas 1", "Cell 1, at position 4"),
    ("trace diff run fork", "They part at step 1:"),
    ("trace branch run -m MODEL --at 1 --token b", "[fork at step 1, after "),
    ("trace rescore run -m MODEL", "\n   1  "),
    ("trace inside run -m MODEL --step 1", "step 1: "),
    ("trace ablate run -m MODEL --step 1", "step 1: "),
    ("trace replay wrong -m MODEL", "step 1 of 6 differs:"),
    ("snowball ab -m MODEL --max-tokens 8 --seed 3 --at 1", "\n  1  "),
    ("practice --from run --step 1 --answers", "at step 1 of your run"),
]


@pytest.mark.parametrize(("command", "first"), PRINTED, ids=lambda value: value.strip())
def test_the_first_is_1(cutaway, folder, tiny, command, first, monkeypatch):
    monkeypatch.chdir(folder)
    code, out, err = cutaway(*(tiny if word == "MODEL" else word for word in command.split()))
    assert code == ("wrong" in command), err
    assert first in out + err
    assert not ZERO.search(out + err)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("trace play run --step 0", "steps"),
        ("trace play canvas --pass 0", "passes"),
        ("trace why canvas 0", "cells"),
        ("trace branch run --at 0 --token b", "steps"),
        ("trace branch canvas --at 1 --pass 0 --token b", "passes"),
        ("trace inside run --step 0", "steps"),
        ("trace ablate run --step 0", "steps"),
        ("trace export run --html out.html --inside 0-2", "steps"),
        ("snowball ab --at 3,0", "steps"),
        ("practice --from run --step 0", "steps"),
        ("denoise ab --forced-cells 0:1:5", "passes"),
        ("denoise ab --forced-cells 1:0:5", "cells"),
    ],
)
def test_there_is_no_0(refused, folder, command, what, monkeypatch):
    monkeypatch.chdir(folder)
    assert f"{what} count from 1, and there is no 0" in refused(*command.split())


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("trace play run --step 7", "--step must be 1 to 6, not 7"),
        ("trace branch run --at 7 --token b", "--at must be 1 to 6, not 7"),
        ("trace branch canvas --at 1 --pass 99 --token b", "--pass must be 1 to "),
        ("trace inside run --step 7", "--step must be 1 to 6, not 7"),
        ("trace export run --html out.html --inside 5-7", "5-7 is not within 1 to 6"),
        ("snowball ab --max-tokens 8 --at 8", "--at must be 1 to 7, not 8"),
        ("practice --from run --step 7", "--step must be 1 to 6, not 7"),
    ],
)
def test_the_last_is_their_number(refused, folder, command, sentence, monkeypatch):
    monkeypatch.chdir(folder)
    assert sentence in refused(*command.split())
