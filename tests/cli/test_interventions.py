"""--intervention, in generate and trace branch: what comes out, and what is refused."""

import json

import pytest

from cutaway.trace import Trace

FEW = ["--seed", "1", "--max-tokens", "6", "-q"]


@pytest.fixture
def said(cutaway, tiny_path):
    return lambda *words: cutaway(*words, "-m", tiny_path)


def test_generate(said):
    plain, changed, none = (
        json.loads(said("generate", "ab", *FEW, "--json", *more)[1])
        for more in (
            [], ["--intervention", "L0.H1 x 0", "--intervention", "knock_out 1"],
            ["--intervention", "L0 x 1"],
        )
    )  # fmt: skip
    assert plain["fingerprint"] == none["fingerprint"] != changed["fingerprint"]
    assert changed["params"]["interventions"] == ["L0.H1 x 0", "knock_out 1"]
    assert changed["params_source"]["interventions"] == "given"


def test_lines_of_a_file(said, tmp_path):
    asked, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{}, {"interventions": ["L0 x 2"]}, {"interventions": []}]
    asked.write_text("".join(f"{json.dumps({'prompt': 'ab'} | line)}\n" for line in lines))
    files = ["--input", asked, "--output", answers]
    code, _, _ = said("generate", *files, *FEW, "--intervention", "L0 x 3")
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    found.sort(key=lambda one: one["line"])
    assert code == 0
    assert [one["params"]["interventions"] for one in found] == [["L0 x 3"], ["L0 x 2"], []]
    assert len({one["fingerprint"] for one in found}) == 3


def test_a_branch(said, printed, refused, tmp_path):
    run, fork = tmp_path / "run.jsonl", tmp_path / "fork.jsonl"
    assert said("generate", "ab", *FEW, "--ignore-eos", "--trace", run).code == 0
    assert "--intervention" in refused("trace", "branch", run, "--at", "2")
    branch = ["trace", "branch", run, "--at", "2", "--intervention", "L1 x 3", "--trace", fork]
    assert said(*branch, "-q").code == 0
    assert [str(one) for one in Trace.read(fork).head.interventions] == ["L1 x 3 from 2"]
    assert said("trace", "replay", fork).code == 0
    shown = printed("trace", "diff", run, fork)
    assert "differ from step 2 on, where B is changed inside: L1 x 3 from 2" in shown
    assert "changed: L1 x 3 from 2" in printed("trace", "play", fork)
    code, told, _ = said("trace", "inside", fork, "--step", "3")
    assert code == 0 and "recomputed bit for bit" in told


@pytest.mark.parametrize("change", ["L0", "L0 x", "knock_out", "L0.H9 x 0", "L7 x 0"])
def test_what_is_refused(said, change):
    code, out, err = said("generate", "ab", "--intervention", change)
    assert code != 0 and not out
    reason = "write" if change in ("L0", "L0 x", "knock_out") else "there is no"
    assert err.startswith(f"cutaway: error: --intervention: {reason}") and err.count("\n") == 1


def test_by_the_earlier_flag(said):
    done = json.loads(said("generate", "ab", *FEW, "--json", "--change", "blind 1")[1])
    assert done["params"]["interventions"] == ["knock_out 1"]
