"""How a request is answered, whatever its protocol: texts, whole or streamed, and readings.

Knows the jobs and functions that it starts and ends, events and disconnects. Refuses to know any
form of an answer: a protocol gives its own as ``Events``.
"""

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from itertools import chain
from math import inf
from time import perf_counter, thread_time
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cutaway.api.llm import LLM
from cutaway.engine import ArrivalReader, Event, RunParams
from cutaway.engine import Request as EngineRequest
from cutaway.errors import CutawayError, InputError
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask, read_all
from cutaway.server.http.errors import ApiError, of_text
from cutaway.server.http.exchange import cancel_on_disconnect
from cutaway.server.http.metrics import RequestStats
from cutaway.server.job import TextJob
from cutaway.server.service import Service, admit, answer_id, service_of

T = TypeVar("T")
R = TypeVar("R", bound=EndListener)
P = ParamSpec("P")


# Line ends to str.splitlines, and so to clients that read a stream line by line, though JSON may
# hold them as they are.
_LINE_ENDS = {c: f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}
_DEPTH, _FEW, _ITEMS = 7, 128, 16
"""How deep parts are looked for; a list of more than so many is written some at a time."""
_LONG_S = 0.005  # that others may wait
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # or proxies would buffer


def dumps(document: Any) -> bytes:
    """JSON as it is sent: one line, whatever a client takes for a line's end."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for end, escape in _LINE_ENDS.items():
        text = text.replace(end, escape)
    return text.encode()


def dumps_by_parts(document: Any) -> bytes:
    """As dumps, for a large document in a thread: others run between its parts."""
    return b"".join(_parts(document, _DEPTH))


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    if not (depth and value and isinstance(value, dict | list)):
        yield dumps(value)
    elif isinstance(value, dict):
        for i, (key, inner) in enumerate(value.items()):
            yield (b"," if i else b"{") + dumps({key: 0})[1:-2]
            yield from _parts(inner, depth - 1)
        yield b"}"
    elif isinstance(value[0], dict) and len(value) <= _FEW:
        for i, inner in enumerate(value):
            yield b"," if i else b"["
            yield from _parts(inner, depth - 1)
        yield b"]"
    else:
        for i in range(0, len(value), _ITEMS):
            yield (b"," if i else b"[") + dumps(value[i : i + _ITEMS])[1:-1]
        yield b"]"


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
        self._event_s = inf  # processor time of an event; nothing is known of the first

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
                yield await self._written(new)
                if not new:
                    break
            yield await asyncio.to_thread(lambda: b"".join(self._events.end()))
        except CutawayError as error:
            if not self._answered:
                raise
            yield b"".join([*self._begin(), *self._events.failed(of_text(error))])
        except Exception:
            if self._answered:
                message = "something went wrong in the server, and its log says what"
                yield b"".join([*self._begin(), *self._events.failed(ApiError(500, message))])
            raise

    async def _written(self, new: Sequence[tuple[int, Event]]) -> bytes:
        """What the events add: beside the event loop where that takes long.

        Those of a reader who is slow are many, and so are the log-probabilities of 64 texts.
        """
        if len(new) * self._event_s < _LONG_S:
            return self._write(new)
        return await asyncio.to_thread(self._write, new)

    def _write(self, new: Sequence[tuple[int, Event]]) -> bytes:
        began = thread_time()
        parts = (self._events.progress(*one) for one in new)
        data = b"".join([*self._begin(), *chain.from_iterable(parts)])
        self._event_s = (thread_time() - began) / (len(new) or 1)
        return data

    def _begin(self) -> Iterable[bytes]:
        """The opening events, once."""
        begun, self._begun = self._begun, True
        return () if begun else self._events.begin()


# -- texts, whole or streamed ------------------------------------------------------------------


async def answer(
    request: Request,
    body: Any,
    make: Callable[[Service, Any, TextJob, str], Events],
    begun: Callable[[], object] = lambda: None,
) -> Response:
    """Run a request and answer it; when the client disconnects, its sequences are aborted.

    body: the fields of a request for text; see ``TextFields``
    make: the answer's builder
    begun: called when its texts are in the queue
    """
    service, access = admit(request, body.model, body.user, body.said)
    id = answer_id(request)

    async def start() -> TextJob:
        prompts, given, use = await body.read(service)
        return await service.start(
            prompts, given, use, access, adapter=service.names.adapter(body.model),
            fill=body.FILL, stream=bool(body.stream), trace=body.trace,
        )  # fmt: skip

    job = await cancel_on_disconnect(request.receive, _named(body, start()))
    begun()
    if keep := request.app.state.keep:
        job.closed = partial(keep, id)
    events = make(service, body, job, id)
    if body.stream:
        return EventStream(job, events, service.keep_alive)
    with job:
        await cancel_on_disconnect(request.receive, job.finish())
    # A long one may take a second, while other requests run.
    whole = await asyncio.to_thread(lambda: dumps_by_parts(events.whole()))
    return Response(whole, media_type="application/json")


async def _named(body: Any, work: Awaitable[T]) -> T:
    """The result; an InputError has the name that the field has in this request."""
    try:
        return await work
    except InputError as error:
        word = str(error).split(maxsplit=1)[0].rstrip(":")
        name = body.called().get(word, word)
        raise type(error)(str(error) if name == word else f"{name}: {error}") from error


# -- texts that are read and not continued, batched with all other requests --------------------


async def prefill_texts(
    request: Request,
    model: str | None,
    ask: Callable[[Service], PrefillTask[R, T]],
    *,
    said: Any,
    length: int,
    user: str | None = None,
    cache_salt: str | None = None,
) -> tuple[T, list[R]]:
    """The answer to a task, and a reader of each of its requests, when all have ended.

    ask: reads the texts, in a thread; length: how many characters these are; said: for the log
    cache_salt: see ``RunParams``
    """
    run = RunParams(cache_salt=cache_salt)
    service, access = admit(request, model, user, lambda: said)
    adapter = service.llm.adapter_hash(service.names.adapter(model))

    async def queue(requests: Sequence[tuple[EngineRequest, int]]) -> ArrivalReader:
        queued = await service.llm.queue(requests)
        access.load_s = max(access.load_s, queued.load_s)
        return queued

    async def read() -> tuple[T, list[R]]:
        started = perf_counter()
        task = await service.llm.in_turn(length, ask, service)
        requests = (one.but(adapter=adapter or one.adapter, run=run) for one in task.requests)
        readers = await read_all(queue, requests, task.reader)
        access.texts = [_figures(one, perf_counter() - started) for one in readers]
        for figures in access.texts:
            service.metrics.finished(figures)
        return task.found(readers), readers

    return await cancel_on_disconnect(request.receive, read())


def _figures(reader: EndListener, seconds: float) -> RequestStats:
    started, ended = reader.started, reader.ended
    assert started is not None
    assert ended is not None
    return RequestStats(
        prompt_tokens=ended.usage.prompt_tokens, cached_tokens=ended.usage.cached_tokens,
        completion_tokens=0, finish_reason=ended.reason, queue_s=started.queued_s, ttft_s=None,
        decode_s=None, duration_s=seconds,
    )  # fmt: skip


# -- functions on the model beside running requests, one at a time, by clients in turn ---------


async def run_exclusive(
    request: Request,
    model: str | None,
    function: Callable[Concatenate[LLM, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """The result of a function of the named model and the arguments; cancelled when the client
    disconnects. All are pickled if the model is in another process. QueueFullError where too many
    wait.
    """
    service = service_of(request, model)
    service.check_open()
    adapter = service.names.adapter(model)
    doing = service.llm.run_in_turn(_under, adapter, function, args, kwargs)
    return await cancel_on_disconnect(request.receive, doing)


def _under(
    llm: LLM,
    adapter: str,
    function: Callable[..., T],
    args: Iterable[Any],
    named: Mapping[str, Any],
) -> T:
    return function(llm.with_adapter(adapter), *args, **named)
