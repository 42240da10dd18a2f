"""Answers requests of every protocol: writes texts, whole or streamed, or only reads texts.

Starts and ends jobs and functions on the model. Refuses to know any form of an answer: each
protocol's ``Events`` writes its own.
"""

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

from fastapi import Request
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.engine import ArrivalReader, RunParams
from cutaway.engine import Request as EngineRequest
from cutaway.errors import InputError
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask, read_all
from cutaway.server.event_stream import Events, EventStream, dumps_by_parts
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.http.metrics import RequestStats
from cutaway.server.job import TextJob
from cutaway.server.service import Service, admit, answer_id, service_of

T = TypeVar("T")
R = TypeVar("R", bound=EndListener)
P = ParamSpec("P")


# -- texts, whole or streamed ------------------------------------------------------------------


async def answer(
    request: Request,
    body: Any,
    make: Callable[[Service, Any, TextJob, str], Events],
    on_queued: Callable[[], object] = lambda: None,
) -> Response:
    """Run a request for text and answer it; if the client disconnects, its sequences are aborted.

    body       the request's fields; see ``TextFields``
    make       builds the answer from the model, the body, the job and the request's id
    on_queued  called once the request's texts are in the queue
    """
    service, access = admit(request, body.model, body.user, body.prompt_to_log)
    id = answer_id(request)

    async def start() -> TextJob:
        prompts, keywords, use = await body.read(service)
        return await service.start(
            prompts, keywords, use, access, adapter=service.names.adapter(body.model),
            fill=body.FILL, stream=bool(body.stream), trace=body.trace,
        )  # fmt: skip

    job = await cancel_on_disconnect(request.receive, _await_with_client_names(body, start()))
    on_queued()
    if keep := request.app.state.keep:
        job.on_closed = partial(keep, id)
    events = make(service, body, job, id)
    if body.stream:
        return EventStream(job, events, service.keep_alive)
    with job:
        await cancel_on_disconnect(request.receive, job.finish())
    # Writing a long answer may take a second, and would hold up other requests in the event loop.
    whole = await asyncio.to_thread(lambda: dumps_by_parts(events.whole()))
    return Response(whole, media_type="application/json")


async def _await_with_client_names(body: Any, work: Awaitable[T]) -> T:
    """Await the work; name the field of an InputError as the request's protocol names it."""
    try:
        return await work
    except InputError as error:
        name = body.field_names().get(error.field, error.field)
        if name == error.field:
            raise
        raise type(error)(name, ": ", *error.args) from error


# -- texts that are read and not continued, batched with all other requests --------------------


async def prefill_texts(
    request: Request,
    model: str | None,
    ask: Callable[[Service], PrefillTask[R, T]],
    *,
    prompt: Any,
    length: int,
    user: str | None = None,
    cache_salt: str | None = None,
) -> tuple[T, list[R]]:
    """Return a task's answer and the reader of each of its requests, once all requests have ended.

    ask         makes the task; called in a thread, since it tokenizes the texts
    length      how many characters all texts have
    prompt      the prompt for the log
    cache_salt  see ``RunParams``
    """
    run = RunParams(cache_salt=cache_salt)
    service, access = admit(request, model, user, lambda: prompt)
    adapter = service.llm.adapter_hash(service.names.adapter(model))

    async def queue(requests: Sequence[tuple[EngineRequest, int]]) -> ArrivalReader:
        queued = await service.llm.queue(requests)
        access.load_s = max(access.load_s, queued.load_s)
        return queued

    async def read() -> tuple[T, list[R]]:
        started = perf_counter()
        task = await service.llm.read_in_turn(length, ask, service)
        requests = (r.but(adapter=adapter or r.adapter, run=run) for r in task.requests)
        readers = await read_all(queue, requests, task.reader)
        access.texts = [_figures(reader, perf_counter() - started) for reader in readers]
        for figures in access.texts:
            service.metrics.count_sequence(figures)
        return task.answer(readers), readers

    return await cancel_on_disconnect(request.receive, read())


def _figures(reader: EndListener, seconds: float) -> RequestStats:
    started, end = reader.started, reader.end
    assert started is not None
    assert end is not None
    return RequestStats(
        prompt_tokens=end.usage.prompt_tokens, cached_tokens=end.usage.cached_tokens,
        completion_tokens=0, finish_reason=end.reason, queue_s=started.queued_s, ttft_s=None,
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
    """Call a function with the named model and the arguments, and return its result.

    The call is cancelled if the client disconnects. Function, arguments and result are pickled if
    the model is in another process. QueueFullError if too many calls wait.
    """
    service = service_of(request, model)
    service.check_open()
    adapter = service.names.adapter(model)
    result = service.llm.run_in_turn(_call_with_adapter, adapter, function, args, kwargs)
    return await cancel_on_disconnect(request.receive, result)


def _call_with_adapter(
    llm: LLM,
    adapter: str,
    function: Callable[..., T],
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
) -> T:
    return function(llm.with_adapter(adapter), *args, **kwargs)
