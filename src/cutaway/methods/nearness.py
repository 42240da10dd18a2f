"""Why two texts are near: what makes the cosine of their vectors, or the score of a reranker.

Where a score is a sum over pairs of tokens it is split exactly. With mean pooling a vector is a
sum, so that the cosine is one, too: of token i of one text and token j of the other,
rᵢ·sⱼ / (n·m·|v|·|w|), if what follows pooling is linear, without a bias. MaxSim is a sum as it is
defined. Of every model it is told what leaving a word out changes: each is a run of its own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.engine import Embed, Request
from cutaway.errors import InputError
from cutaway.methods.embedding import FramedTexts, VectorReader, embed, naming, request_parts
from cutaway.methods.late_interaction import KINDS, TokenVectors, embed_tokens
from cutaway.methods.reranking import Method, Reranking, checked_method, method_of, rerank
from cutaway.requests.prefill import PrefillTask, together
from cutaway.sampling.fixed_math import cosine, dots

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

    Words = Sequence[tuple["LeftOut", str]]

Rows = NDArray[np.float64]
_PLACES, _WITHOUT = ("first", "second"), "a text without one word"
_MOST_WORDS = 256  # of both texts, each of which is left out once


@dataclass(frozen=True)
class LeftOut:
    """A word of a text, and the score without it. which: 0 or 1; start, stop: characters."""

    which: int
    word: str
    start: int
    stop: int
    score: float


@dataclass(frozen=True)
class Nearness:
    """How near two texts are, and why.

    score     as ``rerank`` has it: the cosine of their vectors, or of a query and a document what a
              head gave, log P(yes) - log P(no), or MaxSim
    method    "cosine", "head", "answers" or "maxsim"
    tokens    names of the tokens of each text; none without shares
    shares    float64 (tokens of the first, tokens of the second): they add up to the score; None
              where it is no sum over pairs of tokens
    left_out  what the score is without each word
    """

    score: float
    method: Method
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    shares: Rows | None
    left_out: tuple[LeftOut, ...]

    @plainly
    def of_tokens(self) -> tuple[list[float], list[float]]:
        """What each token of the first text, and of the second, has of the score."""
        if self.shares is None:
            return [], []
        return tuple([fsum(row) for row in rows.tolist()] for rows in (self.shares, self.shares.T))  # type: ignore[return-value]

    def pairs(self, count: int) -> list[tuple[int, int, float]]:
        """(token of the first, token of the second, share), the largest shares first."""
        if self.shares is None:
            return []
        order = np.argsort(-self.shares, axis=None, kind="stable")[:count]
        places = [divmod(int(place), self.shares.shape[1]) for place in order]
        return [(i, j, float(self.shares[i, j])) for i, j in places]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "score": self.score, "method": self.method, "tokens": [[*one] for one in self.tokens],
            "shares": None if self.shares is None else self.shares.tolist(),
            "left_out": [vars(one) for one in self.left_out],
        }  # fmt: skip


def near(
    llm: "BaseLLM",
    first: str,
    second: str,
    *,
    words: bool = True,
    method: str | None = None,
    prompt: str | None = None,
    instruction: str | None = None,
    adapter: str = "",
) -> PrefillTask[Any, Nearness]:
    """Why two texts are near, or why a document answers a query: what makes their score.

    Where the score is a sum over pairs of tokens (mean pooling, MaxSim) each pair's share is
    told, exactly; of every model what the score is without each word, each a run of its own.

    first, second: for a reranker the query and the document
    words: whether words are left out
    method, instruction: as for rerank; prompt, adapter: as for embed
    InputError as of those.
    """
    texts = first, second
    asked = checked_method(llm, method, instruction=instruction)
    if prompt is not None and asked != "cosine":
        raise InputError("prompt", f": a model that scores by {asked} has none of texts alone")
    without = [*_without(texts)] if words else []
    if len(without) > _MOST_WORDS:
        raise InputError(
            f"the texts have {len(without)} words, and at most {_MOST_WORDS} can be left out one "
            "by one: shorten them, or leave words out (words=False, --no-words)"
        )
    if asked == "maxsim":
        return _by_tokens(llm, texts, without, adapter)
    if asked != "cosine":
        ask = partial(rerank, llm, method=asked, instruction=instruction, adapter=adapter)
        return _by_pairs(ask, texts, without)
    if pools_by_mean(llm):
        return _by_rows(llm, texts, without, prompt, adapter)
    return _by_vectors(llm, texts, without, prompt, adapter)


def splits(llm: "BaseLLM") -> bool:
    """Whether the model's own score of two texts is a sum over pairs of their tokens."""
    method = method_of(llm)
    return method == "maxsim" or (method == "cosine" and pools_by_mean(llm))


def pools_by_mean(llm: "BaseLLM") -> bool:
    """Whether a vector of the model is the mean of its tokens' rows, all of them."""
    whole = llm.model.pooling.whole and llm.model.graph.pooled_graph() is None
    kind = llm.model.pooling.kind or ("last" if llm.config.is_causal else "mean")
    return kind == "mean" and whole and not llm.model.pooling.unsupported


# -- vectors -----------------------------------------------------------------------------------


