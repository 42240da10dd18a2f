"""``/v1/embeddings``: vectors of texts."""

import asyncio
from base64 import b64encode
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.errors import InputError
from cutaway.methods.embedding import Embeddings
from cutaway.server.body import Body, Texts, examples, optional
from cutaway.server.document import TEXT, replies
from cutaway.server.embed_texts import embed_texts, numbers_of
from cutaway.server.events import dumps
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of
from cutaway.server.shared.keyword_fields import CACHE_SALT
from cutaway.server.shared.plain_schemas import EmbeddingList as Answer

router = APIRouter(route_class=StrictRoute, tags=["text"])


class EmbeddingsRequest(Body):
    """Texts, and the form that their vectors have."""

    model_config = examples(
        {"input": "Paris is in France."},
        {"input": ["Paris", [79, 110]], "encoding_format": "base64", "pooling": "mean"},
    )
    model: str | None = optional("one of /v1/models; left out: the first")
    input: Texts = Field(description="a text or token ids, or a list of either")
    encoding_format: Literal["float", "base64"] | None = optional("default float")
    dimensions: int | None = optional("how many numbers of each vector, from its first")
    user: str | None = optional("is in the log")
    cache_salt: str | None = CACHE_SALT
    pooling: Literal["mean", "cls", "last", "weighted"] | None = optional(
        "ours: how rows become one vector; left out: as the model's files say"
    )
    normalize: bool | None = optional(
        "ours: to length 1; left out: as the model's files say, or true"
    )
    prompt: str | None = optional(
        "ours: the name of one of the model's files, in front of each text (query, document)"
    )
    task: str | None = optional(
        "of a model that has adapters for tasks (jina v3): which computes, with its instruction as "
        "the prompt; as in Jina's API"
    )
    truncate: bool = Field(False, description="ours: cut texts that are too long")


@router.post("/v1/embeddings", responses=replies(Answer, *TEXT))
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """A vector of each text, computed together with whatever else runs."""
    names = service_of(request, body.model).names
    if body.task is not None and names.adapter(body.model):
        raise InputError(
            "task: model names an adapter, and a task has its own: name one of the two"
        )
    found = await embed_texts(
        request, body.model, body.input, "input", user=body.user, cache_salt=body.cache_salt,
        pooling=body.pooling, normalize=body.normalize, dimensions=body.dimensions,
        prompt=body.prompt, task=body.task, truncate=body.truncate,
    )  # fmt: skip
    name = names.named(body.model)
    data = await asyncio.to_thread(_document, found, name, body.encoding_format)
    return Response(data, media_type="application/json")


def _document(found: Embeddings, model: str, form: str | None) -> bytes:
    little = found.vectors.astype("<f4")
    each: list[Any] = (
        [b64encode(vector.tobytes()).decode() for vector in little]
        if form == "base64"
        else numbers_of(found)
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
