"""Vectors of texts for whoever asks over HTTP, computed together with whatever else runs.

Knows how many texts one request may have, and what of them is counted. Refuses to know forms.
"""

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from fastapi import Request

from cutaway.api.embedding import Embedder, Embeddings, VectorReader
from cutaway.api.reading import read_all
from cutaway.errors import InputError
from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import RequestStats
from cutaway.server.service import AccessRecord, Service, unless_gone

MOST_TEXTS = 2048  # as OpenAI has it
_LONG = 1 << 16  # characters, which take up to a second


async def vectors(
    request: Request,
    model: str | None,
    texts: Sequence[str | list[int]],
    field: str,
    user: str | None = None,
    **how: Any,
) -> Embeddings:
    """Those of the texts in a field of a request; ``how``: keywords of ``Embedder``."""
    service: Service = request.app.state.service
    access = request.state.access = AccessRecord(service.named(model), user)
    access.prompt = [*texts] if service.log_prompts else None
    if service.draining:
        raise ApiError(503, "the server is stopping: ask another", code="stopping")
    return await unless_gone(request.receive, _found(service, access, texts, field, how))


async def _found(
    service: Service,
    access: AccessRecord,
    texts: Sequence[str | list[int]],
    field: str,
    how: dict[str, Any],
) -> Embeddings:
    started = perf_counter()
    thread = service.slow if sum(map(len, texts)) > _LONG else None
    reading = asyncio.get_running_loop().run_in_executor(thread, _read, service, texts, field, how)
    asked = await reading
    readers = await read_all(service.llm.queue, asked.requests, VectorReader)
    figures = [_figures(reader, perf_counter() - started) for reader in readers]
    for one in figures:
        service.metrics.finished(one)
    access.texts = figures
    return asked.found([reader.vector() for reader in readers])


def _read(
    service: Service, texts: Sequence[str | list[int]], field: str, how: dict[str, Any]
) -> Embedder:
    """The texts' tokens; others are served meanwhile."""
    if len(texts) > MOST_TEXTS:
        raise ApiError(
            400, f"{field} has {len(texts)} texts; at most {MOST_TEXTS}: ask several times",
            param=field,
        )  # fmt: skip
    for text in texts:
        if isinstance(text, str) and not how.get("truncate"):
            service.check_length(text)
    try:
        return Embedder(service.llm, texts, **how)
    except InputError as error:
        raise InputError(str(error).replace("texts", field, 1)) from error


def _figures(reader: VectorReader, seconds: float) -> RequestStats:
    started, ended = reader.started, reader.ended
    assert started is not None
    assert ended is not None
    return RequestStats(
        prompt_tokens=ended.usage.prompt_tokens, cached_tokens=ended.usage.cached_tokens,
        completion_tokens=0, finish_reason=ended.reason, queue_s=started.queued_s, ttft_s=None,
        decode_s=None, duration_s=seconds,
    )  # fmt: skip
