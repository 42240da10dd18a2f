"""``/v1/embeddings``, and Ollama's ``/api/embed``: vectors of texts.

Knows the requests, and two encodings of a vector. Refuses to know how one is made: ``vectors``
does.
"""

import asyncio
from base64 import b64encode
from time import perf_counter
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.methods.embedding import Embeddings
from cutaway.server.body import Body, Texts, examples
from cutaway.server.document import TEXT, replies
from cutaway.server.events import dumps
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of
from cutaway.server.ollama.answers import nanoseconds
from cutaway.server.ollama.fields import STAYS, KeepAlive, OllamaMachine
from cutaway.server.ollama.keeping import keeping
from cutaway.server.ollama.schemas import OllamaEmbedded, OllamaVector
from cutaway.server.shared.plain_schemas import Embeddings as Answer
from cutaway.server.vectors import vectors

router = APIRouter(route_class=StrictRoute, tags=["text"])


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
    found = await vectors(
        request, body.model, body.input, "input", body.user, pooling=body.pooling,
        normalize=body.normalize, dimensions=body.dimensions, truncate=body.truncate,
    )  # fmt: skip
    name = service_of(request, body.model).names.named(body.model)
    data = await asyncio.to_thread(_document, found, name, body.encoding_format)
    return Response(data, media_type="application/json")


class EmbedRequest(Body):
    """Texts, in Ollama's form."""

    model_config = examples({"input": "Paris is in France."}, {"input": ["Paris", "Nizza"]})
    model: str | None = Field(None, description="one of /api/tags; left out: the first")
    input: Texts = Field(description="a text, or a list of texts")
    truncate: bool = Field(True, description="cut texts that are longer than is read")
    dimensions: int | None = Field(None, description="only the first so many numbers")
    options: OllamaMachine | None = Field(None, description="how a machine computes")
    keep_alive: KeepAlive = Field(None, description=STAYS)


class EmbeddingRequest(Body):
    """A text, in Ollama's older form."""

    model_config = examples({"prompt": "Paris is in France."})
    model: str | None = Field(None, description="one of /api/tags; left out: the first")
    prompt: str = Field(description="a text, which is cut where it is longer than is read")
    options: OllamaMachine | None = Field(None, description="how a machine computes")
    keep_alive: KeepAlive = Field(None, description=STAYS)


@router.post("/api/embed", responses=replies(OllamaEmbedded, *TEXT))
async def embed(body: EmbedRequest, request: Request) -> Response:
    """A vector of each text, in Ollama's form."""
    started, service = perf_counter(), service_of(request, body.model)
    keep = keeping(service.slot, body.keep_alive)
    found = await vectors(
        request, body.model, body.input, "input", dimensions=body.dimensions,
        truncate=body.truncate,
    )  # fmt: skip
    keep()
    each = await asyncio.to_thread(_numbers, found)
    answer: OllamaEmbedded = {
        "model": body.model or service.names.first,
        "embeddings": each,
        "total_duration": nanoseconds(perf_counter() - started),
        "load_duration": round(request.state.access.load_s * 1e9),
        "prompt_eval_count": sum(found.tokens),
    }
    return Response(await asyncio.to_thread(dumps, answer), media_type="application/json")


@router.post("/api/embeddings", responses=replies(OllamaVector, *TEXT))
async def embedding(body: EmbeddingRequest, request: Request) -> Response:
    """The vector of a text, in Ollama's older form."""
    keep = keeping(service_of(request, body.model).slot, body.keep_alive)
    found = await vectors(request, body.model, [body.prompt], "prompt", truncate=True)
    keep()
    answer: OllamaVector = {"embedding": _numbers(found)[0]}
    return Response(dumps(answer), media_type="application/json")


def _numbers(found: Embeddings) -> list[list[float]]:
    numbers: list[list[float]] = found.vectors.astype(np.float64).tolist()
    return numbers


def _document(found: Embeddings, model: str, form: str | None) -> bytes:
    little = found.vectors.astype("<f4")
    each: list[Any] = (
        [b64encode(vector.tobytes()).decode() for vector in little]
        if form == "base64"
        else _numbers(found)
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
