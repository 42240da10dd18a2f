"""Bodies of requests: strict JSON, read into models that refuse unknown fields.

A field that is null counts as left out. Knows no endpoint.
"""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from cutaway.api.client_queue import CLIENT, ClientQueue
from cutaway.base.checks import current_names
from cutaway.base.strict_json import parse
from cutaway.errors import InputError
from cutaway.requests.base import MOST_OF_STOPS, MOST_STOPS
from cutaway.server.http.errors import ApiError
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.http.refusals import problem

Unsupported = Mapping[str, tuple[tuple[Any, ...], str]]
"""A field of other servers -> the values that are ignored, and the error for other values."""

_NULL = {"type": "null"}


def refusal(sentence: str, field: str | int | None = None, code: str | None = None) -> ValueError:
    """Return the error by which a validator refuses a field.

    sentence  the message after the field's path
    field     a field of the value that is validated; None: the value itself
    code      the ``code`` of the error response
    """
    context = {"sentence": sentence, "field": field, "code": code}
    return PydanticCustomError("refused", "{sentence}", context)


class Body(BaseModel):
    """A request: null means left out, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)
    unsupported: ClassVar[Unsupported] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "interventions" in cls.model_fields:
            data = current_names(data)
        for name, (harmless, message) in cls.unsupported.items():
            if name in data and not _equals_any(data[name], (None, *harmless)):
                raise refusal(f": {message}", name, "unsupported_parameter")
        fields = {k: v for k, v in data.items() if v is not None and k not in cls.unsupported}
        return _with_one_unknown(fields, {f.alias or n for n, f in cls.model_fields.items()})

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Any:
        """Return the schema for the OpenAPI document, with null and the unsupported fields."""
        reference = handler(core)
        schema = handler.resolve_ref_schema(reference)
        required = schema.get("required", ())
        fields = {
            name: _describe_field(field, null=name not in required)
            for name, field in schema["properties"].items()
        }
        unsupported = {
            name: {"enum": [None, *harmless], "description": message}
            for name, (harmless, message) in cls.unsupported.items()
        }
        schema |= {"properties": {**fields, **unsupported}, "additionalProperties": _NULL}
        return reference


def _with_one_unknown(fields: dict[str, Any], known_names: set[str]) -> dict[str, Any]:
    """Drop all unknown fields but the first: pydantic takes 5 µs to refuse each."""
    if len(fields) <= len(known_names):
        return fields
    first = next(name for name in fields if name not in known_names)
    return {name: value for name, value in fields.items() if name in known_names or name == first}


def examples(*bodies: dict[str, Any]) -> ConfigDict:
    """Return the configuration that puts examples of a request into the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [*bodies]})


def optional(description: str, **rules: Any) -> Any:
    """Return a field whose default is None. rules: pydantic's, such as ``ge``"""
    return Field(None, description=description, **rules)


class ModelNamed(BaseModel):
    """The query of a request without a body."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = optional("one of /v1/models; left out: the first")


def doc(description: str, **rules: Any) -> Any:
    """Return a description of a value, for ``Annotated``. rules: pydantic's, such as ``ge``"""
    return Field(description=description, **rules)


def _equals_any(value: Any, candidates: Sequence[Any]) -> bool:
    """Whether a value equals one of the candidates in JSON, where true is not 1."""
    return any(type(value) is type(candidate) and value == candidate for candidate in candidates)


def _describe_field(field: dict[str, Any], *, null: bool) -> dict[str, Any]:
    """Return a field's schema, without a title, which would only repeat the name.

    null: whether null is allowed
    """
    about = {k: v for k, v in field.items() if k in ("description", "default")}
    kind = {k: v for k, v in field.items() if k not in (*about, "title")}
    if null and _NULL not in kind.get("anyOf", ()):
        kind = {"anyOf": [kind, _NULL]}
    return {**kind, **about}


# -- fields of several requests ----------------------------------------------------------------


