"""The document at ``/openapi.json``: what can be asked for, and what is answered.

Knows what each status means and how OpenAPI says so. Refuses to know endpoints: each declares
its own answers with ``replies``, and those that the door gives to all are added here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import is_typeddict

from cutaway.server.http.guard import OPEN_PATHS
from cutaway.server.http.settings import Settings
from cutaway.server.openai import plain_schemas as plain_shapes
from cutaway.server.openai import response_schemas as response_shapes
from cutaway.server.openai import schemas as shapes

Answers = dict[int | str, dict[str, Any]]
"""Status -> OpenAPI's response object."""

FIELDS = (400, 404, 415)
"""Refusals of a request that has fields, one of them the model."""
TEXT = (*FIELDS, 429, 503)
"""Those of a request for text."""

TAGS = [
    {"name": "text", "description": "The model writes."},
    {"name": "tokens", "description": "What a text is made of, and back."},
    {"name": "status", "description": "What the server says of itself."},
]
_DOOR = (408, 413, 500)
_REFUSED = {
    400: "A field is wrong, unknown or missing, or the body is not JSON; the message says what.",
    401: "The key is missing or wrong.",
    403: "The Host header names no host that this server answers to.",
    404: "No model of that name is here.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The Content-Type is not that of JSON.",
    429: "The queue is full; try again in Retry-After seconds.",
    500: "The server failed; its log has the reason under the x-request-id.",
    503: "The server is stopping, or has stopped.",
}
_HEADERS = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    429: {
        "Retry-After": {
            "required": True,
            "description": "seconds",
            "schema": {"type": "integer", "minimum": 1},
        }
    },
}
_REQUEST_ID = {
    "required": True,
    "description": "the client's own, or one made here; the log has it",
    "schema": {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$"},
}
_REF = "#/components/schemas/"


# -- what an endpoint declares -----------------------------------------------------------------


def replies(shape: type, *refused: int, events: type | None = None, mark: bool = True) -> Answers:
    """The answers of an endpoint, for its ``responses``.

    shape    of the answer, one of those in ``shapes`` and its like
    refused  statuses of the errors that are its own; the door's come to all
    events   the shape of a stream's, where it streams; mark: whether [DONE] is the last of them
    """
    content = {"application/json": {"schema": _ref(shape)}}
    described = f"{shape.__doc__}"
    if events:
        content["text/event-stream"] = {"schema": _event(events, mark)}
        described += " A request with stream gets events"
        described += ", the last of them with the data [DONE]." if mark else "."
    return {200: {"description": described, "content": content}, **_refusals(refused)}


def plain_replies(description: str, *media_types: str) -> Answers:
    """The answers of an endpoint that tells text."""
    content = {name: {"schema": {"type": "string"}} for name in media_types}
    return {200: {"description": description, "content": content}}


def _event(shape: type, mark: bool) -> dict[str, Any]:
    """OpenAPI 3.1 has no word for streams: as usual, the schema is that of each event."""
    said = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_ref(shape), _ref(plain_shapes.Error)]},
    }
    data = {"anyOf": [said, *[{"const": "[DONE]"}] * mark]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _ref(shape: type) -> dict[str, Any]:
    return {"$ref": _REF + shape.__name__}


def _refusals(statuses: Sequence[int]) -> Answers:
    return {
        status: {
            "description": _REFUSED[status],
            "headers": _HEADERS.get(status, {}),
            "content": {"application/json": {"schema": _ref(plain_shapes.Error)}},
        }
        for status in statuses
    }


# -- the whole ---------------------------------------------------------------------------------


class Documented(FastAPI):
    """An application whose document is true of its settings."""

    def __init__(self, settings: Settings, **more: Any) -> None:
        super().__init__(
            openapi_tags=TAGS, generate_unique_id_function=_name,
            redirect_slashes=False,  # to where the client's Host header says
            **more,
        )  # fmt: skip
        self._settings = settings

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            self.openapi_schema = _completed(super().openapi(), self._settings)
        return self.openapi_schema


def _name(route: Any) -> str:
    return str(route.name)


def _completed(document: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """With the shapes, and with what the door answers; without FastAPI's own errors."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= _schemas()
    if settings.api_key is not None:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operation in _operations(document):
        locked = settings.api_key is not None and path not in OPEN_PATHS
        if locked:
            operation["security"] = [{"key": []}]
        door = (*_DOOR, *[401] * locked, *[403] * (settings.allow_hosts is not None))
        operation["responses"] = _responses(operation["responses"], door)
    return document


def _schemas() -> dict[str, Any]:
    _, made = TypeAdapter.json_schemas(
        [
            (name, "serialization", TypeAdapter(shape))
            for name, shape in (vars(shapes) | vars(response_shapes) | vars(plain_shapes)).items()
            if is_typeddict(shape) and not name.startswith("_")
        ],
        ref_template=_REF + "{model}",
        schema_generator=_Untitled,
    )
    return dict(made["$defs"])


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """A field's title would be its name again."""
        return False


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _responses(given: Mapping[str, Any], door: Sequence[int]) -> dict[str, Any]:
    added = {str(status): answer for status, answer in _refusals(door).items()}
    every = {**given, **added}
    every.pop("422", None)  # which is 400 here
    for answer in every.values():
        answer["headers"] = {"x-request-id": _REQUEST_ID, **answer.get("headers", {})}
    return dict(sorted(every.items()))
