"""Exception handlers: the error response of each exception."""

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

from cutaway.errors import (
    ClosedError,
    CutawayError,
    DiskFullError,
    FileChangedError,
    InputError,
    ModelLoadError,
    QueueFullError,
    ReplayError,
    ReplicaLostError,
    TooLongError,
)
from cutaway.server.http.errors import TOO_LONG, ApiError, of_text
from cutaway.server.http.guard import internal_error
from cutaway.server.http.problems import fields_of, problem

E = TypeVar("E", bound=Exception)

_OF_MODELS = ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs")
_UNDOCUMENTED = ("/", "/openapi.json")
_PATH = re.compile(r"(\w+)(?:\[\d+\]|\.\w+)*")  # as tools[0].function.name
_log = logging.getLogger("cutaway.server")


def install(app: FastAPI, *, retry_after: Callable[[], float]) -> None:
    """Make ``app`` answer every failure.

    retry_after  estimated seconds until the queue has room
    """

    def full(_: Request, error: QueueFullError) -> ApiError:
        headers = {"Retry-After": str(max(1, ceil(retry_after())))}
        return ApiError(429, str(error), code="queue_full", headers=headers)

    def routed(request: Request, error: HTTPException) -> ApiError:
        return _of_http(app, request, error)

    _answer_with(app, ApiError, lambda _, error: error)
    _answer_with(app, RequestValidationError, _of_validation)
    _answer_with(app, HTTPException, routed)
    _answer_with(app, InputError, _of_input)
    _answer_with(app, QueueFullError, full)
    for kind in (ReplayError, ReplicaLostError, FileChangedError):
        _answer_with(app, kind, lambda _, error: of_text(error))
    _answer_with(app, ModelLoadError, _of_load)
    _answer_with(app, ClosedError, _of_closing)
    _answer_with(app, DiskFullError, _of_full_disk)
    _answer_with(app, CutawayError, _of_cutaway)
    _answer_with(app, Exception, lambda request, _: internal_error(_id(request)))


def _answer_with(app: FastAPI, kind: type[E], explain: Callable[[Request, E], ApiError]) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, kind)
        said = explain(request, error)
        body = said.body(request.scope["path"])
        return Response(body, said.status, said.headers, media_type="application/json")

    app.add_exception_handler(kind, handle)


def _id(request: Request) -> str:
    return getattr(request.state, "request_id", "without an id")  # the Guard sets it


def _of_validation(request: Request, error: RequestValidationError) -> ApiError:
    return problem(error.errors(), error.body, request.scope.get("route"))


def _of_input(request: Request, error: InputError) -> ApiError:
    """What the sentence begins with is the param, if the request has a field of that name."""
    message = str(error)
    path = _PATH.match(message)
    param = path[0] if path and path[1] in fields_of(request.scope.get("route")) else None
    code = TOO_LONG if isinstance(error, TooLongError) else None
    return ApiError(400, message, param=param, code=code)


def _of_load(request: Request, error: ModelLoadError) -> ApiError:
    _log.error("request %s failed: %s", _id(request), error)
    return ApiError(503, str(error), param="model", code="model_not_loaded")


def _of_cutaway(request: Request, error: CutawayError) -> ApiError:
    _log.error("request %s failed: %s", _id(request), error)
    return ApiError(500, str(error), code="internal_error")


def _of_closing(_: Request, __: ClosedError) -> ApiError:
    return ApiError(503, "the server is shutting down; try again later", code="shutting_down")


def _of_full_disk(request: Request, error: DiskFullError) -> ApiError:
    _log.error("request %s failed: %s", _id(request), error)  # paths are the server's own affair
    said = "the server's disk is full: try again when its operator has made room"
    return ApiError(507, said, code="disk_full")


def _of_http(app: FastAPI, request: Request, error: HTTPException) -> ApiError:
    path, headers = request.scope["path"], error.headers or {}
    message = str(error.detail)
    if (error.status_code, message) == (404, "Not Found"):  # Starlette's own word
        message = _no_path(path, [*_UNDOCUMENTED, *app.openapi()["paths"]])
    elif error.status_code == 405 and (allowed := headers.get("Allow")):
        allowed = _allowed(app, path, allowed)
        message, headers = f"{path} takes {allowed}, not {request.method}", {"Allow": allowed}
    return ApiError(error.status_code, message, headers=headers)


def _allowed(app: FastAPI, path: str, first: str) -> str:
    """The methods of a path; first: those of the first of its routes."""
    methods = set(first.split(", "))
    for known, told in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path):
            methods |= {method.upper() for method in told}
    if "GET" in methods:
        methods.add("HEAD")  # which the Guard makes a GET
    return ", ".join(sorted(methods))


def _no_path(path: str, known: list[str]) -> str:
    if path.startswith(_OF_MODELS):
        return f"there is no path {path[:100]!r}; models are named to cutaway serve, by --model"
    close = get_close_matches(path[:100], [name for name in known if name != "/"], n=1)
    hint = f"did you mean {close[0]}?" if close else f"the paths are {', '.join(sorted(known))}"
    return f"there is no path {path[:100]!r}; {hint}"
