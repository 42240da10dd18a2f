"""``/v1/score`` and ``/v1/rerank``: how well texts go with another, as a number or an order.

Knows both requests and their documents; what is computed is of ``likelihoods.py`` and
``methods/reranking.py``.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from time import time
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.api.async_model import AsyncModel
from cutaway.errors import InputError
from cutaway.methods.reranking import Method, Reranking, reranking
from cutaway.methods.reranking import method_of as ranks_by
from cutaway.methods.scoring import Cut, Cutter
from cutaway.requests.prefill import PrefillTask
from cutaway.sampling.fixed_math import cosine
from cutaway.server.answering import prefill_texts
from cutaway.server.body import Body, StrictRoute, Texts, Unsupported, examples, optional
from cutaway.server.document import TEXT, replies
from cutaway.server.routes.embeddings import check_count, embed_texts
from cutaway.server.scores.likelihoods import (
    PromptAnswers,
    check_amount,
    lead_of,
    likelihoods,
    method_of,
    scored_tokens,
)
from cutaway.server.scores.schemas import HowRanked, PairScore, Ranked, Ranking, Scores
from cutaway.server.service import Service, answer_id, service_of
from cutaway.server.shared.fields import CACHE_SALT
from cutaway.server.shared.plain_schemas import TokensRead

router = APIRouter(route_class=StrictRoute, tags=["text"])


class ScoreRequest(Body):
    """Pairs of texts."""

    model_config = examples(
        {"text_1": "Paris is in", "text_2": [" France.", " Peru."]},
        {"text_1": ["a", "b"], "text_2": ["a", "b"], "method": "cosine"},
        {"text_1": [79, 110], "text_2": "ce", "trace": True},
    )
    model: str | None = optional("one of /v1/models; left out: the first")
    text_1: Texts = Field(description="a text or token ids, or a list of either")
    text_2: Texts = Field(description="as many, or any number where text_1 is one")
    user: str | None = optional("is in the log")
    cache_salt: str | None = CACHE_SALT
    method: Literal["log_likelihood", "cosine"] | None = optional(
        "ours: the log-probability of text_2 after text_1, or the cosine of their "
        "vectors; left out: the former, but the latter of a model that is made for vectors or "
        "does not write"
    )
    trace: bool = Field(False, description="ours: the tokens of each log-probability")
    unsupported: ClassVar[Unsupported] = {
        "truncate_prompt_tokens": ((), "no text is cut here; leave it out"),
        "priority": ((0,), "scores go with the others; leave it out"),
    }

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Places in text_1 and text_2."""
        first, second = len(self.text_1), len(self.text_2)
        if first not in (1, second):
            raise InputError(
                f"text_1 has {first} texts and text_2 has {second}: give one text_1, or as "
                "many of each"
            )
        return [(0 if first == 1 else i, i) for i in range(second)]

    def check(self) -> int:
        """How many characters there are; InputError where these are too many."""
        pairs = self.pairs
        length = sum(len(self.text_1[a]) + len(self.text_2[b]) for a, b in pairs)
        check_amount("text_2", len(pairs), length)
        return length


@router.post("/v1/score", responses=replies(Scores, *TEXT))
async def score(body: ScoreRequest, request: Request) -> Response:
    """How likely text_2 is after text_1, or how near their vectors are, of each pair."""
    service = service_of(request, body.model)
    name, length = service.names.named(body.model), body.check()
    method = body.method or method_of(service.llm)
    refuse_asked(method, trace=body.trace)
    read = (
        _scores_by_vectors(body, request)
        if method == "cosine"
        else _scores_by_model(body, request, length)
    )
    data, usage = await read
    answer: Scores = {
        "id": f"score-{answer_id(request)}",
        "object": "list",
        "created": int(time()),
        "model": name,
        "data": data,
        "usage": usage,
        "system_fingerprint": service.names.fingerprint(body.model),
        "cutaway": {"method": method},
    }
    return JSONResponse(answer)


async def _scores_by_model(
    body: ScoreRequest, request: Request, length: int
) -> tuple[list[PairScore], TokensRead]:
    def cut(service: Service) -> Iterator[Cut]:
        cutter = Cutter(service.llm)
        for a, b in body.pairs:
            yield cutter.pair(body.text_1[a], body.text_2[b], f"text_2[{b}]", f"text_1[{a}]")

    said = {"text_1": body.text_1, "text_2": body.text_2}
    found = await likelihoods(
        request, body.model, cut, said=said, length=length, user=body.user,
        cache_salt=body.cache_salt,
    )  # fmt: skip
    llm = service_of(request, body.model).llm
    data: list[PairScore] = []
    for i, one in enumerate(found.each):
        data.append({"index": i, "object": "score", "score": one.total})
        if body.trace:
            tokens = scored_tokens(llm, one)
            data[i]["cutaway"] = {"is_greedy": one.is_greedy, "tokens": tokens}
    return data, found.usage


