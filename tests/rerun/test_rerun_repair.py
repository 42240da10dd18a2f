"""Mistakes in canvases: each made again by hand, and their rates."""

import json
from importlib import import_module
from itertools import groupby
from math import sqrt

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.engine.canvas import rule_of_text
from cutaway.features.experiments import repair, usual_repairs
from cutaway.rerun.statistics import rate

HOW = {"max_tokens": 9, "seed": 3, "temperature": 0.9}
NO_REMASK = ["confidence", "confidence,steps=3", "threshold,threshold=0.02,block=3"]
REMASK = [
    "mask-predict,steps=4", "remdm,steps=8,remask-rate=0.5",
    "edit,threshold=0.01,edit-threshold=0.01",
]  # fmt: skip
MASK = 0  # of the tiny model


@pytest.fixture(scope="module")
def llm(tiny_diffusion_path):
    return LLM(tiny_diffusion_path)


@pytest.fixture(scope="module")
def done(llm):
    return repair(llm, "ab", rules=[*NO_REMASK, *REMASK], errors=4, seeds=2, **HOW)


def run(llm, rule, seed, **forced):
    rule = {"denoise": rule_of_text(rule).to_json() | forced}
    return llm.generate("ab", **HOW | {"seed": seed}, ignore_eos=True, **rule)


def test_what_became_of_a_mistake_is_what_the_same_luck_makes_of_it(llm, done):
    assert [one.rule for one in done] == [*NO_REMASK, *REMASK]
    for of in done:
        assert len(of.mistakes) == 8
        for one in of.mistakes:
            plain = run(llm, of.rule, one.seed)
            fork = run(llm, of.rule, one.seed, forced_cells=[(one.passed, one.cell, one.token_id)])
            differ = [i for i in range(9) if plain.token_ids[i] != fork.token_ids[i]]
            others = [i for i in differ if i != one.cell]
            assert one.gone == (fork.token_ids[one.cell] != one.token_id)
            passed = {c.position: c.token_id for c in plain.passes[one.passed].revealed}
            own = passed[len(plain.prompt_token_ids) + one.cell]
            assert one.instead_of == own
            assert one.own_gone == (own != plain.token_ids[one.cell])
            assert one.restored == (one.cell not in differ)
            assert one.differ == len(others)
            masked = masked_after(plain, one.passed)
            assert (one.later, one.of_later) == (len({*others} & masked), len(masked))


def masked_after(plain, passed):
    """Of each cell by itself: whether the last that a pass said of it is that it is masked."""
    first, masked = len(plain.prompt_token_ids), {*range(9)}
    for position in range(first, first + 9):
        said = True
        for made in plain.passes[: passed + 1]:
            said = {cell.position: cell.now is None for cell in made.cells}.get(position, said)
            said = said or position in made.masked_again
        if not said:
            masked.remove(position - first)
    return masked


def test_a_mistake_is_the_likeliest_token_that_is_wrong(llm, done):
    """In the first pass, of which all cells are masked."""
    ids = llm.tokenize("ab")
    [rows] = llm.logits_at([((*ids, *[MASK] * 9), tuple(range(len(ids), len(ids) + 9)))])
    found = [(of, one) for of in done[:2] for one in of.mistakes if one.passed == 0]
    assert found
    for of, one in found:
        row = rows[one.cell].copy()
        plain = run(llm, of.rule, one.seed)
        assert one.instead_of == plain.token_ids[one.cell]
        row[[MASK, one.instead_of]] = -np.inf
        assert one.token_id == row.argmax()


def test_without_remasking_a_mistake_stays_and_what_stood_before_it_does(done):
    for of in done[:3]:
        assert of.gone.mean == of.own_gone.mean == of.restored.mean == 0
        assert all(one.differ == one.later for one in of.mistakes)
    assert sum(one.differ for of in done[:3] for one in of.mistakes)


