"""Exercises for pages: as JSON, with and without solutions; some are made when a page is exported.

Knows which exercises need no run of the reader. Makes no exercises of its own, and judges no
answers: trace/web/js/local/practice.js compares an answer with the JSON of this module.
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
    """JSON of a start, and of the questions on it."""
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
    """JSON of a text, an introduction, and the questions on the text."""
    questions = [*map(told_question, exercises)]
    return {"text": text, "introduction": introduction, "exercises": questions}


def told_question(exercise: Exercise) -> Data:
    """JSON of an exercise without its solution."""
    fields: Data = {
        "topic": exercise.topic,
        "question": exercise.question,
        "given": told_block(exercise.given_table),
        "hint": exercise.hint,
    }
    answer = exercise.answer
    if isinstance(answer, Numbers):
        return fields | {"kind": "numbers", "labels": answer.labels, "example": answer.unit.example}
    return fields | {"kind": "token", "names": answer.names}


def told_solution(exercise: Exercise) -> Data:
    """JSON of an exercise's solution, and of the arithmetic that leads to it."""
    arithmetic = [told_block(block) for block in exercise.arithmetic]
    return {"solution": exercise.answer.solution, "arithmetic": arithmetic}


def told_judge(exercise: Exercise) -> Data:
    """JSON by which local/practice.js judges: the right answer, tolerances, and remarks."""
    answer = exercise.answer
    judge_data = REMARKS | {"unread": answer.unread}
    if not isinstance(answer, Numbers):
        return judge_data | {"row": answer.row}
    unit = answer.unit
    rule = {"slack": unit.slack + ROUNDING, "percent": unit.percent, "is_share": unit.is_share}
    return judge_data | {"values": answer.values, **rule}


def told_block(block: Block) -> str | Data:
    """JSON of a paragraph or a table."""
    return block if isinstance(block, str) else asdict(block)


# -- the exercises of a page that runs a model by itself -------------------------------------------


_RUN: dict[str, Any] = {"seed": 7, "max_tokens": 8, "ignore_eos": True}


def sample_sheets() -> Data:
    """Map "sample" and "cells" each to a sheet: questions, with their judges and solutions."""
    cells = cell_exercises(SAMPLE_CELLS)
    lesson_data = told_lesson(SAMPLE_CELLS.text, SAMPLE_CELLS.introduction, cells)
    return {"sample": _start_sheet(SAMPLE), "cells": _sheet(lesson_data, cells)}


def run_sheets(llm: LLM) -> Data:
    """Make the sheets on a run's step of highest entropy, and on the inside of this step.

    InputError if the model has no such runs.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        llm.generate(TEXT, trace=path, **_RUN)
        trace = Trace.read(path)
    scene = Scene(llm, trace, step_of(trace, None).index, is_own=False)
    questions = possible(scene)
    lesson_data = told_lesson(scene.text, scene.introduction, questions)
    return {
        "start": _start_sheet(replace(from_trace(trace), run=None)),  # the run is not the reader's
        "inside": _sheet(lesson_data, questions),
    }


def ways_sheet(llm: LLM) -> Data:
    """Make the sheet on the model's ways to generate a text. InputError if the model has none."""
    here = ways(llm)
    lesson_data = told_lesson(here.text, here.introduction, here.exercises)
    return {"ways": _sheet(lesson_data, here.exercises)}


def _start_sheet(start: Start) -> Data:
    questions = exercises(start)
    return _sheet(told_start(start, questions), questions) | {
        "comparison": told_block(comparison(start))
    }


def _sheet(data: Data, questions: Sequence[Exercise]) -> Data:
    """Make a sheet in the form that local/practice.js reads."""
    answers = [
        {"judge": told_judge(question), "solution": told_solution(question)}
        for question in questions
    ]
    return {"told": data, "answers": answers}
