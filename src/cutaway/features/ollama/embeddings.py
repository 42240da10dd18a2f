"""Ollama's ``/api/embed`` and ``/api/embeddings``: vectors of texts."""

import asyncio
from time import perf_counter

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.features.ollama.answers import nanoseconds
from cutaway.features.ollama.fields import STAYS, KeepAlive, OllamaMachine
from cutaway.features.ollama.keep_alive import keep_alive_setter
from cutaway.features.ollama.schemas import OllamaEmbedded, OllamaVector
from cutaway.server.body import Body, Texts, examples, optional
from cutaway.server.document import TEXT, replies
from cutaway.server.embed_texts import embed_texts, numbers_of
from cutaway.server.events import dumps
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of

router = APIRouter(route_class=StrictRoute, tags=["text"])


class EmbedRequest(Body):
    """Texts, in Ollama's form."""

    model_config = examples({"input": "Paris is in France."}, {"input": ["Paris", "Nizza"]})
    model: str | None = optional("one of /api/tags; left out: the first")
    input: Texts = Field(description="a text, or a list of texts")
    truncate: bool = Field(True, description="cut texts that are too long")
    dimensions: int | None = optional("how many numbers of each vector, from its first")
    options: OllamaMachine | None = optional("of the machine")
    keep_alive: KeepAlive = optional(STAYS)


class EmbeddingRequest(Body):
    """A text, in Ollama's older form."""

    model_config = examples({"prompt": "Paris is in France."})
    model: str | None = optional("one of /api/tags; left out: the first")
    prompt: str = Field(description="a text, which is cut if it is too long")
    options: OllamaMachine | None = optional("of the machine")
    keep_alive: KeepAlive = optional(STAYS)


@router.post("/api/embed", responses=replies(OllamaEmbedded, *TEXT))
async def embed(body: EmbedRequest, request: Request) -> Response:
    """A vector of each text, in Ollama's form."""
    started, service = perf_counter(), service_of(request, body.model)
    keep = keep_alive_setter(service.slot, body.keep_alive)
    found = await embed_texts(
        request, body.model, body.input, "input", dimensions=body.dimensions,
        truncate=body.truncate,
    )  # fmt: skip
    keep()
    each = await asyncio.to_thread(numbers_of, found)
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
    keep = keep_alive_setter(service_of(request, body.model).slot, body.keep_alive)
    found = await embed_texts(request, body.model, [body.prompt], "prompt", truncate=True)
    keep()
    answer: OllamaVector = {"embedding": numbers_of(found)[0]}
    return JSONResponse(answer)
