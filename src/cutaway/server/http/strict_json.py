"""Routes whose body is strict JSON, read into their model: a long one beside the event loop."""

import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from cutaway.api.client_queue import CLIENT, ClientQueue
from cutaway.base.strict_json import parse
from cutaway.errors import InputError
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.errors import ApiError
from cutaway.server.http.problems import problem

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