async def _scores_by_vectors(
    body: ScoreRequest, request: Request
) -> tuple[list[PairScore], TokensRead]:
    first = len(body.text_1)

    def named(i: int) -> str:
        return f"text_1[{i}]" if i < first else f"text_2[{i - first}]"

    each, usage = await cosines(
        request, body.model, [*body.text_1, *body.text_2],
        [(a, first + b) for a, b in body.pairs], fields="text_2 with text_1", named=named,
        user=body.user, cache_salt=body.cache_salt,
    )  # fmt: skip
    return [{"index": i, "object": "score", "score": one} for i, one in enumerate(each)], usage


# -- /v1/rerank, in the form of Jina and Cohere ------------------------------------------------


_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
_USER = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
_CUT = "no document is cut here; leave it out"
_BY_MODEL = ("head", "maxsim")  # of models that have no other way
_PLACES = re.compile(r"\{(instruction|query|document)\}")


class Document(Body):
    """A document that is an object."""

    text: str


class Wording(Body):
    """What a model that writes is asked of each document; as Qwen3-Reranker was trained on it."""

    system: str = Field(_SYSTEM, description='the system message; "": none')
    user: str = Field(_USER, description="with {query}, {document} and, if wanted, {instruction}")
    answers: list[str] = Field(
        ["yes", "no"], min_length=2, max_length=2, fail_fast=True,
        description="that it is relevant, and that it is not",
    )  # fmt: skip

    def messages(self, **said: str) -> list[dict[str, Any]]:
        """The conversation, in which each place has what is said."""
        user = _PLACES.sub(lambda place: said[place[1]], self.user)
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": user}]


class RerankRequest(Body):
    """A query, and documents that may answer it."""

    model_config = examples(
        {"query": "Where is Paris?", "documents": ["Paris is in France.", "I like ice cream."]},
        {"query": "a", "documents": ["b", {"text": "c"}], "wording": {"user": "{query}{document}"},
         "top_n": 1, "trace": True},
        {"query": "a", "documents": ["b"], "method": "cosine", "return_documents": False},
    )  # fmt: skip
    model: str | None = optional("one of /v1/models; left out: the first")
    query: str
    documents: list[str | Document] = Field(min_length=1, fail_fast=True)
    top_n: int = Field(0, ge=0, description="only the first so many; 0: all")
    return_documents: bool = Field(True, description="each result has its document")
    user: str | None = optional("is in the log")
    cache_salt: str | None = CACHE_SALT
    method: Method | None = optional(
        "ours: the model's head that scores pairs of texts, the vectors of tokens (late "
        "interaction), the probability of the first of two answers, or the cosine of vectors; left "
        "out: the first of these that the model has"
    )
    instruction: str = Field(_INSTRUCTION, description="ours: what makes a document relevant")
    wording: Wording = Field(
        Wording.model_construct(), description="ours: what the model is asked of each document"
    )
    trace: bool = Field(False, description="ours: the tokens of each probability")
    unsupported: ClassVar[Unsupported] = {
        "max_tokens_per_doc": ((), _CUT),
        "max_chunks_per_doc": ((), _CUT),
        "truncate_prompt_tokens": ((), _CUT),
        "rank_fields": ((["text"],), "documents have their text alone; leave it out"),
        "priority": ((0,), "rankings go with the others; leave it out"),
    }

    @property
    def texts(self) -> list[str]:
        """Of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]

    def check(self) -> int:
        """How many characters there are; InputError for too many, or words that ask nothing."""
        asks = self.wording.user
        for place in ("{query}", "{document}"):
            if place not in asks:
                raise InputError(f"wording: user must have {place}")
        if self.wording.answers[0] == self.wording.answers[1]:
            raise InputError("wording: the two answers must differ")
        around = len(self.query) + len(asks) + len(self.wording.system) + len(self.instruction)
        length = sum(len(text) + around for text in self.texts)
        check_amount("documents", len(self.documents), length)
        return length


@router.post("/v2/rerank", responses=replies(Ranking, *TEXT), name="rerank_cohere")
@router.post("/rerank", responses=replies(Ranking, *TEXT), name="rerank_plain")
@router.post("/v1/rerank", responses=replies(Ranking, *TEXT))
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Documents, the most relevant for a query first."""
    service = service_of(request, body.model)
    name, length = service.names.named(body.model), body.check()
    own = ranks_by(service.llm)
    method: Method = body.method or own
    if method != own and (method in _BY_MODEL or own in _BY_MODEL):
        raise InputError(f"method: {method} is not what this model has: {own}")
    given = {field: field in body.model_fields_set for field in ("instruction", "wording")}
    refuse_asked(method, **given, trace=body.trace)
    how: HowRanked = {"method": method}
    if method in _BY_MODEL:
        results, usage = await _ranked_by_model(body, request, length)
    elif method == "cosine":
        results, usage = await _ranked_by_vectors(body, request)
    else:
        results, usage = await _ranked_by_answers(body, request, length)
        wording = body.wording
        how = {
            "method": "answers",
            "wording": {
                "system": wording.system or None, "user": wording.user, "answers": wording.answers,
            },
            "instruction": body.instruction,
        }  # fmt: skip
    results.sort(key=lambda one: -one["relevance_score"])
    answer: Ranking = {
        "id": f"rerank-{answer_id(request)}",
        "model": name,
        "results": results[: body.top_n or None],
        "usage": usage,
        "system_fingerprint": service.names.fingerprint(body.model),
        "cutaway": how,
    }
    return JSONResponse(answer)


