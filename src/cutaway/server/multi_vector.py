"""``/v1/multi-vector``, in the form of Jina: a vector of each token, for late interaction."""

import asyncio
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.errors import InputError
from cutaway.methods.embedding import VectorReader
from cutaway.methods.late_interaction import TokenVectors, token_vectors
from cutaway.requests.prefill import PrefillTask
from cutaway.server.body import Body, Texts, examples, optional
from cutaway.server.document import TEXT, replies
from cutaway.server.embed_texts import check_count
from cutaway.server.events import dumps
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of
from cutaway.server.prefill import prefill_texts
from cutaway.server.service import Service
from cutaway.server.shared.keyword_fields import CACHE_SALT
from cutaway.server.shared.plain_schemas import MultiVectorList as Answer

router = APIRouter(route_class=StrictRoute, tags=["text"])


class MultiVectorRequest(Body):
    """Texts whose tokens have a vector each."""

    model_config = examples(
        {"input": ["Paris is in France."]},
        {"input": ["Where is Paris?"], "input_type": "query", "dimensions": 2},
    )
    model: str | None = optional("one of /v1/models; left out: the first")
    input: Texts = Field(description="a text or token ids, or a list of either")
    input_type: Literal["query", "document"] = Field(
        "document", description="how the model reads them"
    )
    embedding_type: Literal["float"] = Field("float", description="the numbers as JSON has them")
    dimensions: int | None = optional("how many numbers of each vector, from its first")
    user: str | None = optional("is in the log")
    cache_salt: str | None = CACHE_SALT
    truncate: bool = Field(False, description="ours: cut texts that are too long")


@router.post("/v1/multi-vector", responses=replies(Answer, *TEXT))
async def multi_vector(body: MultiVectorRequest, request: Request) -> Response:
    """A matrix of each text, computed together with whatever else runs."""

    def ask(service: Service) -> PrefillTask[VectorReader, TokenVectors]:
        check_count("input", len(body.input))
        for text in body.input:
            if isinstance(text, str) and not body.truncate:
                service.llm.check_length(text)
        try:
            return token_vectors(
                service.llm, body.input, body.input_type, body.dimensions, truncate=body.truncate,
                name="input[{i}]",
            )  # fmt: skip
        except InputError as error:
            raise type(error)(str(error).replace("texts", "input", 1)) from error

    found, _ = await prefill_texts(
        request, body.model, ask, said=[*body.input], length=sum(map(len, body.input)),
        user=body.user, cache_salt=body.cache_salt,
    )  # fmt: skip
    name = service_of(request, body.model).names.named(body.model)
    data = await asyncio.to_thread(_document, found, name)
    return Response(data, media_type="application/json")


def _document(found: TokenVectors, model: str) -> bytes:
    tokens = sum(found.tokens)
    each: list[Any] = [one.astype(np.float64).tolist() for one in found.vectors]
    return dumps(
        {
            "object": "list",
            "data": [
                {"object": "embeddings", "index": i, "embeddings": one, "token_ids": [*ids]}
                for i, (one, ids) in enumerate(zip(each, found.token_ids, strict=True))
            ],
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "truncated": [*found.truncated],
        }
    )
