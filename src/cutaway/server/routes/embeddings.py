"""``/v1/embeddings``, and ``/v1/multi-vector`` in the form of Jina: vectors of texts or tokens.

Knows the fields and the answer of each endpoint. Refuses to know how rows are pooled.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.errors import InputError, Name, TooLongError
from cutaway.methods.embedding import Embeddings, VectorReader, embed, naming
from cutaway.methods.late_interaction import TokenVectors, embed_tokens
from cutaway.requests.prefill import PrefillTask
from cutaway.server.answering import prefill_texts
from cutaway.server.body import Body, StrictRoute, Texts, examples, optional
from cutaway.server.document import QUEUE_ERRORS, replies
from cutaway.server.event_stream import dumps
from cutaway.server.service import Service, service_of
from cutaway.server.shared.fields import CACHE_SALT
from cutaway.server.shared.plain_schemas import EmbeddingList, MultiVectorList

router = APIRouter(route_class=StrictRoute, tags=["text"])
T = TypeVar("T")


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


@router.post("/v1/embeddings", responses=replies(EmbeddingList, *QUEUE_ERRORS))
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """A vector of each text, computed together with whatever else runs."""
    names = service_of(request, body.model).names
    if body.task is not None and names.adapter(body.model):
        raise InputError(
            "task", ": model names an adapter, and a task has its own: name one of the two"
        )
    vectors = await embed_texts(
        request, body.model, body.input, "input", user=body.user, cache_salt=body.cache_salt,
        pooling=body.pooling, normalize=body.normalize, dimensions=body.dimensions,
        prompt=body.prompt, task=body.task, truncate=body.truncate,
    )  # fmt: skip
    name = names.resolve(body.model)
    data = await asyncio.to_thread(_vectors, vectors, name, body.encoding_format)
    return Response(data, media_type="application/json")


def _vectors(embeddings: Embeddings, model: str, form: str | None) -> bytes:
    little = embeddings.vectors.astype("<f4")
    encoded: list[Any] = (
        [b64encode(vector.tobytes()).decode() for vector in little]
        if form == "base64"
        else numbers_of(embeddings)
    )
    tokens = sum(embeddings.tokens)
    return dumps(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": entry}
                for i, entry in enumerate(encoded)
            ],
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            **embeddings.how(),
        }
    )


# -- /v1/multi-vector: a vector of each token, for late interaction ----------------------------


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


@router.post("/v1/multi-vector", responses=replies(MultiVectorList, *QUEUE_ERRORS))
async def multi_vector(body: MultiVectorRequest, request: Request) -> Response:
    """A matrix of each text, computed together with whatever else runs."""

    matrices, _ = await prefill_texts(
        request, body.model,
        _make_ask(
            embed_tokens, body.input, "input", partial(Name, "input"), kind=body.input_type,
            dimensions=body.dimensions, truncate=body.truncate,
        ),
        prompt=[*body.input], length=sum(map(len, body.input)), user=body.user,
        cache_salt=body.cache_salt,
    )  # fmt: skip
    name = service_of(request, body.model).names.resolve(body.model)
    data = await asyncio.to_thread(_matrices, matrices, name)
    return Response(data, media_type="application/json")


def _matrices(matrices: TokenVectors, model: str) -> bytes:
    tokens = sum(matrices.tokens)
    rows: list[Any] = [matrix.astype(np.float64).tolist() for matrix in matrices.vectors]
    return dumps(
        {
            "object": "list",
            "data": [
                {"object": "embeddings", "index": i, "embeddings": matrix, "token_ids": [*ids]}
                for i, (matrix, ids) in enumerate(zip(rows, matrices.token_ids, strict=True))
            ],
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "truncated": [*matrices.truncated],
        }
    )


# -- embeddings of texts, batched with all other requests --------------------------------------


MOST_TEXTS = 2048  # OpenAI's limit


async def embed_texts(
    request: Request,
    model: str | None,
    texts: Sequence[str | list[int]],
    field: str,
    place: Callable[[int], str] | None = None,
    *,
    user: str | None = None,
    cache_salt: str | None = None,
    **options: Any,
) -> Embeddings:
    """Return the embeddings of the texts in a field of a request.

    place    returns a text's name in errors, by its index; None: ``field`` and the index
    options  keywords of ``LLM.embed``
    """
    ask = _make_ask(embed, texts, field, place or partial(Name, field), **options)
    embeddings, _ = await prefill_texts(
        request, model, ask, prompt=[*texts], length=sum(map(len, texts)), user=user,
        cache_salt=cache_salt,
    )  # fmt: skip
    return embeddings


def _make_ask(
    method: Callable[..., PrefillTask[VectorReader, T]],
    texts: Sequence[str | list[int]],
    field: str,
    place: Callable[[int], str],
    **options: Any,
) -> Callable[[Service], PrefillTask[VectorReader, T]]:
    def ask(service: Service) -> PrefillTask[VectorReader, T]:
        check_count(field, len(texts))
        for i, text in enumerate(texts):
            if isinstance(text, str) and not options.get("truncate"):
                _check_length(service, text, place(i))
        with naming(place):
            return method(service.llm, texts, **options)

    return ask


def _check_length(service: Service, text: str, place: str) -> None:
    try:
        service.llm.check_length(text)
    except TooLongError as error:
        raise TooLongError(place, ": ", *error.args) from None


def check_count(field: str, count: int) -> None:
    """InputError for more than MOST_TEXTS texts in a field."""
    if count > MOST_TEXTS:
        raise InputError(
            field,
            f": there are {count} texts, and at most {MOST_TEXTS} in one request: ask "
            "several times",
        )


def numbers_of(embeddings: Embeddings) -> list[list[float]]:
    """Return the vectors as lists of numbers."""
    numbers: list[list[float]] = embeddings.vectors.astype(np.float64).tolist()
    return numbers
