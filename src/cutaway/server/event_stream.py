"""Server-sent events and JSON: sends an answer of any protocol, whole or as a stream.

Knows a job's end, errors and disconnects, and which work would hold up other requests. Refuses to
know an answer's content: each protocol writes it as ``Events``.
"""

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from itertools import chain
from math import inf
from time import thread_time
from typing import Any, ClassVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cutaway.engine import Arrival, Event
from cutaway.errors import CutawayError
from cutaway.server.http.errors import ApiError, to_api_error
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.job import TextJob

# str.splitlines ends a line at these characters, and so does a client that reads a stream line by
# line; but JSON may contain them unescaped.
_LINE_ENDS = {c: f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}
_DEPTH, _FEW, _ITEMS = 7, 128, 16
"""How many levels of a document are split; the longest list that is split into single items; how
many items of a longer list are encoded at a time."""
_LONG_S = 0.005  # the longest that encoding may hold up the event loop
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # or proxies would buffer


def dumps(document: Any) -> bytes:
    """Return JSON on one line; escape every character that a client takes for a line's end."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for end, escape in _LINE_ENDS.items():
        text = text.replace(end, escape)
    return text.encode()


def dumps_by_parts(document: Any) -> bytes:
    """Encode as ``dumps`` does, but in parts, so that other threads can run between the parts.

    document: any ``bytes`` in the document are JSON already, and are copied
    """
    return b"".join(_parts(document, _DEPTH))


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif not (depth and value and isinstance(value, dict | list)):
        yield dumps(value)
    elif isinstance(value, dict):
        for i, (key, inner) in enumerate(value.items()):
            yield (b"," if i else b"{") + dumps({key: 0})[1:-2]
            yield from _parts(inner, depth - 1)
        yield b"}"
    elif isinstance(value[0], bytes) or (isinstance(value[0], dict) and len(value) <= _FEW):
        for i, inner in enumerate(value):
            yield b"," if i else b"["
            yield from _parts(inner, depth - 1)
        yield b"]"
    else:
        for i in range(0, len(value), _ITEMS):
            yield (b"," if i else b"[") + dumps(value[i : i + _ITEMS])[1:-1]
        yield b"]"


def event(document: Any, name: str | None = None) -> bytes:
    """Return one event, whose data is one line."""
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return head + b"data: %s\n\n" % dumps(document)


class Events:
    """A response, whole or as a stream of events; each form of answer has a subclass."""

    MEDIA_TYPE: ClassVar[str] = "text/event-stream"

    def whole(self) -> Any:
        """Return the whole response as JSON, once all sequences have ended."""
        raise NotImplementedError

    def begin(self) -> Iterable[bytes]:
        """Return the bytes that are sent before the first token's."""
        raise NotImplementedError

    def progress(self, index: int, event: Event) -> Iterable[bytes]:
        """Return the bytes for a step, a pass or the end of a text: see ``TextJob.read``."""
        raise NotImplementedError

    def end(self) -> Iterable[bytes]:
        """Return the bytes that are sent once all sequences have ended."""
        raise NotImplementedError

    def alive(self) -> bytes:
        """Return the bytes that are sent after a long silence: a comment, which clients ignore."""
        return b": keep-alive\n\n"

    def fail(self, refusal: ApiError) -> Iterable[bytes]:
        """Return the bytes that are sent if generation fails."""
        yield event(refusal.document())


class EventStream(Response):
    """An ASGI response that reads a job to its end; a disconnect closes the job.

    The response begins with the first token, so that clients measure the time to the first token.
    A failure before that is an error response, unless a keep-alive comment was already sent.
    """

    def __init__(self, job: TextJob, events: Events, keep_alive: float) -> None:
        """keep_alive: seconds without an event after which a keep-alive is sent."""
        self.media_type = events.MEDIA_TYPE
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._job, self._events, self._keep_alive = job, events, keep_alive
        self._headers_sent, self._opening_sent = False, False
        self._event_s = inf  # seconds of processor time for an event; unknown before the first

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        with self._job:
            await cancel_on_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                if not self._headers_sent:
                    self._headers_sent = True
                    headers = self.raw_headers
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of each message: the events of one engine step are sent together."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._keep_alive):
                        new = await self._job.read()
                except TimeoutError:
                    yield self._events.alive()
                    continue
                yield await self._encode(new)
                if not new:
                    break
            yield await asyncio.to_thread(lambda: b"".join(self._events.end()))
        except CutawayError as error:
            if not self._headers_sent:
                raise
            yield b"".join([*self._begin(), *self._events.fail(to_api_error(error))])
        except Exception:
            if self._headers_sent:
                message = "something went wrong in the server, and its log says what"
                yield b"".join([*self._begin(), *self._events.fail(ApiError(500, message))])
            raise

    async def _encode(self, new: Sequence[Arrival]) -> bytes:
        """Return the events of these arrivals; encode them in a thread if that takes long.

        A slow client gets many arrivals at once, and 64 texts have many log-probabilities.
        """
        if len(new) * self._event_s < _LONG_S:
            return self._encode_now(new)
        return await asyncio.to_thread(self._encode_now, new)

    def _encode_now(self, new: Sequence[Arrival]) -> bytes:
        began = thread_time()
        parts = (self._events.progress(arrival.sequence_index, arrival.event) for arrival in new)
        data = b"".join([*self._begin(), *chain.from_iterable(parts)])
        self._event_s = (thread_time() - began) / (len(new) or 1)
        return data

    def _begin(self) -> Iterable[bytes]:
        """Return the opening events the first time, nothing after that."""
        already_sent, self._opening_sent = self._opening_sent, True
        return () if already_sent else self._events.begin()
