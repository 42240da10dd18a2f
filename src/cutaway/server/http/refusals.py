"""Every failure that reaches the app's edge, as an answer in OpenAI's form.

Knows which status belongs to which failure. Refuses to know how validation is told (``problems``).
"""

import logging
import re
from collections.abc import Callable
from difflib import get_close_matches
from math import ceil
from typing import TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cutaway.errors import CutawayError, InputError, QueueFullError
from cutaway.server.http.errors import Refusal
from cutaway.server.http.guard import broken
from cutaway.server.http.problems import fields_of, problem

E = TypeVar("E", bound=Exception)

_CLOSED = ("the engine is closed", "the engine was closed")
_log = logging.getLogger("cutaway.server")


def install(app: FastAPI, *, retry_after: Callable[[], float]) -> None:
    """Let ``app`` answer every failure in OpenAI's form.

    retry_after  seconds after which a request that found the queue full may be welcome
    """

    def full(_: Request, error: QueueFullError) -> Refusal:
        headers = {"Retry-After": str(max(1, ceil(retry_after())))}
        return Refusal(429, str(error), code="queue_full", headers=headers)

    def routed(request: Request, error: HTTPException) -> Refusal:
        return _of_http(app, request, error)

    _answer_with(app, Refusal, lambda _, error: error)
    _answer_with(app, RequestValidationError, _of_validation)
    _answer_with(app, HTTPException, routed)
    _answer_with(app, InputError, _of_input)
    _answer_with(app, QueueFullError, full)
    _answer_with(app, CutawayError, _of_cutaway)
    _answer_with(app, Exception, lambda request, _: broken(_id(request)))


def answer(refusal: Refusal) -> Response:
    """The response that tells of a refusal."""
    return Response(
        refusal.body(),
        refusal.status,
        headers=refusal.headers,
        media_type="application/json",
    )


def _answer_with(app: FastAPI, kind: type[E], explain: Callable[[Request, E], Refusal]) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, kind)
        return answer(explain(request, error))

    app.add_exception_handler(kind, handle)


def _id(request: Request) -> str:
    return getattr(request.state, "request_id", "without a name")  # as the Guard gives one


def _of_validation(request: Request, error: RequestValidationError) -> Refusal:
    message, param = problem(error.errors(), error.body, request.scope.get("route"))
    return Refusal(400, message, param=param)


def _of_input(request: Request, error: InputError) -> Refusal:
    """The field is what the sentence begins with, if the request may have a field of that name."""
    message = str(error)
    name = re.match(r"\w*", message)
    param = name[0] if name and name[0] in fields_of(request.scope.get("route")) else None
    return Refusal(400, message, param=param)


def _of_cutaway(request: Request, error: CutawayError) -> Refusal:
    message = str(error)
    if message.startswith(_CLOSED):
        return Refusal(503, "the server is shutting down; try again later", code="shutting_down")
    _log.error("request %s failed: %s", _id(request), message)
    return Refusal(500, message, code="internal_error")


def _of_http(app: FastAPI, request: Request, error: HTTPException) -> Refusal:
    path, headers = request.scope["path"], error.headers or {}
    message = str(error.detail)
    if (error.status_code, message) == (404, "Not Found"):  # Starlette's own word
        message = _no_path(path, [*app.openapi()["paths"]])
    elif error.status_code == 405 and (allowed := headers.get("Allow")):
        message = f"{path} takes {allowed}, not {request.method}"
    return Refusal(error.status_code, message, headers=headers)


def _no_path(path: str, known: list[str]) -> str:
    close = get_close_matches(path[:100], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
    return f"there is no path {path[:100]!r}; {hint}"
