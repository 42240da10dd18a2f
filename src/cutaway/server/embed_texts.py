"""Embeds the texts of a request, batched with all other requests."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import Request

from cutaway.errors import InputError
from cutaway.methods.embedding import Embeddings, VectorReader, embedding
from cutaway.requests.prefill import PrefillTask
from cutaway.server.prefill import prefill_texts
from cutaway.server.service import Service

MOST_TEXTS = 2048  # as OpenAI has it


async def embed_texts(
    request: Request,
    model: str | None,
    texts: Sequence[str | list[int]],
    field: str,
    *,
    user: str | None = None,
    cache_salt: str | None = None,
    **how: Any,
) -> Embeddings:
    """Those of the texts in a field of a request; ``how``: keywords of ``LLM.embed``."""
    found, _ = await prefill_texts(
        request, model, partial(_read, texts=texts, field=field, how=how), said=[*texts],
        length=sum(map(len, texts)), user=user, cache_salt=cache_salt,
    )  # fmt: skip
    return found


def _read(
    service: Service, texts: Sequence[str | list[int]], field: str, how: dict[str, Any]
) -> PrefillTask[VectorReader, Embeddings]:
    """The texts' tokens."""
    check_count(field, len(texts))
    for text in texts:
        if isinstance(text, str) and not how.get("truncate"):
            service.llm.check_length(text)
    try:
        return embedding(service.llm, texts, **how)
    except InputError as error:
        raise type(error)(str(error).replace("texts", field, 1)) from error


def check_count(field: str, count: int) -> None:
    """InputError for more texts than one request may have."""
    if count > MOST_TEXTS:
        raise InputError(
            f"{field}: there are {count} texts, and at most {MOST_TEXTS} in one request: ask "
            "several times"
        )


def numbers_of(found: Embeddings) -> list[list[float]]:
    """The vectors as JSON has them."""
    numbers: list[list[float]] = found.vectors.astype(np.float64).tolist()
    return numbers
