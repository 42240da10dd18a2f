"""Requests whose body is strict JSON, and routes that take nothing else."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from cutaway.base.strict_json import parse
from cutaway.errors import InputError
from cutaway.server.http.errors import ApiError

_LONG = 1 << 18  # bytes


class StrictRequest(Request):
    """A request whose body is read by ``cutaway.base.strict_json``."""

    async def json(self) -> Any:
        """The body's value; ApiError (400) as parse, and 415 if its Content-Type is not JSON."""
        if not hasattr(self, "_json"):
            body = await self.body()
            if body.strip():
                _check_type(self.headers.get("content-type", ""))
            # A long one may take a second, while other requests go on.
            long = len(body) > _LONG
            self._json = await asyncio.to_thread(_parse, body) if long else _parse(body)
        return self._json


def _parse(body: bytes) -> Any:
    try:
        return parse(body)
    except InputError as error:
        raise ApiError(400, str(error), code="invalid_json") from None


class StrictRoute(APIRoute):
    """A route whose JSON body is read by ``cutaway.base.strict_json``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What FastAPI calls with each request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def strict(request: Request) -> Response:
            request = StrictRequest(_typed(request.scope), request.receive)
            await request.json()  # here, since FastAPI would turn any exception into its own error
            return await handle(request)

        return strict


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
