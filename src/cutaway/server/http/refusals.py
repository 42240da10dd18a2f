"""The error response of each exception, and the sentence about a request's first wrong field.

Knows exceptions and pydantic's errors; the form of a response is ``errors.py``'s.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from math import ceil
from typing import Any, TypeVar, get_args

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic.fields import FieldInfo
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
    Name,
    QueueFullError,
    ReplayError,
    ReplicaLostError,
    TooLongError,
)
from cutaway.server.http.errors import TOO_LONG, ApiError, of_text
from cutaway.server.http.guard import internal_error

E = TypeVar("E", bound=Exception)


_OF_MODELS = ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs")
_UNDOCUMENTED = ("/", "/openapi.json")
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
    """What it is about is the param, if the request has a field of that name."""
    is_there = error.field in fields_of(request.scope.get("route"))
    param = str(Name(*error.path)) if is_there else None
    code = TOO_LONG if isinstance(error, TooLongError) else None
    return ApiError(400, str(error), param=param, code=code)


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


# -- what is wrong with a request's fields -----------------------------------------------------


_Error = dict[str, Any]
_Path = tuple[str | int, ...]

_KINDS = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}
_WORDS: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
_MANY = 1000  # a hostile request has many more errors, and those of one field are neighbours
_SHOWN = 40  # characters of a value
_PARTS = json.JSONEncoder(default=str)
_MISSING = ("missing", "union_tag_not_found")


def problem(errors: Sequence[_Error], body: Any, route: object) -> ApiError:
    """The first problem, with the path of the field that it is about.

    errors  as pydantic lists them, one at least
    body    the parsed request
    route   FastAPI's route, whose model knows which fields there are
    """
    path = _path(_first(errors), body)
    others = [(e, p) for e in errors[:_MANY] if (p := _path(e, body))[: len(path)] == path]
    deepest = max((p for _, p in others), key=len, default=path)  # a union's best fitting branch
    deep = [error for error, p in others if p == deepest] or [_first(errors)]
    field = _written(deepest)
    code = next((e["ctx"]["code"] for e in deep if e["type"] == "refused"), None)
    said = _sentence(deep, deepest, field or "the body", route)
    return ApiError(400, said, param=field or None, code=code)


def _first(errors: Sequence[_Error]) -> _Error:
    """An unknown field comes before a missing one, of which it may be a misspelling."""
    unknown = (e for e in errors if e["type"] == "extra_forbidden" and len(e["loc"]) == 2)
    return next(unknown, errors[0])


def _path(error: _Error, body: Any) -> _Path:
    """The field's path in the request: pydantic's location without the names of union members."""
    source, *parts = error["loc"]
    if source != "body":  # of a query or a header
        return tuple(parts)
    if parts and parts[-1] == "[key]":
        parts = parts[:-2]
    path: list[str | int] = []
    missing = parts[-1:] if error["type"] == "missing" else []  # or null, which is no value
    for part in parts[: len(parts) - len(missing)]:
        if _leads(body, part):
            path.append(part)
            body = body[part]
    path += missing
    if tag := error.get("ctx", {}).get("discriminator"):
        path.append(tag.strip("'"))
    if error["type"] == "refused" and (field := error["ctx"]["field"]) is not None:
        path.append(field)
    return tuple(path)


def _leads(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _written(path: _Path) -> str:
    """The path as a program would write it: messages[0].content"""
    text = ""
    for part in path:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{str(part)[:80]}]"
    return text[:200]


def _sentence(errors: list[_Error], path: _Path, field: str, route: object) -> str:
    error = next((e for e in errors if e["type"] == "refused"), errors[0])
    if error["type"] == "refused":
        return f"{field}{error['ctx']['said']}"
    if error["type"] == "extra_forbidden":
        return _unknown(field, path, route)
    if error["type"] in _MISSING:
        return f"{field} is missing; add it"
    given = _called(error["input"])
    if error["loc"][-1] == "[key]":  # which JSON always has as a string
        field, given, errors = f"each key of {field}", _shown(error["input"]), errors[:1]
    kinds = dict.fromkeys(_KINDS.get(e["type"]) for e in errors)
    if None not in kinds:
        return f"{field} must be {' or '.join(map(str, kinds))}, not {given}"
    said = _reworded(next(e for e in errors if e["type"] not in _KINDS), path, field)
    others = [kind for kind in kinds if kind and errors[-1]["type"] == "literal_error"]
    return said.replace(" must be ", " ".join((" must be", *(f"{k} or" for k in others), "")), 1)


def _reworded(error: _Error, path: _Path, field: str) -> str:
    """The message of pydantic or of one of our validators, as a sentence about the field."""
    context, said = error.get("ctx", {}), error["msg"].replace(" after validation", "")
    if cause := context.get("error"):
        is_its = isinstance(cause, InputError) and path and cause.path[: len(path)] == path
        return str(cause) if is_its else f"{field}: {cause}"
    if tags := context.get("expected_tags"):
        return f"{field} must be one of {tags}, not {_shown(context['tag'])}"
    said, found = re.subn(r"^\w+ should", f"{field} must", said)
    if not found:
        return f"{field}: {said[0].lower()}{said[1:]}"
    return said if ", not " in said else f"{said}, not {_shown(error['input'])}"


def _called(value: Any) -> str:
    return _WORDS.get(type(value)) or _shown(value)


def _shown(value: Any) -> str:
    """Its beginning; of a megabyte no more is written."""
    if isinstance(value, str):
        shown = repr(value[: _SHOWN + 1])
    else:
        shown = ""
        for part in _PARTS.iterencode(value):
            if len(shown) > _SHOWN:
                break
            shown += part
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


# -- which fields there are ------------------------------------------------------------------


def fields_of(route: object, path: _Path = ()) -> set[str]:
    """The names of the fields at ``path`` of a route's body; empty where that is not known."""
    body = getattr(getattr(route, "body_field", None), "field_info", None)
    models = _models(getattr(body, "annotation", None))
    for part in path:
        if isinstance(part, str):
            inner = [f.annotation for m in models for n, f in _fields(m) if n == part]
            models = [m for annotation in inner for m in _models(annotation)]
    return {name for m in models for name, _ in _fields(m)}


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _unknown(field: str, path: _Path, route: object) -> str:
    known = fields_of(route, path[:-1])
    close = get_close_matches(str(path[-1])[:80], known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "leave it out"
    return f"unknown field '{field}'; {hint}"
