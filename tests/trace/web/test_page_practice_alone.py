"""Practice in a page without a server: what cutaway.features.practice asks, judges and explains."""

import json
import random
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from cutaway.errors import InputError
from cutaway.features.page.folder import WEB
from cutaway.features.practice import Numbers
from cutaway.features.practice.cells import SAMPLE_CELLS, cell_exercises
from cutaway.features.practice.exercises import exercises
from cutaway.features.practice.page_exercises import told_judge, told_question
from cutaway.features.practice.start import SAMPLE
from support.browser import expect, wait_for_model
from support.page_modules import run_node
from support.wasm import NEEDS

needs_ziglang = pytest.mark.skipif(find_spec("ziglang") is None, reason=NEEDS)
JUDGE = """
import {{ readFileSync }} from "node:fs";
const {{ judgeAnswer }} = await import({module!r});
const asked = JSON.parse(readFileSync({asked!r}, "utf8"));
console.log(JSON.stringify(asked.flatMap(([judge, {{ labels, names }}, answers]) =>
  answers.map((answer) => judgeAnswer(judge, answer, labels ?? names)))));
"""
PIECES = ("0.45", "45", "%", " %", "−1", "-.5", "1.", "1e-1", " ", "  ", ",", "; ", "bits", "450",
          "2", "nan", "inf", "0x1", "1_0", ".", "–", "+0.2", "1,5", "²", "٣", "E2",
          "\u00a0")  # fmt: skip


def verdict(answer, text):
    try:
        found = answer.judge(text)
    except InputError as error:
        return {"right": None, "remark": f"That cannot be read: {error}."}
    return {"right": found.right, "remark": found.remark}


def figures(exercise, chance):
    """The solution, those beside it, and what looks like figures."""
    answer = exercise.answer
    yield answer.solution
    for _ in range(60):
        off = [value + chance.choice((0, 0, 0.7, -0.99, 1.01, 3)) * answer.unit.slack
               for value in answer.values]  # fmt: skip
        yield " ".join(f"{value:.4f}" for value in off)
        yield " ".join(f"{100 * value:.2f}%" for value in off)
        yield "".join(chance.choices(PIECES, k=chance.randint(0, 8)))


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_page_judges_as_python_does(tmp_path):
    chance, asked, expected = random.Random(5), [], []
    for exercise in (*exercises(SAMPLE), *cell_exercises(SAMPLE_CELLS)):
        if isinstance(exercise.answer, Numbers):
            answers = [*figures(exercise, chance)]
        else:
            answers = [f"#{row}" for row in range(len(exercise.answer.names) + 2)]
        asked.append((told_judge(exercise), told_question(exercise), answers))
        expected += [verdict(exercise.answer, one) for one in answers]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    (tmp_path / "judge.mjs").write_text(
        JUDGE.format(
            module=Path(str(WEB / "js/local/practice.js")).as_uri(),
            asked=str(tmp_path / "asked.json"),
        )
    )
    assert json.loads(run_node(tmp_path / "judge.mjs")) == expected
    assert {one["right"] for one in expected} == {True, False, None}


@pytest.fixture
def lesson(open_page, hosted, toy_folder):
    """The page with its panel Practice."""

    def opened(**how):
        page = wait_for_model(open_page(hosted(toy_folder), **how))
        page.tab.get_by_role("tab", name="Practice", exact=True).click()
        return page, page.tab.locator("practice-lesson")

    return opened


@needs_ziglang
def test_every_exercise_can_be_done_wrong_and_right(lesson, toy_folder):
    page, shown = lesson()
    sheets = json.loads((toy_folder / "model/practice.json").read_text())
    buttons = {"start": "A step of the model's", "inside": "The inside of that step",
               "cells": "Cells of a canvas", "ways": "Three ways to write",
               "sample": "The sample"}  # fmt: skip
    assert sheets.keys() == buttons.keys()
    for name, button in buttons.items():
        shown.get_by_role("button", name=button).click()
        shown.get_by_text(sheets[name]["told"]["text"]).wait_for()
        for i, one in enumerate(sheets[name]["answers"]):
            asked = sheets[name]["told"]["exercises"][i]
            shown.get_by_text(asked["question"], exact=True).wait_for()
            answered(shown, asked, one, right=False)
            shown.get_by_text("Not quite. Hint:").wait_for()
            answered(shown, asked, one, right=True)
            shown.get_by_text("Right. The answer:").wait_for()
            shown.get_by_role("button", name="Next" if i + 1 < len(sheets[name]["answers"])
                              else "Show the result").click()  # fmt: skip
        shown.get_by_text(f"{i + 1} right at the second try").wait_for()
    methods = shown.locator("tbody tr").all_inner_texts()
    assert [row.split("\t") for row in methods] == [
        list(row) for row in sheets["sample"]["comparison"]["rows"]
    ]
    assert not page.barriers("practice-lesson")


def answered(shown, asked, one, *, right):
    """By the mouse."""
    judge = one["judge"]
    if asked["kind"] == "token":
        row = judge["row"] if right else (judge["row"] + 1) % len(asked["names"])
        shown.locator(".answers button").nth(row).click()
        return
    for field, word in zip(
        shown.get_by_role("textbox").all(), one["solution"]["solution"].split(), strict=True
    ):
        field.fill(word if right else "-7")
    shown.get_by_role("button", name="Check").click()


@needs_ziglang
def test_the_sample_is_done_by_keyboard_on_a_phone(lesson):
    page, shown = lesson(width=390, height=844, color_scheme="dark")
    keys, every = page.tab.keyboard, exercises(SAMPLE)
    shown.get_by_role("button", name="Exercise 1,").focus()
    keys.press("Enter")
    for i, exercise in enumerate(every):
        shown.get_by_text(exercise.question, exact=True).wait_for()
        if isinstance(exercise.answer, Numbers):
            for word in exercise.answer.solution.split():
                tab_to(page, "(e) => e.matches('practice-lesson input')")
                keys.type(word)
        else:
            name = json.dumps(exercise.answer.names[exercise.answer.row])
            tab_to(page, f"(e) => e.matches('.answers button') && e.innerText === {name}")
        keys.press("Enter")
        shown.get_by_text("Right. The answer:").wait_for()
        assert page.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        following = "Next" if i + 1 < len(every) else "Show the result"
        expect(shown.get_by_role("button", name=following)).to_be_focused()
        keys.press("Enter")
    shown.get_by_text("Of 12: 12 right.").wait_for()
    assert not page.barriers("practice-lesson")


def tab_to(page, wanted):
    """Press Tab until the element that has the focus is such a one."""
    for _ in range(40):
        page.tab.keyboard.press("Tab")
        if page.tab.evaluate(f"() => ({wanted})(document.activeElement)"):
            return
    raise AssertionError(f"Tab does not lead to {wanted}")
