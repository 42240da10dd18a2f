"""Exercises as JSON: what a page shows of them, with and without what is right.

Judges nothing; who does so in the place of ``answers`` has its figures from here.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cutaway.features.practice.answers import REMARKS, ROUNDING, Numbers
from cutaway.features.practice.exercises import Exercise
from cutaway.features.practice.start import Start
from cutaway.features.practice.tables import Block

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