def _by_rows(
    llm: "BaseLLM", texts: tuple[str, str], without: "Words", prompt: str | None, adapter: str
) -> PrefillTask[Any, Nearness]:
    """Of means: all rows of both texts, and the means of those with fewer words."""
    own_adapter, reader = llm.adapter_hash(adapter), FramedTexts(llm, prompt, truncate=False)
    each = [reader.read(text, name)[0] for text, name in zip(texts, _PLACES, strict=True)]
    fewer = [reader.read(text, _WITHOUT)[0] for _, text in without]
    decoders = [Embed("rows")] * 2 + [Embed("mean")] * len(fewer)

    def answer(readers: Sequence[VectorReader]) -> Nearness:
        rows = [one.vector() for one in readers[:2]]
        vectors = [np.add.reduce(one, axis=0) / len(one) for one in rows]
        left = _scored(
            without, lambda i, which: cosine(readers[2 + i].vector(), vectors[1 - which])
        )
        score = float(cosine(*vectors))
        return Nearness(score, "cosine", _names(llm, each), _shares(rows, vectors), left)

    parts = [request_parts(decoder) for decoder in decoders]
    requests = (
        Request(**{**part, "prompt_token_ids": ids, "adapter": own_adapter})
        for part, ids in zip(parts, [*each, *fewer], strict=True)
    )
    return PrefillTask(requests, VectorReader, answer)


def _by_vectors(
    llm: "BaseLLM", texts: tuple[str, str], without: "Words", prompt: str | None, adapter: str
) -> PrefillTask[Any, Nearness]:
    """Of other poolings, which are no sum of tokens or have layers behind them."""
    every = [*texts, *(text for _, text in without)]
    with naming(lambda i: _PLACES[i] if i < 2 else _WITHOUT):
        asked = embed(llm, every, normalize=False, prompt=prompt, adapter=adapter)

    def answer(readers: Sequence[VectorReader]) -> Nearness:
        vectors = asked.answer(readers).vectors.astype(np.float64)
        left = _scored(without, lambda i, which: cosine(vectors[2 + i], vectors[1 - which]))
        return Nearness(float(cosine(*vectors[:2])), "cosine", ((), ()), None, left)

    return PrefillTask(asked.requests, asked.reader, answer)


def _by_tokens(
    llm: "BaseLLM", texts: tuple[str, str], without: "Words", adapter: str
) -> PrefillTask[Any, Nearness]:
    """Of late interaction: each of the query's tokens adds its product with the nearest."""
    sides = [[texts[i], *(text for word, text in without if word.which == i)] for i in (0, 1)]
    asked = []
    for side, kind in zip(sides, KINDS, strict=True):
        with naming(kind.format):
            asked.append(embed_tokens(llm, side, kind, adapter=adapter))

    def answer(vectors: Sequence[TokenVectors]) -> Nearness:
        queries, documents = vectors
        score, *of_documents = queries.only(0).maxsim(documents)[0].tolist()
        each = [*queries.maxsim(documents.only(0))[1:, 0].tolist(), *of_documents]
        names = _names(llm, [queries.token_ids[0], documents.token_ids[0]])
        left = _scored(without, lambda i, _: each[i])
        return Nearness(score, "maxsim", names, _largest(queries, documents), left)

    return together(asked, answer)


def _largest(queries: TokenVectors, documents: TokenVectors) -> Rows:
    """The products of the first query's tokens with their nearest tokens; 0 for all others."""
    products, nearest = queries.products(0, documents, 0), queries.nearest(0, documents, 0)
    shares = np.zeros_like(products)
    rows = range(len(nearest))
    shares[rows, nearest] = products[rows, nearest]
    return shares


# -- both texts read together ------------------------------------------------------------------


def _by_pairs(
    ask: "Callable[..., PrefillTask[Any, Reranking]]", texts: tuple[str, str], without: "Words"
) -> PrefillTask[Any, Nearness]:
    """Of a query and a document that are read together, and of those with fewer words."""
    queries = [text for word, text in without if word.which == 0]
    documents = [texts[1], *(text for word, text in without if word.which == 1)]
    asked = [(texts[0], documents), *((query, [texts[1]]) for query in queries)]

    def answer(ranked: Sequence[Reranking]) -> Nearness:
        (score, *of_documents), *of_queries = map(_in_order, ranked)
        each = [*(one for (one,) in of_queries), *of_documents]
        left = _scored(without, lambda i, _: each[i])
        return Nearness(score, ranked[0].method, ((), ()), None, left)

    return together([ask(query, some) for query, some in asked], answer)


def _in_order(found: Reranking) -> list[float]:
    """The scores of the documents as they were given."""
    return [one.score for one in sorted(found.results, key=lambda one: one.index)]


# -- parts -------------------------------------------------------------------------------------


def _scored(without: "Words", score: Callable[[int, int], Any]) -> tuple[LeftOut, ...]:
    """With the scores. score: of the word's index, and of which text it is."""
    return tuple(
        replace(word, score=float(score(i, word.which))) for i, (word, _) in enumerate(without)
    )


def _names(
    llm: "BaseLLM", each: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, second = (tuple(llm.tokenizer.token_name(i) for i in ids) for ids in each)
    return first, second


def _shares(rows: Sequence[Rows], vectors: Sequence[Rows]) -> Rows:
    """Of each token of one text with each of the other."""
    first, second = (np.sqrt(dots(v, v)) for v in vectors)
    by = float(len(rows[0]) * len(rows[1]) * first * second)
    return dots(rows[0][:, None], rows[1]) / (by or 1.0)


def _without(texts: tuple[str, str]) -> "Words":
    """Each word, and its text without it; a text of one word is left whole."""
    found = list[tuple[LeftOut, str]]()
    for which, text in enumerate(texts):
        words = [*re.finditer(r"\S+", text)]
        for word in words if len(words) > 1 else []:
            start, stop = word.span()
            rest = f"{text[:start].rstrip()} {text[stop:].lstrip()}".strip()
            found.append((LeftOut(which, word[0], start, stop, 0.0), rest))
    return found
