"""Texts that are read and not continued, batched with all other requests."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar

from fastapi import Request

from cutaway.engine import ArrivalReader, RunParams
from cutaway.engine import Request as EngineRequest
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask, read_all
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.metrics import RequestStats
from cutaway.server.models import admit
from cutaway.server.service import Service

T = TypeVar("T")
R = TypeVar("R", bound=EndListener)


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