def _stops(value: Any) -> Any:
    """Return a string, or a list of strings, as a list."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refusal(" must be a string or a list of strings")
    if len(stops) > MOST_STOPS:
        raise refusal(f" has {len(stops)} strings; at most {MOST_STOPS}")
    if (length := sum(map(len, stops))) > MOST_OF_STOPS:
        raise refusal(f" has {length} characters; at most {MOST_OF_STOPS} in all")
    return stops


Stops = Annotated[
    list[str],
    BeforeValidator(_stops, json_schema_input_type=str | list[str]),
    Field(description="end before the first of these texts"),
]


def _one_or_many(value: Any) -> Any:
    """Return a list of texts or of lists of token ids; wrap a single text or list of ids."""
    is_list = isinstance(value, list) and not (value and all(type(i) is int for i in value))
    texts = value if is_list else [value]
    good = all(
        isinstance(p, str) or (isinstance(p, list) and all(type(i) is int for i in p))
        for p in texts
    )
    if not good or not texts:
        raise refusal(" must be a string, a list of token ids, or a list of either")
    return texts


Texts = Annotated[
    list[str | list[int]],
    BeforeValidator(_one_or_many, json_schema_input_type=str | list[int] | list[str | list[int]]),
]

_MOST_METADATA = 16


def _few(value: Any) -> Any:
    """Refuse an object with too many names early: pydantic would count after validating all."""
    if isinstance(value, dict) and len(value) > _MOST_METADATA:
        limits = {"field_type": "Dictionary", "max_length": _MOST_METADATA}
        raise PydanticKnownError("too_long", {**limits, "actual_length": len(value)})
    return value


MetadataField = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=_MOST_METADATA),
    BeforeValidator(_few),
]


# -- routes that read bodies; a thread reads a long body ---------------------------------------


_LONG = 1 << 15  # bytes; to read fewer takes at most 0.05 s


def bodies() -> ClientQueue:
    """Return the queue of clients whose long bodies wait, in memory, to be parsed."""
    return ClientQueue("large bodies wait to be read", limit=64, limit_of_client=16)


class StrictRoute(APIRoute):
    """A route that reads a JSON body with ``cutaway.base.strict_json`` and the body's model.

    The app's ``state.bodies`` must be ``bodies()``.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that FastAPI calls with each request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def strict(request: Request) -> Response:
            CLIENT.set(request.client.host if request.client else "")
            request = Request(_with_json_type(request.scope), request.receive)
            body = await request.body()
            if body.strip():
                _check_type(request.headers.get("content-type", ""))
            # FastAPI takes the JSON from here, and leaves an instance of the model as it is.
            request._json = await self._read_in_turn(request, body)
            return await handle(request)

        return strict

    async def _read_in_turn(self, request: Request, body: bytes) -> Any:
        if len(body) <= _LONG:
            return self._read(body)
        queue: ClientQueue = request.app.state.bodies
        return await cancel_on_disconnect(request.receive, queue.run(partial(self._read, body)))

    def _read(self, body: bytes) -> Any:
        """Return the body as its model; ApiError 400 if it is not JSON or a field is wrong."""
        try:
            value = parse(body)
        except InputError as error:
            raise ApiError(400, str(error), code="invalid_json") from None
        assert self.body_field
        validated, errors = self.body_field.validate(value, {}, loc=("body",))
        if errors:
            raise problem(errors, value, self)
        return validated


def _with_json_type(scope: Scope) -> Scope:
    """Set the content type of a request in Ollama's form to JSON.

    Ollama's clients send another type or none, like curl in Ollama's documentation. A request with
    an Origin keeps its type: else a web page could send such a request without a preflight.
    """
    if not scope["path"].startswith("/api/") or "origin" in Headers(scope=scope):
        return scope
    other_headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*other_headers, (b"content-type", b"application/json")]}


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or re.fullmatch(r"application/[^/\s]+\+json", kind):
        return
    actual = f"not {kind[:80]!r}" if kind else "which is missing"
    message = f"the body must be JSON; send the header 'Content-Type: application/json', {actual}"
    raise ApiError(415, message, code="unsupported_media_type")
