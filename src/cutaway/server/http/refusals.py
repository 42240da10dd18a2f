"""The error response to each exception, and the sentence about a request's first wrong field.

Knows exceptions and pydantic's errors; ``errors.py`` knows the form of a response.
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
    DeviceLostError,
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
from cutaway.server.http.errors import TOO_LONG, ApiError, to_api_error
from cutaway.server.http.guard import internal_error

E = TypeVar("E", bound=Exception)


_OF_MODELS = ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs")
_UNDOCUMENTED = ("/", "/openapi.json")
_log = logging.getLogger("cutaway.server")


def install(app: FastAPI, *, retry_after: Callable[[], float]) -> None:
    """Install handlers, with which ``app`` answers every exception.

    retry_after  estimated seconds until the queue has room
    """

    def explain_full_queue(_: Request, error: QueueFullError) -> ApiError:
        headers = {"Retry-After": str(max(1, ceil(retry_after())))}
        return ApiError(429, str(error), code="queue_full", headers=headers)

    def explain_http(request: Request, error: HTTPException) -> ApiError:
        return _explain_http(app, request, error)

    _answer_with(app, ApiError, lambda _, error: error)
    _answer_with(app, RequestValidationError, _explain_validation)
    _answer_with(app, HTTPException, explain_http)
    _answer_with(app, InputError, _explain_input)
    _answer_with(app, QueueFullError, explain_full_queue)
    for kind in (ReplayError, ReplicaLostError, DeviceLostError, FileChangedError):
        _answer_with(app, kind, lambda _, error: to_api_error(error))
    _answer_with(app, ModelLoadError, _explain_load_failure)
    _answer_with(app, ClosedError, _explain_closing)
    _answer_with(app, DiskFullError, _explain_full_disk)
    _answer_with(app, CutawayError, _explain_failure)
    _answer_with(app, Exception, lambda request, _: internal_error(_id(request)))


def _answer_with(app: FastAPI, kind: type[E], explain: Callable[[Request, E], ApiError]) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, kind)
        answer = explain(request, error)
        body = answer.body(request.scope["path"])
        return Response(body, answer.status, answer.headers, media_type="application/json")

    app.add_exception_handler(kind, handle)


def _id(request: Request) -> str:
    return getattr(request.state, "request_id", "without an id")  # set by the Guard


def _explain_validation(request: Request, error: RequestValidationError) -> ApiError:
    return problem(error.errors(), error.body, request.scope.get("route"))


def _explain_input(request: Request, error: InputError) -> ApiError:
    """Return the response; its param is the error's field, if the request has such a field."""
    is_there = error.field in fields_of(request.scope.get("route"))
    param = str(Name(*error.path)) if is_there else None
    code = TOO_LONG if isinstance(error, TooLongError) else None
    return ApiError(400, str(error), param=param, code=code)


def _explain_load_failure(request: Request, error: ModelLoadError) -> ApiError:
    _log.error("request %s failed: %s", _id(request), error)
    return ApiError(503, str(error), param="model", code="model_not_loaded")


def _explain_failure(request: Request, error: CutawayError) -> ApiError:
    _log.error("request %s failed: %s", _id(request), error)
    return ApiError(500, str(error), code="internal_error")


def _explain_closing(_: Request, __: ClosedError) -> ApiError:
    return ApiError(503, "the server is shutting down; try again later", code="shutting_down")


def _explain_full_disk(request: Request, error: DiskFullError) -> ApiError:
    _log.error("request %s failed: %s", _id(request), error)  # its paths are not for the client
    message = "the server's disk is full: try again when its operator has made room"
    return ApiError(507, message, code="disk_full")


def _explain_http(app: FastAPI, request: Request, error: HTTPException) -> ApiError:
    path, headers = request.scope["path"], error.headers or {}
    message = str(error.detail)
    if (error.status_code, message) == (404, "Not Found"):  # Starlette's message
        message = _no_path(path, [*_UNDOCUMENTED, *app.openapi()["paths"]])
    elif error.status_code == 405 and (allowed := headers.get("Allow")):
        allowed = _allowed_methods(app, path, allowed)
        message, headers = f"{path} takes {allowed}, not {request.method}", {"Allow": allowed}
    return ApiError(error.status_code, message, headers=headers)


def _allowed_methods(app: FastAPI, path: str, first: str) -> str:
    """Return all methods of a path. first: the methods of the path's first route"""
    methods = set(first.split(", "))
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            methods |= {method.upper() for method in operations}
    if "GET" in methods:
        methods.add("HEAD")  # the Guard turns HEAD into GET
    return ", ".join(sorted(methods))


def _no_path(path: str, paths: list[str]) -> str:
    if path.startswith(_OF_MODELS):
        return f"there is no path {path[:100]!r}; models are named to cutaway serve, by --model"
    close = get_close_matches(path[:100], [name for name in paths if name != "/"], n=1)
    hint = f"did you mean {close[0]}?" if close else f"the paths are {', '.join(sorted(paths))}"
    return f"there is no path {path[:100]!r}; {hint}"


