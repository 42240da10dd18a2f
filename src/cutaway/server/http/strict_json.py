"""JSON as RFC 8259 writes it, and nothing that only Python's reader takes for it.

Knows text, numbers and depth. Refuses to know what a request means.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from math import isinf
from typing import Any, NoReturn

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from cutaway.server.http.errors import Refusal

MAX_DEPTH = 64
MAX_VALUES = 1 << 18  # a wrong one costs its validator a thousand times its bytes

_LONG = 1 << 18  # bytes

# As far as no escape is half of a surrogate pair. Never goes back, so that it is linear.
_WHOLE_PAIRS = re.compile(
    r"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]..))*+", re.DOTALL
)


def parse(body: bytes) -> Any:
    """The value that ``body`` holds.

    Refusal (400, "invalid_json") if it is empty, not UTF-8 or begins with a byte order mark, is not
    JSON, names a key twice, holds a number beyond float64 or half a surrogate pair, is nested
    deeper than 64 levels, or holds more than 262144 values.
    """
    text = _text(body)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        told = f"{error.msg[0].lower()}{error.msg[1:]}".removesuffix(" at")
        raise _refusal(f"the body is not JSON: {told} at {_place(text, error.pos)}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_size(value)
    _check_pairs(text)
    return value


def _text(body: bytes) -> str:
    if not body.strip():
        raise _refusal("the body is empty; send a JSON object")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        place = _place(body[: error.start].decode(), error.start)
        raise _refusal(f"the body is not UTF-8 at {place}") from None
    if text.startswith("\ufeff"):
        raise _refusal("the body begins with a byte order mark; send it without")
    return text


def _place(text: str, position: int) -> str:
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _check_size(value: Any) -> None:
    level, count = [value], 1
    for _ in range(MAX_DEPTH):
        count += sum(len(parent) for parent in level if isinstance(parent, dict | list))
        if count > MAX_VALUES:
            raise _refusal(f"the body holds more than {MAX_VALUES} values; send fewer")
        if not (level := [v for parent in level for v in _children(parent)]):
            return
    raise _too_deep()


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [v for v in value.values() if isinstance(v, dict | list)]
    return [v for v in value if isinstance(v, dict | list)] if isinstance(value, list) else []


def _check_pairs(text: str) -> None:
    match = _WHOLE_PAIRS.match(text)
    if match and match.end() < len(text):
        escape = text[match.end() : match.end() + 6]
        place = _place(text, match.end())
        raise _refusal(f"{escape} at {place} is half of a surrogate pair; send whole characters")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
    raise _refusal(f"the key {twice[:80]!r} is given twice in one object; give it once")


def _float(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise _refusal(f"the number {_clip(text)} is too large; its size must be below 1.8e308")
    return number


def _int(text: str) -> int:
    if len(text) > 300:
        _float(text)  # so it has at most 309 digits, which Python reads without complaint
    return int(text)


def _constant(text: str) -> NoReturn:
    raise _refusal(f"{text} is not JSON; send a finite number")


def _clip(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"


def _refusal(message: str) -> Refusal:
    return Refusal(400, message, code="invalid_json")


def _too_deep() -> Refusal:
    return _refusal(f"the body is nested deeper than {MAX_DEPTH} levels; make it flatter")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_int=_int, parse_constant=_constant
)


class StrictRequest(Request):
    """A request whose body is read by ``parse``."""

    async def json(self) -> Any:
        """The body's value; Refusal as parse, and 415 if it is not called JSON."""
        if not hasattr(self, "_json"):
            body = await self.body()
            if body.strip():
                _check_type(self.headers.get("content-type", ""))
            # A long one may take a second, and other texts are written meanwhile.
            long = len(body) > _LONG
            self._json = await asyncio.to_thread(parse, body) if long else parse(body)
        return self._json


class StrictRoute(APIRoute):
    """A route whose JSON body is read by ``parse``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What FastAPI calls with each request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def strict(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            await request.json()  # here: FastAPI makes its own error of whatever it meets there
            return await handle(request)

        return strict


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or re.fullmatch(r"application/[^/\s]+\+json", kind):
        return
    given = f"not {kind[:80]!r}" if kind else "which is missing"
    told = f"the body must be JSON; send the header 'Content-Type: application/json', {given}"
    raise Refusal(415, told, code="unsupported_media_type")
