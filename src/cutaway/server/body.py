"""Bodies of requests: strict JSON, read into models that refuse unknown fields.

Null means left out. Knows no endpoint.
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
from cutaway.server.http.errors import ApiError
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.http.refusals import problem

Unsupported = Mapping[str, tuple[tuple[Any, ...], str]]
"""A field that others have -> the values that ask for nothing, and what is said to other values."""

MOST_STOPS = 64
MOST_OF_STOPS = 4096  # characters of all: each text builds its automata from them
_NULL = {"type": "null"}


def refused(said: str, field: str | int | None = None, code: str | None = None) -> ValueError:
    """For validators: what is said of a field, as it follows its path in the sentence.

    field  within the value that is validated; None: that value
    code   of the answer's error
    """
    return PydanticCustomError("refused", "{said}", {"said": said, "field": field, "code": code})


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
        for name, (harmless, why) in cls.unsupported.items():
            if name in data and not _among(data[name], (None, *harmless)):
                raise refused(f": {why}", name, "unsupported_parameter")
        given = {k: v for k, v in data.items() if v is not None and k not in cls.unsupported}
        return _with_one_unknown(given, {f.alias or n for n, f in cls.model_fields.items()})

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Any:
        """For the document, with what is said above of null and of inert fields."""
        made = handler(core)
        schema = handler.resolve_ref_schema(made)
        needed = schema.get("required", ())
        fields = {
            name: _described(field, null=name not in needed)
            for name, field in schema["properties"].items()
        }
        unsupported = {
            name: {"enum": [None, *harmless], "description": why}
            for name, (harmless, why) in cls.unsupported.items()
        }
        schema |= {"properties": {**fields, **unsupported}, "additionalProperties": _NULL}
        return made


def _with_one_unknown(given: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """The fields without unknown ones but the first: pydantic takes 5 µs to refuse each."""
    if len(given) <= len(known):
        return given
    first = next(name for name in given if name not in known)
    return {name: value for name, value in given.items() if name in known or name == first}


def examples(*bodies: dict[str, Any]) -> ConfigDict:
    """Of a request, for the document."""
    return ConfigDict(json_schema_extra={"examples": [*bodies]})


def optional(description: str, **rules: Any) -> Any:
    """A field that may be left out, which is then None. rules: of pydantic, such as ``ge``."""
    return Field(None, description=description, **rules)


class ModelNamed(BaseModel):
    """The query of a request without a body."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = optional("one of /v1/models; left out: the first")


def doc(description: str, **rules: Any) -> Any:
    """For ``Annotated``: what a value is. rules: of pydantic."""
    return Field(description=description, **rules)


def _among(value: Any, others: Sequence[Any]) -> bool:
    """As JSON has it, where true is not 1."""
    return any(type(value) is type(one) and value == one for one in others)


def _described(field: dict[str, Any], *, null: bool) -> dict[str, Any]:
    """A field's schema, with null where it is allowed; its title would be its name again."""
    about = {k: v for k, v in field.items() if k in ("description", "default")}
    kind = {k: v for k, v in field.items() if k not in (*about, "title")}
    if null and _NULL not in kind.get("anyOf", ()):
        kind = {"anyOf": [kind, _NULL]}
    return {**kind, **about}


# -- fields that several have ----


def _stops(value: Any) -> Any:
    """One string or a list of them, as a list."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refused(" must be a string or a list of strings")
    if len(stops) > MOST_STOPS:
        raise refused(f" has {len(stops)} strings; at most {MOST_STOPS}")
    if (length := sum(map(len, stops))) > MOST_OF_STOPS:
        raise refused(f" has {length} characters; at most {MOST_OF_STOPS} in all")
    return stops


Stops = Annotated[
    list[str],
    BeforeValidator(_stops, json_schema_input_type=str | list[str]),
    Field(description="end before the first of these texts"),
]


def _one_or_many(value: Any) -> Any:
    """A text or token ids, or a list of them, as a list."""
    many = isinstance(value, list) and not (value and all(type(i) is int for i in value))
    texts = value if many else [value]
    good = all(
        isinstance(p, str) or (isinstance(p, list) and all(type(i) is int for i in p))
        for p in texts
    )
    if not good or not texts:
        raise refused(" must be a string, a list of token ids, or a list of either")
    return texts


Texts = Annotated[
    list[str | list[int]],
    BeforeValidator(_one_or_many, json_schema_input_type=str | list[int] | list[str | list[int]]),
]

_MOST_METADATA = 16


def _few(value: Any) -> Any:
    """Refuses too many before any is read: Pydantic counts an object's names after the last."""
    if isinstance(value, dict) and len(value) > _MOST_METADATA:
        most = {"field_type": "Dictionary", "max_length": _MOST_METADATA}
        raise PydanticKnownError("too_long", {**most, "actual_length": len(value)})
    return value


MetadataField = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=_MOST_METADATA),
    BeforeValidator(_few),
]


# -- routes that read them: a long one beside the event loop -----------------------------------


_LONG = 1 << 15  # bytes: up to a twentieth of a second


def bodies() -> ClientQueue:
    """Who waits to have a long body read; the bodies of all are in memory."""
    return ClientQueue("large bodies wait to be read", most=64, most_of_client=16)


class StrictRoute(APIRoute):
    """A route whose JSON body is read by ``cutaway.base.strict_json`` and by its model.

    Its app has ``bodies()`` as ``state.bodies``.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What FastAPI calls with each request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def strict(request: Request) -> Response:
            CLIENT.set(request.client.host if request.client else "")
            request = Request(_typed(request.scope), request.receive)
            body = await request.body()
            if body.strip():
                _check_type(request.headers.get("content-type", ""))
            # FastAPI looks here for JSON, and leaves what is of the model already as it is.
            request._json = await self._in_turn(request, body)
            return await handle(request)

        return strict

    async def _in_turn(self, request: Request, body: bytes) -> Any:
        if len(body) <= _LONG:
            return self._read(body)
        queue: ClientQueue = request.app.state.bodies
        return await cancel_on_disconnect(request.receive, queue.run(partial(self._read, body)))

    def _read(self, body: bytes) -> Any:
        """The body as its model; ApiError 400 as parse, and for the first wrong field."""
        try:
            value = parse(body)
        except InputError as error:
            raise ApiError(400, str(error), code="invalid_json") from None
        assert self.body_field
        found, errors = self.body_field.validate(value, {}, loc=("body",))
        if errors:
            raise problem(errors, value, self)
        return found


def _typed(scope: Scope) -> Scope:
    """A request of Ollama's clients as JSON: they, and curl as Ollama documents it, send another
    type or none. A request with an Origin keeps its type, or a web page could send it without a
    preflight.
    """
    if not scope["path"].startswith("/api/") or "origin" in Headers(scope=scope):
        return scope
    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or re.fullmatch(r"application/[^/\s]+\+json", kind):
        return
    given = f"not {kind[:80]!r}" if kind else "which is missing"
    message = f"the body must be JSON; send the header 'Content-Type: application/json', {given}"
    raise ApiError(415, message, code="unsupported_media_type")
