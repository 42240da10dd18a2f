"""Why two texts are near: the cosine of their vectors, split over the tokens of both.

With mean pooling a vector is a sum, so that the cosine is one, too: of token i of one text and
token j of the other, rᵢ·sⱼ / (n·m·|v|·|w|). The shares add up to the cosine. What follows pooling
must be linear, without a bias.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.engine import Embed, Request
from cutaway.errors import InputError
from cutaway.methods.embedding import FramedTexts, VectorReader, request_parts
from cutaway.requests.prefill import PrefillTask

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

_MOST_WORDS = 256  # of both texts, each of which is left out once


@dataclass(frozen=True)
class LeftOut:
    """A word of a text, and the cosine without it. which: 0 or 1; start, stop: characters."""

    which: int
    word: str
    start: int
    stop: int
    cosine: float


@dataclass(frozen=True)
class Nearness:
    """How near two texts are, and why.

    cosine    of their vectors
    tokens    names of the tokens of each text
    shares    float64 (tokens of the first, tokens of the second): they add up to the cosine
    left_out  what the cosine is without each word
    """

    cosine: float
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    shares: NDArray[np.float64]
    left_out: tuple[LeftOut, ...]

    def of_tokens(self) -> tuple[list[float], list[float]]:
        """What each token of the first text, and of the second, has of the cosine."""
        return tuple([fsum(row) for row in rows.tolist()] for rows in (self.shares, self.shares.T))  # type: ignore[return-value]

    def pairs(self, count: int) -> list[tuple[int, int, float]]:
        """(token of the first, token of the second, share), the largest shares first."""
        order = np.argsort(-self.shares, axis=None, kind="stable")[:count]
        places = [divmod(int(place), self.shares.shape[1]) for place in order]
        return [(i, j, float(self.shares[i, j])) for i, j in places]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "cosine": self.cosine, "tokens": [[*one] for one in self.tokens],
            "shares": self.shares.tolist(), "left_out": [vars(one) for one in self.left_out],
        }  # fmt: skip


def nearness(
    llm: "BaseLLM",
    first: str,
    second: str,
    *,
    words: bool = True,
    prompt: str | None = None,
    adapter: str = "",
) -> PrefillTask[VectorReader, Nearness]:
    """See ``LLM.near``. InputError where the model does not pool by the mean."""
    own_adapter = llm.adapter_hash(adapter)
    if not pools_by_mean(llm):
        raise InputError(
            f"the model's vectors are no mean of its tokens' rows (pooling: {_pooling(llm)}), so "
            "that the cosine has no exact share for each token: take a model with mean pooling"
        )
    reader, texts = FramedTexts(llm, prompt, truncate=False), (first, second)
    each = [
        reader.read(text, name)[0] for text, name in zip(texts, ("first", "second"), strict=True)
    ]
    without = [*_without(texts)] if words else []
    if len(without) > _MOST_WORDS:
        raise InputError(
            f"the texts have {len(without)} words, and at most {_MOST_WORDS} can be left out one "
            "by one: shorten them, or leave words out (words=False, --no-words)"
        )
    fewer = [reader.read(text, "a text without one word")[0] for _, text in without]
    decoders = [Embed("rows")] * 2 + [Embed("mean")] * len(fewer)

    def found(readers: Sequence[VectorReader]) -> Nearness:
        rows = [one.vector() for one in readers[:2]]
        vectors = [np.add.reduce(one, axis=0) / len(one) for one in rows]
        left = [
            replace(word, cosine=_cosine(one.vector(), vectors[1 - word.which]))
            for (word, _), one in zip(without, readers[2:], strict=True)
        ]
        name = llm.tokenizer.token_name
        names = tuple(tuple(name(i) for i in ids) for ids in each)
        return Nearness(
            _cosine(*vectors), (names[0], names[1]), _shares(rows, vectors), tuple(left)
        )

    parts = [request_parts(decoder) for decoder in decoders]
    requests = (
        Request(**{**part, "prompt_token_ids": ids, "adapter": own_adapter})
        for part, ids in zip(parts, [*each, *fewer], strict=True)
    )
    return PrefillTask(requests, VectorReader, found)


def pools_by_mean(llm: "BaseLLM") -> bool:
    """Whether a vector of the model is the mean of its tokens' rows, which ``nearness`` needs."""
    whole = llm.model.pooling.whole and llm.model.graph.after_pooling() is None
    return _pooling(llm) == "mean" and whole


def _pooling(llm: "BaseLLM") -> str:
    return llm.model.pooling.kind or ("last" if llm.config.is_causal else "mean")


def _shares(
    rows: Sequence[NDArray[np.float64]], vectors: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Of each token of one text with each of the other."""
    lengths = [sqrt(fsum((v * v).tolist())) for v in vectors]
    by = len(rows[0]) * len(rows[1]) * lengths[0] * lengths[1] or 1.0
    # A product at a time, so that no machine chooses the order of sums.
    return np.array([[fsum((a * b).tolist()) for b in rows[1]] for a in rows[0]]) / by


def _without(texts: tuple[str, str]) -> "list[tuple[LeftOut, str]]":
    """Each word, and its text without it; a text of one word is left whole."""
    found = []
    for which, text in enumerate(texts):
        words = [*re.finditer(r"\S+", text)]
        for word in words if len(words) > 1 else []:
            start, stop = word.span()
            rest = f"{text[:start].rstrip()} {text[stop:].lstrip()}".strip()
            found.append((LeftOut(which, word[0], start, stop, 0.0), rest))
    return found


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    squares = fsum((a * a).tolist()) * fsum((b * b).tolist())
    return fsum((a * b).tolist()) / (sqrt(squares) or 1.0)
