"""``/page/practice``: the exercises of ``cutaway practice``, for the page.

Each request carries its own start; the server stores only a step's lessons, until their answers
come.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.errors import InputError
from cutaway.features.inside.endpoints import StepOfText, run_look, to_trace
from cutaway.features.practice import REMARKS
from cutaway.features.practice.cells import SAMPLE_CELLS, Cells, cell_exercises
from cutaway.features.practice.exercises import Exercise, comparison, exercises
from cutaway.features.practice.lessons import Scene, possible
from cutaway.features.practice.lessons.ways import ways
from cutaway.features.practice.page_exercises import (
    told_block,
    told_lesson,
    told_solution,
    told_start,
)
from cutaway.features.practice.start import SAMPLE, RunStep, Start, from_values, shorten
from cutaway.server.answering import run_exclusive
from cutaway.server.body import Body, StrictRoute
from cutaway.server.http.settings import ServerSettings
from cutaway.server.service import service_of

_MAX_LESSONS = 16  # steps whose lessons are stored


class Lessons(NamedTuple):
    """A text, an introduction and exercises on it."""

    text: str
    introduction: str
    exercises: tuple[Exercise, ...]


async def lessons(body: StepOfText, request: Request) -> Lessons:
    """Return the lessons on a step of a text whose tokens are known."""
    stored: OrderedDict[str, Lessons] = request.app.state.lessons
    key = body.model_dump_json()
    if key not in stored:
        stored[key] = await run_look(request, body, _make_lessons)
        while len(stored) > _MAX_LESSONS:
            stored.popitem(last=False)
    return stored[key]


async def lesson_ways(model: str | None, request: Request) -> Lessons:
    """Return the lessons on the model's ways to generate a text."""
    stored: OrderedDict[str, Lessons] = request.app.state.lessons
    key = f"ways of {service_of(request, model).names.resolve(model)}"
    if key not in stored:
        stored[key] = await run_exclusive(request, model, _ways)
    return stored[key]


def _ways(llm: LLM) -> Lessons:
    here = ways(llm)
    return Lessons(here.text, here.introduction, here.exercises)


def _make_lessons(llm: LLM, body: StepOfText) -> Lessons:
    scene = Scene(llm, to_trace(llm, body), body.step)
    return Lessons(scene.text, scene.introduction, possible(scene))


# -- the endpoints ---------------------------------------------------------------------------------


router = APIRouter(route_class=StrictRoute, include_in_schema=False)

_MOST_CANDIDATES = 4096  # a trace keeps up to a thousand
_MOST_CELLS = 64


def install(app: FastAPI, _: ServerSettings) -> None:
    """Set up the store in which the lessons on each step wait for their answers."""
    app.state.lessons = OrderedDict()


class OriginFields(Body):
    """The step of a run that a start is taken from."""

    step: int
    log_sum_exp: float
    chain: str
    own: int
    drawn: str


class StartFields(Body):
    """A step's candidates, and the seed and position of their luck (Gumbel noise)."""

    text: str
    token_ids: list[int] = Field(fail_fast=True, max_length=_MOST_CANDIDATES)
    names: list[str] = Field(fail_fast=True, max_length=_MOST_CANDIDATES)
    logits: list[float] = Field(fail_fast=True, max_length=_MOST_CANDIDATES)
    seed: int
    position: int
    run: OriginFields | None = None


class CellsFields(Body):
    """Masked cells of a pass over a canvas."""

    text: str
    best: list[str] = Field(fail_fast=True, max_length=_MOST_CELLS)
    drawn: list[str] = Field(fail_fast=True, max_length=_MOST_CELLS)
    p: list[float] = Field(fail_fast=True, max_length=_MOST_CELLS)
    second: list[float] = Field(fail_fast=True, max_length=_MOST_CELLS)
    p_drawn: list[float] = Field(fail_fast=True, max_length=_MOST_CELLS)
    entropy: list[float] = Field(fail_fast=True, max_length=_MOST_CELLS)
    made: int


