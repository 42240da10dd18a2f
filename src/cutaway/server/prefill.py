"""Texts that are read and not continued, batched with all other requests."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeVar

from fastapi import Request

from cutaway.engine import ArrivalReader
from cutaway.engine import Request as EngineRequest
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import read_all
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.metrics import RequestStats
from cutaway.server.models import admit
from cutaway.server.service import Service

_LONG = 1 << 16  # characters, which take up to a second


class EngineRequests(Protocol):
    """Texts to be read: what is needed of a Scorer or an Embedder."""

    @property
    def requests(self) -> Iterable[EngineRequest]:
        """One for each run of the engine."""


Q = TypeVar("Q", bound=EngineRequests)
R = TypeVar("R", bound=EndListener)


async def prefill_texts(
    request: Request,
    model: str | None,
    ask: Callable[[Service], Q],
    reader: Callable[[], R],
    *,
    said: Any,
    length: int,
    user: str | None = None,
) -> tuple[Q, list[R]]:
    """The question, and a reader of each of its requests, when all have ended.

    ask: reads the texts, in a thread; length: how many characters these are; said: for the log
    """
    service, access = admit(request, model, user, lambda: said)
    adapter = service.llm.adapter_hash(service.names.adapter(model))

    async def queue(requests: Sequence[tuple[EngineRequest, int]]) -> ArrivalReader:
        queued = await service.llm.queue(requests)
        access.load_s = max(access.load_s, queued.load_s)
        return queued

    async def read() -> tuple[Q, list[R]]:
        started = perf_counter()
        thread = service.slow if length > _LONG else None
        asked = await asyncio.get_running_loop().run_in_executor(thread, ask, service)
        requests = (one.but(adapter=adapter) for one in asked.requests)
        readers = await read_all(queue, requests, reader)
        access.texts = [_figures(one, perf_counter() - started) for one in readers]
        for figures in access.texts:
            service.metrics.finished(figures)
        return asked, readers

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