async def _ranked_by_answers(
    body: RerankRequest, request: Request, length: int
) -> tuple[list[Ranked], TokensRead]:
    questions: list[PromptAnswers] = []

    def cut(service: Service) -> Iterator[Cut]:
        ask = _asking(body, service.llm)
        questions.extend(ask(i, text) for i, text in enumerate(body.texts))
        return (one for question in questions for one in question.cuts())

    said = {"query": body.query, "documents": body.texts}
    found = await likelihoods(
        request, body.model, cut, said=said, length=length, user=body.user,
        cache_salt=body.cache_salt,
    )  # fmt: skip
    each, llm = iter(found.each), service_of(request, body.model).llm
    results: list[Ranked] = []
    for i, question in enumerate(questions):
        weighed = question.weigh(each)
        result = _ranked(body, i, weighed.probabilities[0])
        result["cutaway"] = weighed.answered(llm, traced=body.trace)
        results.append(result)
    return results, found.usage


def _asking(body: RerankRequest, llm: AsyncModel) -> Callable[[int, str], PromptAnswers]:
    cutter, lead = Cutter(llm), lead_of(llm)
    answers = {text: f"wording: answers[{i}]" for i, text in enumerate(body.wording.answers)}

    def ask(i: int, text: str) -> PromptAnswers:
        said = {"instruction": body.instruction, "query": body.query, "document": text}
        prompt = llm.chat_ids(body.wording.messages(**said), enable_thinking=False)
        return PromptAnswers.read(cutter, prompt, answers, f"documents[{i}]", lead=lead)

    return ask


async def _ranked_by_model(
    body: RerankRequest, request: Request, length: int
) -> tuple[list[Ranked], TokensRead]:
    def ask(service: Service) -> PrefillTask[Any, Reranking]:
        return reranking(service.llm, body.query, body.texts)

    said = {"query": body.query, "documents": body.texts}
    found, _ = await prefill_texts(
        request, body.model, ask, said=said, length=length, user=body.user,
        cache_salt=body.cache_salt,
    )  # fmt: skip
    results = [_ranked(body, one.index, one.relevance) for one in found.results]
    return results, {"prompt_tokens": found.tokens, "total_tokens": found.tokens}


async def _ranked_by_vectors(
    body: RerankRequest, request: Request
) -> tuple[list[Ranked], TokensRead]:
    def named(i: int) -> str:
        return f"documents[{i - 1}]" if i else "query"

    texts: list[str | list[int]] = [body.query, *body.texts]
    pairs = [(0, i) for i in range(1, len(texts))]
    each, usage = await cosines(
        request, body.model, texts, pairs, fields="documents with query", named=named,
        user=body.user, cache_salt=body.cache_salt,
    )  # fmt: skip
    return [_ranked(body, i, one) for i, one in enumerate(each)], usage


def _ranked(body: RerankRequest, index: int, score: float) -> Ranked:
    result: Ranked = {"index": index, "relevance_score": score}
    if body.return_documents:
        result["document"] = {"text": body.texts[index]}
    return result


# -- cosines of texts' vectors -----------------------------------------------------------------


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
    first, second = ([*side] for side in zip(*pairs, strict=True))
    each = cosine(found.vectors[first], found.vectors[second]).tolist()
    read = sum(found.tokens)
    return each, {"prompt_tokens": read, "total_tokens": read}


def refuse_asked(method: str, **fields: bool) -> None:
    """InputError naming the first given field that a comparison of vectors does not have."""
    known = {"cosine": "a cosine", "head": "a head that scores", "maxsim": "late interaction"}
    what = known.get(method)
    for field in (field for field, given in fields.items() if given and what):
        why = "is of no tokens" if field == "trace" else "is asked nothing"
        raise InputError(f"{field}: {what} {why}; leave it out")
