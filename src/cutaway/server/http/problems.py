"""What is wrong with a request's fields: one sentence about the first problem."""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cutaway.server.http.errors import ApiError

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
        return str(error["ctx"]["said"]).replace("{field}", field)
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
    said = _reworded(next(e for e in errors if e["type"] not in _KINDS), field)
    others = [kind for kind in kinds if kind and errors[-1]["type"] == "literal_error"]
    return said.replace(" must be ", " ".join((" must be", *(f"{k} or" for k in others), "")), 1)


def _reworded(error: _Error, field: str) -> str:
    """The message of pydantic or of one of our validators, as a sentence about the field."""
    context, said = error.get("ctx", {}), error["msg"].replace(" after validation", "")
    if cause := context.get("error"):
        return str(cause) if str(cause).startswith(field) else f"{field}: {cause}"
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
