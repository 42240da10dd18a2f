"""Exercises for pages: as JSON, with and without what is right; some asked and judged beforehand.

Knows which exercises need no run of the reader's own. trace/web/js/local/practice.js compares an
answer with what is written here; refuses to judge, and to make exercises in a second way.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cutaway.api.llm import LLM
from cutaway.features.practice import REMARKS, ROUNDING, Numbers
from cutaway.features.practice.cells import SAMPLE_CELLS, cell_exercises
from cutaway.features.practice.exercises import Block, Exercise, comparison, exercises
from cutaway.features.practice.lessons import Scene, possible
from cutaway.features.practice.lessons.scene import TEXT
from cutaway.features.practice.lessons.ways import ways
from cutaway.features.practice.start import SAMPLE, Start, from_trace, step_of
from cutaway.trace import Trace

Data = dict[str, Any]


def told_start(start: Start, exercises: Sequence[Exercise]) -> Data:
    """A start, and the questions on it."""
    run = start.run and {
        "step": start.run.step,
        "left_out": start.left_out,
        "chain": start.run.chain,
        "drawn": start.run.drawn,
    }
    return {
        "text": start.text,
        "names": start.names,
        "seed": str(start.seed),  # a page's numbers have 53 bits
        "position": start.position,
        "run": run,
        "exercises": [*map(told_question, exercises)],
    }


def told_lesson(text: str, introduction: str, exercises: Sequence[Exercise]) -> Data:
    """A text, an introduction, and the questions on it."""
    questions = [*map(told_question, exercises)]
    return {"text": text, "introduction": introduction, "exercises": questions}


def told_question(exercise: Exercise) -> Data:
    """An exercise without its solution."""
    fields: Data = {
        "topic": exercise.topic,
        "question": exercise.question,
        "given": told_block(exercise.given),
        "hint": exercise.hint,
    }
    asked = exercise.answer
    if isinstance(asked, Numbers):
        return fields | {"kind": "numbers", "labels": asked.labels, "example": asked.unit.example}
    return fields | {"kind": "token", "names": asked.names}


def told_solution(exercise: Exercise) -> Data:
    """The solution of an exercise, and how one gets there."""
    arithmetic = [told_block(block) for block in exercise.arithmetic]
    return {"solution": exercise.answer.solution, "arithmetic": arithmetic}


def told_judge(exercise: Exercise) -> Data:
    """What decides whether an answer is right, and what is said of it (local/practice.js)."""
    answer = exercise.answer
    said = REMARKS | {"unread": answer.unread}
    if not isinstance(answer, Numbers):
        return said | {"row": answer.row}
    unit = answer.unit
    rule = {"slack": unit.slack + ROUNDING, "percent": unit.percent, "is_share": unit.is_share}
    return said | {"values": answer.values, **rule}


def told_block(block: Block) -> str | Data:
    """A paragraph, or a table."""
    return block if isinstance(block, str) else asdict(block)


# -- the exercises of a page that runs a model by itself -------------------------------------------


_RUN: dict[str, Any] = {"seed": 7, "max_tokens": 8, "ignore_eos": True}


def of_samples() -> Data:
    """What is practised -> the questions, what judges each, and its solution."""
    cells = cell_exercises(SAMPLE_CELLS)
    told = told_lesson(SAMPLE_CELLS.text, SAMPLE_CELLS.introduction, cells)
    return {"sample": _of_start(SAMPLE), "cells": _sheet(told, cells)}


def of_run(llm: LLM) -> Data:
    """The same on the most uncertain step of a run of the model, and on its inside.

    InputError where the model has no such runs.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        llm.generate(TEXT, trace=path, **_RUN)
        trace = Trace.read(path)
    scene = Scene(llm, trace, step_of(trace, None).index, own=False)
    asked = possible(scene)
    told = told_lesson(scene.text, scene.introduction, asked)
    return {
        "start": _of_start(replace(from_trace(trace), run=None)),  # it is no run of the reader's
        "inside": _sheet(told, asked),
    }


def of_ways(llm: LLM) -> Data:
    """The same on what the model writes in each of its ways. InputError where it has none."""
    here = ways(llm)
    told = told_lesson(here.text, here.introduction, here.exercises)
    return {"ways": _sheet(told, here.exercises)}


def _of_start(start: Start) -> Data:
    every = exercises(start)
    return _sheet(told_start(start, every), every) | {"comparison": told_block(comparison(start))}


def _sheet(told: Data, every: Sequence[Exercise]) -> Data:
    """As local/practice.js reads it."""
    answers = [{"judge": told_judge(one), "solution": told_solution(one)} for one in every]
    return {"told": told, "answers": answers}