class PracticeRequest(Body):
    """The start of the exercises, the step of a run whose inside they are on, the cells of a
    canvas (true: a sample of these), or what the model writes in each way; left out: the sample."""

    model: str | None = None
    start: StartFields | None = None
    inside: StepOfText | None = None
    cells: CellsFields | bool | None = None
    ways: bool = False

    def asked_cells(self) -> Cells:
        """Return the cells of the request. InputError where a value is out of range."""
        if not isinstance(self.cells, CellsFields):
            return SAMPLE_CELLS
        fields = self.cells.model_dump()
        lists = {name: tuple(column) for name, column in fields.items() if isinstance(column, list)}
        return Cells(
            text=shorten(fields["text"]), made=check_int("made", fields["made"], 0), **lists
        )

    def asked_step(self) -> StepOfText | None:
        """Return the step whose inside is asked about, with the model that the request names."""
        step = self.inside
        if step is None or step.model is not None:
            return step
        return step.model_copy(update={"model": self.model})

    def to_start(self) -> Start:
        """Make the start. InputError where its values are out of range."""
        if self.start is None:
            return SAMPLE
        values = self.start.model_dump(exclude={"run"})
        run = self.start.run
        return from_values(**values, run=None if run is None else RunStep(**run.model_dump()))


class AnswerRequest(PracticeRequest):
    """An answer to an exercise; with ``reveal`` the solution is sent even if it is wrong."""

    index: int
    answer: str | None = Field(None, max_length=1000)
    reveal: bool = False


@router.post("/page/practice")
async def practice(body: PracticeRequest, request: Request) -> Response:
    """The exercises, without their solutions."""
    if lesson := await _lessons(body, request):
        return JSONResponse(told_lesson(*lesson))
    return await _answer(lambda: _start_document(body.to_start()))


@router.post("/page/practice/answer")
async def answer(body: AnswerRequest, request: Request) -> Response:
    """Whether an answer is right; null where there is none or it cannot be parsed."""
    lesson = await _lessons(body, request)
    return await _answer(
        lambda: _judge(lesson.exercises if lesson else _exercises(body.to_start()), body)
    )


@router.post("/page/practice/comparison")
async def compare_methods(body: PracticeRequest) -> Response:
    """Answer what each sampling method makes of the start; it contains solutions."""
    return await _answer(lambda: told_block(comparison(body.to_start())))


async def _lessons(body: PracticeRequest, request: Request) -> Lessons | None:
    """Return exercises on a step's inside, on the model's ways, or on cells; None for a start."""
    if (step := body.asked_step()) is not None:
        return await lessons(step, request)
    if body.ways:
        return await lesson_ways(body.model, request)
    if body.cells:
        cells = body.asked_cells()
        exercises = await asyncio.to_thread(cell_exercises, cells)
        return Lessons(cells.text, cells.introduction, exercises)
    return None


async def _answer(make: Callable[[], Any]) -> Response:
    """Make the answer in a thread, so that other requests run during a thousand draws."""
    return JSONResponse(await asyncio.to_thread(make))


@lru_cache(16)
def _exercises(start: Start) -> tuple[Exercise, ...]:
    """Make the exercises on a start; they are cached, since their answers will follow."""
    return exercises(start)


def _start_document(start: Start) -> dict[str, Any]:
    return told_start(start, _exercises(start))


def _judge(questions: Sequence[Exercise], body: AnswerRequest) -> dict[str, Any]:
    exercise = questions[check_int("index", body.index, 0, len(questions) - 1)]
    right, remark = _verdict(exercise, body.answer)
    if not (right or body.reveal):
        return {"right": right, "remark": remark, "solution": None, "arithmetic": []}
    return {"right": right, "remark": remark} | told_solution(exercise)


def _verdict(exercise: Exercise, text: str | None) -> tuple[bool | None, str]:
    if text is None:
        return None, ""
    try:
        verdict = exercise.answer.judge(text)
    except InputError as error:
        return None, REMARKS["unreadable"].format(unread=error)
    return verdict.right, verdict.remark