# -- the first wrong field of a request --------------------------------------------------------


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
_MOST_ERRORS = 1000  # a hostile request has many more; a field's errors are neighbours
_MOST_CHARACTERS = 40  # characters of a value that are shown
_PARTS = json.JSONEncoder(default=str)
_MISSING = ("missing", "union_tag_not_found")


def problem(errors: Sequence[_Error], body: Any, route: object) -> ApiError:
    """Return the response to the first problem, with the path of its field.

    errors  pydantic's errors, at least one
    body    the parsed request
    route   FastAPI's route; the model of its body has the fields
    """
    path = _path(_first(errors), body)
    same_field = [
        (e, p) for e in errors[:_MOST_ERRORS] if (p := _path(e, body))[: len(path)] == path
    ]
    deepest = max(
        (p for _, p in same_field), key=len, default=path
    )  # the error of a union's best fitting branch
    deep = [error for error, p in same_field if p == deepest] or [_first(errors)]
    field = _format_path(deepest)
    code = next((e["ctx"]["code"] for e in deep if e["type"] == "refused"), None)
    sentence = _sentence(deep, deepest, field or "the body", route)
    return ApiError(400, sentence, param=field or None, code=code)


def _first(errors: Sequence[_Error]) -> _Error:
    """Return an unknown field's error, which may explain a missing field; else the first error."""
    unknown = (e for e in errors if e["type"] == "extra_forbidden" and len(e["loc"]) == 2)
    return next(unknown, errors[0])


def _path(error: _Error, body: Any) -> _Path:
    """Return the field's path in the request: pydantic's location without union members' names."""
    source, *parts = error["loc"]
    if source != "body":  # "query" or "header"
        return tuple(parts)
    if parts and parts[-1] == "[key]":
        parts = parts[:-2]
    path: list[str | int] = []
    missing = parts[-1:] if error["type"] == "missing" else []  # absent, or null
    for part in parts[: len(parts) - len(missing)]:
        if _has_part(body, part):
            path.append(part)
            body = body[part]
    path += missing
    if tag := error.get("ctx", {}).get("discriminator"):
        path.append(tag.strip("'"))
    if error["type"] == "refused" and (field := error["ctx"]["field"]) is not None:
        path.append(field)
    return tuple(path)


def _has_part(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _format_path(path: _Path) -> str:
    """Return the path in the notation of programs: messages[0].content"""
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
        return f"{field}{error['ctx']['sentence']}"
    if error["type"] == "extra_forbidden":
        return _unknown(field, path, route)
    if error["type"] in _MISSING:
        return f"{field} is missing; add it"
    actual = _describe_value(error["input"])
    if error["loc"][-1] == "[key]":  # an object's name, which is always a string in JSON
        field, actual, errors = f"each key of {field}", _excerpt(error["input"]), errors[:1]
    kinds = dict.fromkeys(_KINDS.get(e["type"]) for e in errors)
    if None not in kinds:
        return f"{field} must be {' or '.join(map(str, kinds))}, not {actual}"
    sentence = _reword(next(e for e in errors if e["type"] not in _KINDS), path, field)
    alternatives = [kind for kind in kinds if kind and errors[-1]["type"] == "literal_error"]
    return sentence.replace(
        " must be ", " ".join((" must be", *(f"{k} or" for k in alternatives), "")), 1
    )


def _reword(error: _Error, path: _Path, field: str) -> str:
    """Return the message of pydantic or of our validators as a sentence about the field."""
    context, sentence = error.get("ctx", {}), error["msg"].replace(" after validation", "")
    if cause := context.get("error"):
        is_its = isinstance(cause, InputError) and path and cause.path[: len(path)] == path
        return str(cause) if is_its else f"{field}: {cause}"
    if tags := context.get("expected_tags"):
        return f"{field} must be one of {tags}, not {_excerpt(context['tag'])}"
    sentence, replaced = re.subn(r"^\w+ should", f"{field} must", sentence)
    if not replaced:
        return f"{field}: {sentence[0].lower()}{sentence[1:]}"
    return sentence if ", not " in sentence else f"{sentence}, not {_excerpt(error['input'])}"


def _describe_value(value: Any) -> str:
    return _WORDS.get(type(value)) or _excerpt(value)


def _excerpt(value: Any) -> str:
    """Return a value's first characters, without encoding all of a large value."""
    if isinstance(value, str):
        text = repr(value[: _MOST_CHARACTERS + 1])
    else:
        text = ""
        for part in _PARTS.iterencode(value):
            if len(text) > _MOST_CHARACTERS:
                break
            text += part
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


# -- the fields of a request -----------------------------------------------------------------


def fields_of(route: object, path: _Path = ()) -> set[str]:
    """Return the names of the fields at ``path`` in a route's body; empty if they are unknown."""
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
    names = fields_of(route, path[:-1])
    close = get_close_matches(str(path[-1])[:80], names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "leave it out"
    return f"unknown field '{field}'; {hint}"
