"""The OpenAPI document at ``/openapi.json``.

Each endpoint declares its own responses with ``replies``; this module adds the middleware's.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import is_typeddict

from cutaway.server.http.errors import Error, MessagesError, OllamaError, is_messages, is_ollama
from cutaway.server.http.guard import OPEN_PATHS
from cutaway.server.http.settings import ServerSettings

Answers = dict[int | str, dict[str, Any]]
"""Status -> OpenAPI's response object."""

FIELD_ERRORS = (400, 404, 415)
"""Error statuses of a request with a body that may name the model."""
QUEUE_ERRORS = (*FIELD_ERRORS, 429, 503)
"""Error statuses of a request that waits in the queue."""
GENERATION_ERRORS = (*QUEUE_ERRORS, 409)
"""Error statuses of a request for text, which may be a replay."""

TAGS = [
    {"name": "text", "description": "The model generates text."},
    {"name": "inside", "description": "What happened before the logits."},
    {"name": "tokens", "description": "Text to token ids, and back."},
    {"name": "batches", "description": "Files of requests, answered in the background."},
    {"name": "status", "description": "Models, health and metrics."},
]
_MIDDLEWARE = (408, 413, 500)
_DESCRIPTIONS = {
    400: "A field is wrong, unknown or missing, or the body is not JSON; the message says what.",
    401: "The key is missing or wrong.",
    403: "The Host header names a host that is not allowed.",
    404: "There is no model of that name, or nothing that has this id.",
    409: "The model gives other logits, or another text, than those on record; or texts are being "
    "written with the adapter.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The Content-Type is not JSON.",
    429: "The queue is full; try again in Retry-After seconds.",
    500: "The server failed; its log has the reason under the x-request-id.",
    507: "The server's disk is full.",
    503: "The server is stopping, or has stopped; its replicas were lost, one after the other; its "
    "GPU was lost; or the model could not be loaded.",
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
    "description": "the client's own, or a new one; it is in the log",
    "schema": {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$"},
}
_KEYS = {
    "key": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_REF = "#/components/schemas/"


# -- responses that an endpoint declares -------------------------------------------------------


def replies(
    schema: type,
    *statuses: int,
    events: type | None = None,
    mark: bool = True,
    error: type = Error,
    lines: bool = False,
    binary: str | None = None,
    several: bool = False,
) -> Answers:
    """Return the responses of an endpoint, for FastAPI's argument ``responses``.

    schema    the schema of the response: a TypedDict of one of the schema modules
    statuses  the statuses of the endpoint's own errors; all endpoints also get the middleware's
    events    the schema of a stream's events; None: the endpoint does not stream
    mark      whether a stream ends with [DONE]
    error     the schema of an error, which is also the last event of a stream that fails
    lines     whether a stream is lines of JSON, as in Ollama's API, and not events
    binary    another media type of the response, which has no schema
    several   whether the response is a list of ``schema``
    """
    whole = {"type": "array", "items": _ref(schema)} if several else _ref(schema)
    content = {"application/json": {"schema": whole}}
    description = f"{schema.__doc__}"
    if binary:
        content[binary] = {"schema": {"type": "string", "contentMediaType": binary}}
    if events and lines:
        schema_ = {"anyOf": [_ref(events), _ref(OllamaError)]}
        content["application/x-ndjson"] = {"schema": schema_}
        description += " Without stream: false, lines of this, each with what is new."
    elif events:
        content["text/event-stream"] = {"schema": _event(events, mark, error)}
        description += " A request with stream gets events"
        description += ", the last of them with the data [DONE]." if mark else "."
    return {200: {"description": description, "content": content}, **_refusals(statuses)}


def _event(shape: type, mark: bool, error: type) -> dict[str, Any]:
    """Return the schema of one event, since OpenAPI 3.1 cannot describe a stream."""
    payload = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_ref(shape), _ref(error)]},
    }
    data = {"anyOf": [payload, *[{"const": "[DONE]"}] * mark]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _ref(shape: type) -> dict[str, Any]:
    return {"$ref": _REF + shape.__name__}


def _refusals(statuses: Sequence[int]) -> Answers:
    return {
        status: {"description": _DESCRIPTIONS[status], "headers": _HEADERS.get(status, {})}
        for status in statuses
    }


# -- the whole document ------------------------------------------------------------------------


class Documented(FastAPI):
    """An application whose OpenAPI document depends on the server's settings.

    schemas  modules whose TypedDicts are the document's schemas
    """

    def __init__(
        self, settings: ServerSettings, schemas: Sequence[ModuleType], **more: Any
    ) -> None:
        super().__init__(
            openapi_tags=TAGS, generate_unique_id_function=_name,
            redirect_slashes=False,  # or FastAPI redirects to the host in the client's Host header
            **more,
        )  # fmt: skip
        self._settings, self._schemas = settings, schemas

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, which is made at the first call."""
        if self.openapi_schema is None:
            self.openapi_schema = _complete(
                super().openapi(), _schemas(self._schemas), self._settings
            )
        return self.openapi_schema


def _name(route: Any) -> str:
    return str(route.name)


def _complete(
    document: dict[str, Any], shapes: Mapping[str, Any], settings: ServerSettings
) -> dict[str, Any]:
    """Add the schemas and the middleware's responses; remove FastAPI's own errors."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= shapes
    if settings.api_key is not None:
        components["securitySchemes"] = _KEYS
    for path, operation in _operations(document):
        locked = settings.api_key is not None and path not in OPEN_PATHS
        if locked:
            operation["security"] = [{name: []} for name in _KEYS]
        common = (*_MIDDLEWARE, *[401] * locked, *[403] * (settings.allow_hosts is not None))
        error = MessagesError if is_messages(path) else OllamaError if is_ollama(path) else Error
        operation["responses"] = _responses(operation["responses"], common, error)
    return document


def _schemas(modules: Sequence[ModuleType]) -> dict[str, Any]:
    shapes = {name: shape for module in modules for name, shape in vars(module).items()}
    _, schema = TypeAdapter.json_schemas(
        [
            (name, "serialization", TypeAdapter(shape))
            for name, shape in shapes.items()
            if is_typeddict(shape) and not name.startswith("_")
        ],
        ref_template=_REF + "{model}",
        schema_generator=_Untitled,
    )
    return dict(schema["$defs"])


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """Leave titles out: a field's title would only repeat its name."""
        return False


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _responses(declared: Mapping[str, Any], common: Sequence[int], error: type) -> dict[str, Any]:
    common_responses = {str(status): answer for status, answer in _refusals(common).items()}
    responses = {**declared, **common_responses}
    responses.pop("422", None)  # FastAPI's status for a bad field; this server sends 400
    for status, answer in responses.items():
        answer["headers"] = {"x-request-id": _REQUEST_ID, **answer.get("headers", {})}
        if int(status) >= 400:
            answer["content"] = {"application/json": {"schema": _ref(error)}}
    return dict(sorted(responses.items()))
