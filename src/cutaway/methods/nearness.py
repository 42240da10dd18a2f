"""Explains the nearness of two texts: the cosine of their embeddings, or a reranker's score.

A score that is a sum over pairs of tokens is split exactly. With mean pooling an embedding is a
sum, so that the cosine is also a sum, if the layers after pooling are linear and have no bias: of
rᵢ·sⱼ / (n·m·|v|·|w|) over token i of one text and token j of the other. MaxSim is a sum over pairs
by definition. Every model also gives the score without each word; each word takes one more run.
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
from cutaway.methods.reranking import Method, Reranking, check_method, method_of, rerank
from cutaway.requests.prefill import PrefillTask, join_tasks
from cutaway.sampling.fixed_math import cosine, dots

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

    Words = Sequence[tuple["LeftOut", str]]

Rows = NDArray[np.float64]
_PLACES, _WITHOUT = ("first", "second"), "a text without one word"
_MOST_WORDS = 256  # of both texts together; each is left out once


@dataclass(frozen=True)
class LeftOut:
    """A word of a text, and the score without it.

    which: 0 if the word is in the first text, 1 if in the second; start, stop: its characters
    """

    which: int
    word: str
    start: int
    stop: int
    score: float


@dataclass(frozen=True)
class Nearness:
    """The nearness of two texts, and its causes.

    score     as in ``rerank``: the cosine of the embeddings; or, for a query and a document, the
              head's output, log P(yes) - log P(no), or MaxSim
    method    "cosine", "head", "answers" or "maxsim"
    tokens    names of the tokens of each text; there are none without shares
    shares    float64 (tokens of the first, tokens of the second): they add up to the score; None
              if the score is no sum over pairs of tokens
    left_out  the score without each word
    """

    score: float
    method: Method
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    shares: Rows | None
    left_out: tuple[LeftOut, ...]

    @plainly
    def of_tokens(self) -> tuple[list[float], list[float]]:
        """Return each token's share of the score, for the first text and for the second."""
        if self.shares is None:
            return [], []
        return tuple([fsum(row) for row in rows.tolist()] for rows in (self.shares, self.shares.T))  # type: ignore[return-value]

    def pairs(self, count: int) -> list[tuple[int, int, float]]:
        """Return the largest (token of the first, token of the second, share), largest first."""
        if self.shares is None:
            return []
        order = np.argsort(-self.shares, axis=None, kind="stable")[:count]
        places = [divmod(int(place), self.shares.shape[1]) for place in order]
        return [(i, j, float(self.shares[i, j])) for i, j in places]

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return {
            "score": self.score, "method": self.method,
            "tokens": [[*names] for names in self.tokens],
            "shares": None if self.shares is None else self.shares.tolist(),
            "left_out": [vars(word) for word in self.left_out],
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
    """Return the causes of a score: why two texts are near, or why a document answers a query.

    If the score is a sum over pairs of tokens (mean pooling, MaxSim), the result has each pair's
    exact share. For every model it has the score without each word; each word takes one more run.

    first, second: for a reranker the query and the document
    words: whether words are left out
    method, instruction: as for rerank; prompt, adapter: as for embed
    Raises the InputErrors that these methods raise.
    """
    texts = first, second
    chosen_method = check_method(llm, method, instruction=instruction)
    if prompt is not None and chosen_method != "cosine":
        raise InputError(
            "prompt", f": a model that scores by {chosen_method} has none of texts alone"
        )
    shortened = [*_leave_words_out(texts)] if words else []
    if len(shortened) > _MOST_WORDS:
        raise InputError(
            f"the texts have {len(shortened)} words, and at most {_MOST_WORDS} can be left out "
            "one by one: shorten them, or leave words out (words=False, --no-words)"
        )
    if chosen_method == "maxsim":
        return _compare_tokens(llm, texts, shortened, adapter)
    if chosen_method != "cosine":
        ask = partial(rerank, llm, method=chosen_method, instruction=instruction, adapter=adapter)
        return _compare_pairs(ask, texts, shortened)
    if pools_by_mean(llm):
        return _compare_rows(llm, texts, shortened, prompt, adapter)
    return _compare_vectors(llm, texts, shortened, prompt, adapter)


def splits(llm: "BaseLLM") -> bool:
    """Whether the model's own score of two texts is a sum over pairs of their tokens."""
    method = method_of(llm)
    return method == "maxsim" or (method == "cosine" and pools_by_mean(llm))


def pools_by_mean(llm: "BaseLLM") -> bool:
    """Whether an embedding of the model is the mean of all its tokens' rows."""
    whole = llm.model.pooling.whole and llm.model.graph.pooled_graph() is None
    kind = llm.model.pooling.kind or ("last" if llm.config.is_causal else "mean")
    return kind == "mean" and whole and not llm.model.pooling.unsupported


# -- vectors -----------------------------------------------------------------------------------


def _compare_rows(
    llm: "BaseLLM", texts: tuple[str, str], words: "Words", prompt: str | None, adapter: str
) -> PrefillTask[Any, Nearness]:
    """Compare the means of all rows of both texts, then those of the texts without a word."""
    own_adapter, reader = llm.adapter_hash(adapter), FramedTexts(llm, prompt, truncate=False)
    token_ids = [reader.read(text, name)[0] for text, name in zip(texts, _PLACES, strict=True)]
    shortened = [reader.read(text, _WITHOUT)[0] for _, text in words]
    decoders = [Embed("rows")] * 2 + [Embed("mean")] * len(shortened)

    def answer(readers: Sequence[VectorReader]) -> Nearness:
        rows = [matrix.vector() for matrix in readers[:2]]
        vectors = [np.add.reduce(matrix, axis=0) / len(matrix) for matrix in rows]
        left_out = _set_scores(
            words, lambda i, side: cosine(readers[2 + i].vector(), vectors[1 - side])
        )
        score = float(cosine(*vectors))
        return Nearness(score, "cosine", _names(llm, token_ids), _shares(rows, vectors), left_out)

    parts = [request_parts(decoder) for decoder in decoders]
    requests = (
        Request(**{**part, "prompt_token_ids": ids, "adapter": own_adapter})
        for part, ids in zip(parts, [*token_ids, *shortened], strict=True)
    )
    return PrefillTask(requests, VectorReader, answer)


def _compare_vectors(
    llm: "BaseLLM", texts: tuple[str, str], words: "Words", prompt: str | None, adapter: str
) -> PrefillTask[Any, Nearness]:
    """Compare embeddings that are no sum of tokens or have layers after pooling."""
    all_texts = [*texts, *(text for _, text in words)]
    with naming(lambda i: _PLACES[i] if i < 2 else _WITHOUT):
        task = embed(llm, all_texts, normalize=False, prompt=prompt, adapter=adapter)

    def answer(readers: Sequence[VectorReader]) -> Nearness:
        vectors = task.answer(readers).vectors.astype(np.float64)
        left_out = _set_scores(words, lambda i, side: cosine(vectors[2 + i], vectors[1 - side]))
        return Nearness(float(cosine(*vectors[:2])), "cosine", ((), ()), None, left_out)

    return PrefillTask(task.requests, task.reader, answer)


def _compare_tokens(
    llm: "BaseLLM", texts: tuple[str, str], words: "Words", adapter: str
) -> PrefillTask[Any, Nearness]:
    """Compare by late interaction: each query token adds its product with the nearest."""
    sides = [[texts[i], *(text for word, text in words if word.which == i)] for i in (0, 1)]
    tasks = []
    for side, kind in zip(sides, KINDS, strict=True):
        with naming(kind.format):
            tasks.append(embed_tokens(llm, side, kind, adapter=adapter))

    def answer(vectors: Sequence[TokenVectors]) -> Nearness:
        queries, documents = vectors
        score, *of_documents = queries.only(0).maxsim(documents)[0].tolist()
        scores = [*queries.maxsim(documents.only(0))[1:, 0].tolist(), *of_documents]
        names = _names(llm, [queries.token_ids[0], documents.token_ids[0]])
        left_out = _set_scores(words, lambda i, _: scores[i])
        return Nearness(score, "maxsim", names, _largest(queries, documents), left_out)

    return join_tasks(tasks, answer)


def _largest(queries: TokenVectors, documents: TokenVectors) -> Rows:
    """Return products of the first query's tokens and their nearest tokens; 0 for other pairs."""
    products, nearest = queries.products(0, documents, 0), queries.nearest(0, documents, 0)
    shares = np.zeros_like(products)
    rows = range(len(nearest))
    shares[rows, nearest] = products[rows, nearest]
    return shares


# -- both texts read together ------------------------------------------------------------------


def _compare_pairs(
    ask: "Callable[..., PrefillTask[Any, Reranking]]", texts: tuple[str, str], words: "Words"
) -> PrefillTask[Any, Nearness]:
    """Compare a query and a document that are read together, whole and without each word."""
    queries = [text for word, text in words if word.which == 0]
    documents = [texts[1], *(text for word, text in words if word.which == 1)]
    rankings = [(texts[0], documents), *((query, [texts[1]]) for query in queries)]

    def answer(ranked: Sequence[Reranking]) -> Nearness:
        (score, *of_documents), *of_queries = map(_scores_in_order, ranked)
        scores = [*(query_score for (query_score,) in of_queries), *of_documents]
        left_out = _set_scores(words, lambda i, _: scores[i])
        return Nearness(score, ranked[0].method, ((), ()), None, left_out)

    return join_tasks(
        [ask(query, ranked_documents) for query, ranked_documents in rankings], answer
    )


def _scores_in_order(ranking: Reranking) -> list[float]:
    """Return the scores of the documents in the order given."""
    return [result.score for result in sorted(ranking.results, key=lambda result: result.index)]


# -- parts -------------------------------------------------------------------------------------


def _set_scores(words: "Words", score: Callable[[int, int], Any]) -> tuple[LeftOut, ...]:
    """Set the scores without each word. score: takes the word's index and its text's index."""
    return tuple(
        replace(word, score=float(score(i, word.which))) for i, (word, _) in enumerate(words)
    )


def _names(
    llm: "BaseLLM", token_ids: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, second = (tuple(llm.tokenizer.token_name(i) for i in ids) for ids in token_ids)
    return first, second


def _shares(rows: Sequence[Rows], vectors: Sequence[Rows]) -> Rows:
    """Return the share of each token of one text with each of the other."""
    first, second = (np.sqrt(dots(v, v)) for v in vectors)
    by = float(len(rows[0]) * len(rows[1]) * first * second)
    return dots(rows[0][:, None], rows[1]) / (by or 1.0)


def _leave_words_out(texts: tuple[str, str]) -> "Words":
    """Return each word, and its text without it; a text of one word is left whole."""
    left_out = list[tuple[LeftOut, str]]()
    for side, text in enumerate(texts):
        words = [*re.finditer(r"\S+", text)]
        for word in words if len(words) > 1 else []:
            start, stop = word.span()
            rest = f"{text[:start].rstrip()} {text[stop:].lstrip()}".strip()
            left_out.append((LeftOut(side, word[0], start, stop, 0.0), rest))
    return left_out
