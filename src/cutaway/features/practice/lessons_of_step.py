"""The lessons of ``cutaway practice`` on the inside of a step, kept until their answers come."""

from collections import OrderedDict
from typing import NamedTuple

from fastapi import Request

from cutaway.api.llm import LLM
from cutaway.features.inside.endpoints.inside import StepOfText, beside, traced
from cutaway.features.practice import Exercise
from cutaway.features.practice.lessons import Scene, possible
from cutaway.features.practice.lessons.ways import ways
from cutaway.server.answering import run_exclusive
from cutaway.server.service import service_of

_KEPT = 16  # steps


class Lessons(NamedTuple):
    """A text, an introduction and exercises on it."""

    text: str
    introduction: str
    exercises: tuple[Exercise, ...]


async def lessons(body: StepOfText, request: Request) -> Lessons:
    """Of a step of a text whose tokens are known."""
    known: OrderedDict[str, Lessons] = request.app.state.lessons
    key = body.model_dump_json()
    if key not in known:
        known[key] = await beside(request, body, _made)
        while len(known) > _KEPT:
            known.popitem(last=False)
    return known[key]


async def lesson_ways(model: str | None, request: Request) -> Lessons:
    """What the model writes in each way that it has."""
    known: OrderedDict[str, Lessons] = request.app.state.lessons
    key = f"ways of {service_of(request, model).names.named(model)}"
    if key not in known:
        known[key] = await run_exclusive(request, model, _ways)
    return known[key]


def _ways(llm: LLM) -> Lessons:
    here = ways(llm)
    return Lessons(here.text, here.introduction, here.exercises)


def _made(llm: LLM, body: StepOfText) -> Lessons:
    scene = Scene(llm, traced(llm, body), body.step)
    return Lessons(scene.text, scene.introduction, possible(scene))
