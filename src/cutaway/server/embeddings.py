"""``/v1/embeddings``: vectors of texts, in OpenAI's form.

Knows the request, two encodings of a vector, and how many texts one may ask for. Refuses to know
how a vector is made: ``Embedder`` does.
"""

import asyncio
from base64 import b64encode
from time import perf_counter
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.api.embedding import Embedder, Embeddings, VectorReader, read_vectors
from cutaway.errors import InputError
from cutaway.server.document import TEXT, replies
from cutaway.server.events import dumps
from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import RequestStats
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.openai.plain_schemas import Embeddings as Answer
from cutaway.server.openai.request_models import Body, Texts, examples
from cutaway.server.service import AccessRecord, Service, unless_gone

router = APIRouter(route_class=StrictRoute, tags=["text"])

_MOST_TEXTS = 2048  # as OpenAI has it
_LONG = 1 << 16  # characters, which take up to a second


class EmbeddingsRequest(Body):
    """Texts, and the form that their vectors have."""

    model_config = examples(
        {"input": "Paris is in France."},
        {"input": ["Paris", [79, 110]], "encoding_format": "base64", "pooling": "mean"},
    )
    model: str | None = Field(None, description="one of /v1/models; left out: the first")
    input: Texts = Field(description="a text or token ids, or a list of either")
    encoding_format: Literal["float", "base64"] | None = Field(None, description="default float")
    dimensions: int | None = Field(None, description="only the first so many numbers")
    user: str | None = Field(None, description="is in the log")
    pooling: Literal["mean", "cls", "last"] | None = Field(
        None, description="ours: of a text's rows; left out: what the model's files say"
    )
    normalize: bool | None = Field(
        None, description="ours: to length 1; left out: what the model's files say, or else true"
    )
    truncate: bool = Field(False, description="ours: cut texts that are longer than is read")


@router.post("/v1/embeddings", responses=replies(Answer, *TEXT))
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """A vector of each text, computed together with whatever else runs."""
    service: Service = request.app.state.service
    access = request.state.access = AccessRecord(service.named(body.model), body.user)
    access.prompt = body.input if service.log_prompts else None
    if service.draining:
        raise ApiError(503, "the server is stopping: ask another", code="stopping")
    data = await unless_gone(request.receive, _answer(service, body, access))
    return Response(data, media_type="application/json")


async def _answer(service: Service, body: EmbeddingsRequest, access: AccessRecord) -> bytes:
    started = perf_counter()
    thread = service.slow if sum(map(len, body.input)) > _LONG else None
    asked = await asyncio.get_running_loop().run_in_executor(thread, _read, service, body)
    readers = await read_vectors(service.llm.queue, asked)
    figures = [_figures(reader, perf_counter() - started) for reader in readers]
    for one in figures:
        service.metrics.finished(one)
    access.texts = figures
    found = asked.found([reader.vector() for reader in readers])
    return await asyncio.to_thread(_document, found, access.model, body.encoding_format)


def _read(service: Service, body: EmbeddingsRequest) -> Embedder:
    """The texts' tokens; others are served meanwhile."""
    texts = body.input
    if len(texts) > _MOST_TEXTS:
        raise ApiError(
            400, f"input has {len(texts)} texts; at most {_MOST_TEXTS}: ask several times",
            param="input",
        )  # fmt: skip
    for text in texts:
        if isinstance(text, str) and not body.truncate:
            service.check_length(text)
    try:
        return Embedder(
            service.llm, texts, pooling=body.pooling, normalize=body.normalize,
            dimensions=body.dimensions, truncate=body.truncate,
        )  # fmt: skip
    except InputError as error:
        raise InputError(str(error).replace("texts", "input", 1)) from error


def _document(found: Embeddings, model: str, form: str | None) -> bytes:
    little = found.vectors.astype("<f4")
    each: list[Any] = (
        [b64encode(vector.tobytes()).decode() for vector in little]
        if form == "base64"
        else np.asarray(little, np.float64).tolist()
    )
    tokens = sum(found.tokens)
    return dumps(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(each)
            ],
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            **found.how(),
        }
    )


def _figures(reader: VectorReader, seconds: float) -> RequestStats:
    started, ended = reader.started, reader.ended
    assert started is not None
    assert ended is not None
    return RequestStats(
        prompt_tokens=ended.usage.prompt_tokens, cached_tokens=ended.usage.cached_tokens,
        completion_tokens=0, finish_reason=ended.reason, queue_s=started.queued_s, ttft_s=None,
        decode_s=None, duration_s=seconds,
    )  # fmt: skip
