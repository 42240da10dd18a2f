"""Server-sent events: the stream of an answer, keep-alive comments, disconnects."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import chain
from typing import Any, ClassVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cutaway.engine import Event
from cutaway.errors import CutawayError
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.errors import ApiError, of_text
from cutaway.server.job import TextJob

# Line ends to str.splitlines, and so to clients that read a stream line by line, though JSON may
# hold them as they are.
_LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # or proxies would buffer


def dumps(document: Any) -> bytes:
    """JSON as it is sent: one line, whatever a client takes for a line's end."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_LINE_ENDS).encode() if not text.isascii() else text.encode()


def event(document: Any, name: str | None = None) -> bytes:
    """One event; its data is one line."""
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return head + b"data: %s\n\n" % dumps(document)


class Events:
    """A response, whole or as a stream of events; each endpoint has its own."""

    MEDIA_TYPE: ClassVar[str] = "text/event-stream"

    def whole(self) -> Any:
        """The whole response as JSON, once all sequences have ended."""
        raise NotImplementedError

    def begin(self) -> Iterable[bytes]:
        """Sent just before the first token."""
        raise NotImplementedError

    def progress(self, index: int, event: Event) -> Iterable[bytes]:
        """After a step of a text, its end, or a pass over its canvas: see ``TextJob.read``."""
        raise NotImplementedError

    def end(self) -> Iterable[bytes]:
        """When all sequences have ended."""
        raise NotImplementedError

    def alive(self) -> bytes:
        """After a long silence: a comment, which clients ignore."""
        return b": keep-alive\n\n"

    def failed(self, refusal: ApiError) -> Iterable[bytes]:
        """When generation failed."""
        yield event(refusal.document())


class EventStream(Response):
    """An ASGI response that reads a job to its end; a disconnect closes the job.

    It begins with the first token, so that timing its first event measures that token. A failure
    before it is a response of its own, unless a comment has kept the connection alive.
    """

    def __init__(self, job: TextJob, events: Events, keep_alive: float) -> None:
        """keep_alive: seconds without an event after which a keep-alive is sent."""
        self.media_type = events.MEDIA_TYPE
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._job, self._events, self._keep_alive = job, events, keep_alive
        self._answered, self._begun = False, False

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        with self._job:
            await cancel_on_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                if not self._answered:
                    self._answered = True
                    headers = self.raw_headers
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        """Events of one engine step are sent together."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._keep_alive):
                        new = await self._job.read()
                except TimeoutError:
                    yield self._events.alive()
                    continue
                parts = (self._events.progress(*one) for one in new)
                yield b"".join([*self._begin(), *chain.from_iterable(parts)])
                if not new:
                    break
            yield b"".join(self._events.end())
        except CutawayError as error:
            if not self._answered:
                raise
            yield b"".join([*self._begin(), *self._events.failed(of_text(error))])
        except Exception:
            if self._answered:
                message = "something went wrong in the server, and its log says what"
                yield b"".join([*self._begin(), *self._events.failed(ApiError(500, message))])
            raise

    def _begin(self) -> Iterable[bytes]:
        """The opening events, once."""
        begun, self._begun = self._begun, True
        return () if begun else self._events.begin()
