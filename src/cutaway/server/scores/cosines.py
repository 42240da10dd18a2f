"""Cosines of texts' vectors."""

import re
from collections.abc import Callable, Sequence
from math import fsum, sqrt

from fastapi import Request

from cutaway.errors import InputError
from cutaway.server.embed_texts import check_count, embed_texts
from cutaway.server.shared.plain_schemas import TokensRead


async def cosines(
    request: Request,
    model: str | None,
    texts: Sequence[str | list[int]],
    pairs: Sequence[tuple[int, int]],
    *,
    fields: str,
    named: Callable[[int], str],
    user: str | None,
    cache_salt: str | None,
) -> tuple[list[float], TokensRead]:
    """Of each pair of the texts, and how many tokens were read.

    fields: which have the texts, and named: which has one of them, in errors
    """
    check_count(fields, len(texts))
    try:
        found = await embed_texts(request, model, texts, "texts", user=user, cache_salt=cache_salt)
    except InputError as error:
        message = re.sub(r"^texts\[(\d+)\]", lambda m: named(int(m[1])), str(error))
        raise type(error)(message) from error
    rows: list[list[float]] = found.vectors.astype(float).tolist()
    lengths = [sqrt(fsum(x * x for x in row)) or 1.0 for row in rows]
    each = [_dot(rows[a], rows[b]) / (lengths[a] * lengths[b]) for a, b in pairs]
    read = sum(found.tokens)
    return each, {"prompt_tokens": read, "total_tokens": read}


def refuse_asked(method: str, **fields: bool) -> None:
    """InputError naming the first given field that a comparison of vectors does not have."""
    known = {"cosine": "a cosine", "head": "a head that scores", "maxsim": "late interaction"}
    what = known.get(method)
    for field in (field for field, given in fields.items() if given and what):
        why = "is of no tokens" if field == "trace" else "is asked nothing"
        raise InputError(f"{field}: {what} {why}; leave it out")


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return fsum(x * y for x, y in zip(a, b, strict=True))  # in no order that a machine chooses
