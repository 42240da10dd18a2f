"""The exercises of a page that runs a model by itself: asked, judged and explained beforehand.

Knows which exercises need no run of the reader's own. trace/web/js/local/practice.js compares an
answer with what is written here; refuses to make exercises in a second way.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cutaway.api.llm import LLM
from cutaway.features.practice import (
    SAMPLE,
    SAMPLE_CELLS,
    Exercise,
    Start,
    cell_exercises,
    comparison,
    exercises,
    from_trace,
)
from cutaway.features.practice.lessons import Scene, possible
from cutaway.features.practice.lessons.scene import TEXT
from cutaway.features.practice.lessons.ways import ways
from cutaway.features.practice.start import step_of
from cutaway.features.practice.told import (
    told_block,
    told_judge,
    told_lesson,
    told_solution,
    told_start,
)
from cutaway.trace import Trace

Data = dict[str, Any]
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