def test_rules_that_take_tokens_back_repair_some(done):
    for of in done[3:]:
        assert of.gone.mean == sum(one.gone for one in of.mistakes) / 8
        assert of.restored.mean <= of.gone.mean
    assert all(of.gone.mean > 0 for of in done[3:])


def test_mistakes_are_spread_over_the_canvas_each_in_its_own(done):
    for of in done:
        for _, run in groupby(of.mistakes, lambda one: one.seed):
            assert [one.cell for one in run] == [0, 2, 4, 6]
    assert len({one.seed for of in done for one in of.mistakes}) == 2


def test_the_loop_takes_nothing_back(tiny):
    assert usual_repairs(tiny, 8) == ("left,block=1",)
    [loop] = repair(tiny, "ab", seeds=1, max_tokens=8, seed=3)
    assert [(one.cell, one.passed, one.of_later) for one in loop.mistakes] == [
        (i, i, 7 - i) for i in range(8)
    ]
    assert (loop.gone.mean, loop.restored.mean) == (0, 0)
    for one in loop.mistakes:
        text = tiny.generate("ab", max_tokens=8, seed=3, ignore_eos=True).token_ids
        fork = tiny.generate(
            "ab", max_tokens=8, seed=3, ignore_eos=True, forced=(*text[: one.cell], one.token_id)
        ).token_ids
        assert one.differ == sum(a != b for a, b in zip(text, fork, strict=True)) - 1


@pytest.mark.parametrize(("came", "of"), [(0, 8), (3, 7), (8, 8), (1, 2)])
def test_the_interval_of_a_rate_is_wilsons(came, of):
    """Its ends are the rates from which what was seen is 1.96 standard deviations away."""
    found = rate(came, of)
    assert found.mean == came / of
    for end in (found.low, found.high):
        away = abs(found.mean - end)
        assert away == pytest.approx(1.959964 * sqrt(end * (1 - end) / of), abs=1e-9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"errors": 0}, "errors must be between 1 and 9"),
        ({"seeds": 0}, "seeds must be between 1 and 64"),
        ({"rules": []}, "rules must name at least one"),
        ({"rules": ["nobody"]}, "rule must be one of"),
        ({"n": 2}, "n: rules and seeds say"),
        ({"seed": "x"}, "seed must be"),
    ],
)
def test_what_is_no_experiment(llm, given, words):
    with pytest.raises(InputError, match=words):
        repair(llm, "ab", **HOW | given)


def test_a_rule_that_the_model_cannot_have(tiny):
    with pytest.raises(InputError, match="it writes from left to right"):
        repair(tiny, "ab", rules=["edit"], **HOW)


def test_the_command_prints_a_row_for_each_rule(llm, tiny_diffusion_path, capsys):
    settings = ("--seed", "3", "--temperature", "0.9", "--max-tokens", "9")
    size = ("--rule", NO_REMASK[0], "--rule", REMASK[0], "--errors", "4", "--seeds", "2")
    command = ["repair", "ab", "-m", str(tiny_diffusion_path), *settings, *size]
    done = repair(llm, "ab", rules=[NO_REMASK[0], REMASK[0]], errors=4, seeds=2, **HOW)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps([one.to_dict() for one in done])
    )
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["confidence", "8", "0%"]
    assert lines[2].split()[:3] == ["mask-predict,steps=4", "8", f"{done[1].gone.mean:.0%}"]


def test_a_small_canvas_has_as_many_mistakes_as_cells(llm):
    [done] = repair(llm, "ab", rules=["left"], seeds=1, max_tokens=3, seed=3)
    assert [one.cell for one in done.mistakes] == [0, 1, 2]


def test_no_token_that_could_be_wrong(llm, monkeypatch):
    monkeypatch.setattr(
        import_module("cutaway.features.experiments.repair"), "_possible", lambda _: []
    )
    with pytest.raises(InputError, match="rule 'left': no cell has a likely token that is wrong"):
        repair(llm, "ab", rules=["left"], **HOW)
