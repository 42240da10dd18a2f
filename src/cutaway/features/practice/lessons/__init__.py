"""Lessons on the inside of a step of a run: first a question, then what the model did.

All figures come from the model and from ``cutaway.features.inside``.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cutaway.errors import InputError
from cutaway.features.practice.exercises import Exercise
from cutaway.features.practice.lessons.attention import (
    attention_lesson,
    cut_lesson,
    induction_lesson,
    mask_lesson,
)
from cutaway.features.practice.lessons.layers import experts_lesson, lens_lesson
from cutaway.features.practice.lessons.scene import Scene, scene

__all__ = ["LESSONS", "Scene", "lessons", "possible", "scene"]

LESSONS: Mapping[str, Callable[[Scene], list[Exercise]]] = {
    "mask": mask_lesson,
    "attention": attention_lesson,
    "lens": lens_lesson,
    "induction": induction_lesson,
    "cut": cut_lesson,
    "experts": experts_lesson,
}
"""Map each topic to a function that makes its questions on a scene, or raises InputError."""


def possible(here: Scene) -> tuple[Exercise, ...]:
    """Make the questions of all topics that this model and run allow."""
    questions: list[Exercise] = []
    for lesson in LESSONS.values():
        with suppress(InputError):
            questions += lesson(here)
    return tuple(questions)


def lessons(here: Scene, topics: Sequence[str]) -> tuple[Exercise, ...]:
    """Make the questions of topics, in the order in which they build on each other.

    InputError if a topic does not exist, or this model and run have no question on it.
    """
    for topic in topics:
        if topic not in LESSONS:
            raise InputError("topic", f" must be one of {', '.join(LESSONS)}, not {topic!r}")
    return tuple(
        exercise for topic in LESSONS if topic in topics for exercise in LESSONS[topic](here)
    )
