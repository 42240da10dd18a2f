"""Ranks documents by relevance for a query: by a cross-encoder's head, which reads both; by a
generative model's answer, yes or no; or by embeddings, of texts or of tokens.

This module joins two texts for a head, and asks as Qwen3-Reranker was trained to be asked.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import exp
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_bool, check_int, shown
from cutaway.compute.model.pooling import TOKENS, Pooling
from cutaway.engine import Embed, Request
from cutaway.errors import InputError, Name, TooLongError
from cutaway.methods.decision import AnswerChances, QuestionReader, weighing
from cutaway.methods.embedding import (
    Embeddings,
    FramedTexts,
    VectorReader,
    embed,
    naming,
    prompts_of,
    request_parts,
)
from cutaway.methods.late_interaction import TokenVectors, embed_tokens
from cutaway.methods.scoring import LookUpReader
from cutaway.requests.prefill import PrefillTask, join_tasks
from cutaway.sampling.fixed_math import cosine

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
USER = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
_PLACES = re.compile(r"\{(instruction|query|document)\}")
_RELEVANT = {"yes", "true", "relevant", "positive", "match", "1", "label1"}
_IRRELEVANT = {
    "no", "false", "irrelevant", "notrelevant", "nonrelevant", "negative", "nomatch", "0", "label0"
}  # fmt: skip
Method = Literal["head", "maxsim", "answers", "cosine"]


@dataclass(frozen=True)
class RankingWords:
    """The question that a generative model gets about each document; by default Qwen3-Reranker's.

    system   the system message; "": none
    user     the user's message, with {query}, {document} and, if wanted, {instruction}
    answers  the answer for a relevant document, and the answer for another
    """

    system: str = SYSTEM
    user: str = USER
    answers: tuple[str, str] = ("yes", "no")

    def check(self) -> None:
        """Raise InputError if ``user`` lacks a place, or both answers are the same."""
        for place in ("{query}", "{document}"):
            if place not in self.user:
                raise InputError("wording", f": user must have {place}")
        if self.answers[0] == self.answers[1]:
            raise InputError("wording", ": the two answers must differ")

    def messages(self, **texts: str) -> list[dict[str, Any]]:
        """Return the conversation, with each text put into its place."""
        user = _PLACES.sub(lambda place: texts[place[1]], self.user)
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": user}]


@dataclass(frozen=True)
class Relevance:
    """The relevance of one document.

    index      of the document in the order given
    relevance  at most 1: 1 / (1 + e^-score), the probability of "yes", the cosine, or the mean,
               over the query's tokens, of the cosine with the document's nearest token
    score      the head's output, log P(yes) - log P(no), or MaxSim; else the cosine
    """

    index: int
    relevance: float
    score: float


@dataclass(frozen=True)
class Reranking:
    """Documents, the most relevant first.

    method     "head", "answers" (yes or no), "maxsim" (of tokens' vectors) or "cosine"
    tokens     how many tokens were read for all documents
    cut        indices of the documents that were cut
    chances    "answers": the probabilities of the answers about each document, in the order given
    """

    results: tuple[Relevance, ...]
    method: Method
    tokens: int
    cut: tuple[int, ...] = ()
    chances: tuple[AnswerChances, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        results = [asdict(result) for result in self.results]
        return {
            "results": results, "method": self.method, "tokens": self.tokens, "cut": [*self.cut],
        }  # fmt: skip


def method_of(llm: "BaseLLM") -> Method:
    """Return the method by which the model can rank documents."""
    settings = llm.model.pooling
    if settings.kind == "rank":
        return "head"
    if settings.kind == TOKENS:
        return "maxsim"
    writes = llm.config.is_causal and llm.model.graph.has_head
    return "answers" if writes and settings.kind is None else "cosine"


def rerank(
    llm: "BaseLLM",
    query: str,
    documents: Sequence[str],
    *,
    top: int | None = None,
    method: str | None = None,
    instruction: str | None = None,
    wording: RankingWords | None = None,
    truncate: bool = False,
    adapter: str = "",
) -> PrefillTask[Any, Reranking]:
    """Rank documents by their relevance for a query.

    A model with a head that scores pairs of texts (a cross-encoder) uses the head. A generative
    model is asked for yes or no, in the words that Qwen3-Reranker was trained on. An embedding
    model compares embeddings; a model for late interaction compares those of tokens.

    top: how many documents to return; None: all
    method: "head", "maxsim", "answers" or "cosine"; None: the first of these that the model has
    instruction: what makes a document relevant, for a generative model; wording: its question
    truncate: cut documents that are too long for the model; otherwise they raise an InputError
    adapter: the name of a loaded adapter, as for generate
    """
    check_bool("truncate", truncate)
    texts = _texts(query, documents)
    count = None if top is None else check_int("top", top, 1)
    chosen_method = check_method(llm, method, instruction=instruction, wording=wording)
    if chosen_method == "head":
        return _rank_by_head(llm, texts, count, truncate, adapter)
    if chosen_method == "maxsim":
        return _rank_by_tokens(llm, texts, count, truncate, adapter)
    if chosen_method == "cosine":
        return _rank_by_vectors(llm, texts, count, truncate, adapter)
    return _rank_by_answers(
        llm, texts, count, adapter, wording=wording or RankingWords(),
        instruction=INSTRUCTION if instruction is None else instruction,
    )  # fmt: skip


def check_method(llm: "BaseLLM", method: str | None, **question: Any) -> Method:
    """Return the requested method, else the model's own. An InputError names the argument.

    question: settings that only a generative model can have
    """
    own_method = method_of(llm)
    methods: tuple[Method, ...] = (
        ("answers", "cosine") if own_method == "answers" else (own_method,)
    )
    chosen_method = next((candidate for candidate in methods if method in (None, candidate)), None)
    if chosen_method is None:
        raise InputError(
            "method", f": {shown(method)} is not what this model has: {', '.join(methods)}"
        )
    for name, value in question.items():
        if value is not None and chosen_method != "answers":
            raise InputError(name, f": a model that ranks by {chosen_method} is asked nothing")
    return chosen_method


def _texts(query: Any, documents: Any) -> list[str]:
    """Return the query and the documents as one list."""
    if isinstance(documents, str) or not isinstance(documents, Sequence) or not documents:
        raise InputError("documents", f" must be a list of texts, not {shown(documents)}")
    for name, text in (
        ("query", query),
        *((Name("documents", i), t) for i, t in enumerate(documents)),
    ):
        if not isinstance(text, str):
            raise InputError(name, f" must be a string, not {shown(text)}")
    return [query, *documents]


def _rank_scores(
    scores: Iterable[float], count: int | None, relevance: Callable[[float], float] = float
) -> tuple[Relevance, ...]:
    return _take_first(
        (Relevance(i, relevance(score), score) for i, score in enumerate(scores)), count
    )


def _take_first(documents: Iterable[Relevance], count: int | None) -> tuple[Relevance, ...]:
    return tuple(sorted(documents, key=lambda document: -document.score)[:count])


# -- a head ------------------------------------------------------------------------------------


def _rank_by_head(
    llm: "BaseLLM", texts: list[str], count: int | None, truncate: bool, adapter: str
) -> PrefillTask[VectorReader, Reranking]:
    adapter_hash, pair_reader = llm.adapter_hash(adapter), PairReader(llm, truncate=truncate)
    pairs = [
        pair_reader.read(texts[0], text, Name("documents", i)) for i, text in enumerate(texts[1:])
    ]
    relevant = _relevant(llm.model.pooling)

    def requests() -> Iterable[Request]:
        for pair in pairs:
            decoder = Embed(llm.model.pooling.rank, second_from=pair.second_from)
            parts = {**request_parts(decoder), "adapter": adapter_hash}
            yield Request(**{**parts, "prompt_token_ids": pair.ids})

    def answer(readers: Sequence[VectorReader]) -> Reranking:
        scores = [_score(reader.vector(), relevant) for reader in readers]
        tokens = sum(len(pair.ids) for pair in pairs)
        cut = tuple(i for i, pair in enumerate(pairs) if pair.is_cut)
        return Reranking(_rank_scores(scores, count, logistic), "head", tokens, cut)

    return PrefillTask(requests(), VectorReader, answer)


def _relevant(pooling: Pooling) -> int:
    """Return which of a head's classes means "relevant". InputError if none does.

    Without labels it is the first class, as in files of Qwen3-Reranker, which have yes and no.
    """
    if pooling.dimensions > 2:
        raise InputError(
            f"the model's head tells {pooling.dimensions} classes apart: it ranks no documents"
        )
    if pooling.dimensions == 1 or len(pooling.labels) != 2:
        return 0
    names = [re.sub("[ _-]", "", label).lower() for label in pooling.labels]
    classes = {i for i, name in enumerate(names) if name in _RELEVANT}
    classes |= {1 - i for i, name in enumerate(names) if name in _IRRELEVANT}
    if len(classes) != 1:
        raise InputError(
            f"the model's head tells {shown(pooling.labels[0])} from {shown(pooling.labels[1])}, "
            "and not which says that a document is relevant: it ranks no documents. Where one "
            'does, call it "yes" in id2label of config.json, and the other "no"'
        )
    return classes.pop()


def _score(head: NDArray[np.float64], relevant: int) -> float:
    """Return the only output; of two classes, the relevant one's output minus the other one's."""
    return float(head[0]) if len(head) == 1 else float(head[relevant] - head[1 - relevant])


def logistic(score: float) -> float:
    """Map a score to a number from 0 to 1."""
    if score < 0:
        return exp(score) / (1 + exp(score))
    return 1 / (1 + exp(-score))


@dataclass(frozen=True)
class JoinedPair:
    """Two texts as one. second_from: position of the second text's first token, for token types."""

    ids: tuple[int, ...]
    second_from: int
    is_cut: bool


class PairReader:
    """Joins two texts, with the tokens that the model's tokenizer puts around and between them."""

    def __init__(self, llm: "BaseLLM", *, truncate: bool) -> None:
        self._llm, self._truncate = llm, truncate
        self._max_tokens = FramedTexts(llm, "", truncate=truncate).max_tokens
        self._types = llm.model.graph.shapes.get("token_types.weight", (1,))[0]

    def read(self, first: str, second: str, name: str) -> JoinedPair:
        """Join two texts; TooLongError naming the second if both do not fit and may not be cut."""
        tokenizer = self._llm.tokenizer
        head = tokenizer.encode(first)
        after: list[int] = []
        if tokenizer.sep_id is not None:
            between = [tokenizer.sep_id] * (tokenizer.pair_separators - 1)
            head, after = [*head, *between], [tokenizer.sep_id]
        room = self._max_tokens - len(head) - len(after)
        limit = room + 1 if self._truncate and room >= 1 else None
        bare = tokenizer.encode(second, add_bos=False, most=limit)
        ids = [*head, *bare, *after]
        second_from = len(head) if self._types > 1 else 0
        if len(ids) <= self._max_tokens:
            return JoinedPair(tuple(ids), second_from, False)
        if not self._truncate or room < 1:
            raise TooLongError(
                name,
                f" and the query have {len(ids)} tokens together, and the model reads "
                f"{self._max_tokens}: shorten one; truncate cuts the document",
            )
        return JoinedPair((*head, *bare[:room], *after), second_from, True)


# -- vectors -----------------------------------------------------------------------------------


def _rank_by_vectors(
    llm: "BaseLLM", texts: list[str], count: int | None, truncate: bool, adapter: str
) -> PrefillTask[VectorReader, Reranking]:
    query, document = prompts_of(llm)
    with naming("query".format):
        query_task = embed(
            llm, texts[:1], normalize=True, prompt=query, truncate=truncate, adapter=adapter
        )
    with naming(partial(Name, "documents")):
        document_task = embed(
            llm, texts[1:], normalize=True, prompt=document, truncate=truncate, adapter=adapter
        )

    def answer(parts: Sequence[Embeddings]) -> Reranking:
        query, documents = parts
        scores = cosine(documents.vectors, query.vectors[0]).tolist()
        tokens = sum(query.tokens) + sum(documents.tokens)
        return Reranking(_rank_scores(scores, count), "cosine", tokens, documents.truncated)

    return join_tasks([query_task, document_task], answer)


def _rank_by_tokens(
    llm: "BaseLLM", texts: list[str], num_results: int | None, truncate: bool, adapter: str
) -> PrefillTask[VectorReader, Reranking]:
    with naming("query".format):
        query_task = embed_tokens(llm, texts[:1], "query", truncate=truncate, adapter=adapter)
    with naming(partial(Name, "documents")):
        document_task = embed_tokens(llm, texts[1:], "document", truncate=truncate, adapter=adapter)

    def answer(parts: Sequence[TokenVectors]) -> Reranking:
        query, documents = parts
        scores, count = query.maxsim(documents)[0].tolist(), len(query.vectors[0])
        tokens = sum(query.tokens) + sum(documents.tokens)
        ordered = _rank_scores(scores, num_results, lambda score: score / count)
        return Reranking(ordered, "maxsim", tokens, documents.truncated)

    return join_tasks([query_task, document_task], answer)


# -- answers -----------------------------------------------------------------------------------


def _rank_by_answers(
    llm: "BaseLLM", texts: list[str], count: int | None, adapter: str, *,
    wording: RankingWords, instruction: str,
) -> PrefillTask[LookUpReader, Reranking]:  # fmt: skip
    wording.check()
    reader = QuestionReader(llm, adapter=adapter)
    answers = {
        text: Name("wording", prose=f": answers[{i}]") for i, text in enumerate(wording.answers)
    }
    task = weighing(
        (
            reader.read(
                wording.messages(instruction=instruction, query=texts[0], document=document),
                answers,
                Name("documents", i),
            )
            for i, document in enumerate(texts[1:])
        ),
        reader.adapter,
    )

    def answer(readers: Sequence[LookUpReader]) -> Reranking:
        chances = tuple(task.answer(readers))
        documents = (
            Relevance(i, document.probabilities[0], document.logprobs[0] - document.logprobs[1])
            for i, document in enumerate(chances)
        )
        tokens = sum(len(document.question.prompt) for document in chances)
        return Reranking(_take_first(documents, count), "answers", tokens, chances=chances)

    return PrefillTask(task.requests, task.reader, answer)
