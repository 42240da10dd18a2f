"""``/v1/score`` and ``/v1/rerank``: how well texts match another text, as scores or as an order.

Knows both requests and their answers; ``methods/scoring.py`` and ``methods/reranking.py`` compute
the scores.
"""

from time import time
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.api.async_model import AsyncModel
from cutaway.errors import InputError, Name
from cutaway.methods import reranking
from cutaway.methods.reranking import INSTRUCTION, SYSTEM, USER, Method, Relevance
from cutaway.methods.scoring import Cutter, Likelihood, LookUpReader, scoring
from cutaway.requests.prefill import PrefillTask
from cutaway.sampling.fixed_math import cosine
from cutaway.server.answering import prefill_texts
from cutaway.server.body import Body, StrictRoute, Texts, Unsupported, examples, optional
from cutaway.server.document import QUEUE_ERRORS, replies
from cutaway.server.routes.embeddings import check_count, embed_texts
from cutaway.server.scores import check_amount, method_of, report_chances, scored_tokens, usage_of
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
        """Pairs of indices into text_1 and text_2."""
        first, second = len(self.text_1), len(self.text_2)
        if first not in (1, second):
            raise InputError(
                "text_1",
                f" has {first} texts and text_2 has {second}: give one text_1, or as many of each",
            )
        return [(0 if first == 1 else i, i) for i in range(second)]

    def check(self) -> int:
        """Return the number of all characters; InputError for too many texts or characters."""
        pairs = self.pairs
        length = sum(len(self.text_1[a]) + len(self.text_2[b]) for a, b in pairs)
        check_amount("text_2", len(pairs), length)
        return length


@router.post("/v1/score", responses=replies(Scores, *QUEUE_ERRORS))
async def score(body: ScoreRequest, request: Request) -> Response:
    """How likely text_2 is after text_1, or how near their vectors are, of each pair."""
    service = service_of(request, body.model)
    name, length = service.names.resolve(body.model), body.check()
    method = body.method or method_of(service.llm)
    refuse_trace(method, traced=body.trace)
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
    def ask(service: Service) -> PrefillTask[LookUpReader, list[Likelihood]]:
        cutter = Cutter(service.llm)
        return scoring(
            cutter.pair(body.text_1[a], body.text_2[b], Name("text_2", b), Name("text_1", a))
            for a, b in body.pairs
        )

    likelihoods, readers = await prefill_texts(
        request, body.model, ask, prompt={"text_1": body.text_1, "text_2": body.text_2},
        length=length, user=body.user, cache_salt=body.cache_salt,
    )  # fmt: skip
    llm = service_of(request, body.model).llm
    data: list[PairScore] = []
    for i, likelihood in enumerate(likelihoods):
        data.append({"index": i, "object": "score", "score": likelihood.total})
        if body.trace:
            tokens = scored_tokens(llm, likelihood)
            data[i]["cutaway"] = {"is_greedy": likelihood.is_greedy, "tokens": tokens}
    return data, usage_of(readers)


async def _scores_by_vectors(
    body: ScoreRequest, request: Request
) -> tuple[list[PairScore], TokensRead]:
    first = len(body.text_1)

    def place(i: int) -> str:
        return Name("text_1", i) if i < first else Name("text_2", i - first)

    embeddings = await embed_texts(
        request, body.model, [*body.text_1, *body.text_2],
        Name("text_2", prose=" with text_1"), place, user=body.user, cache_salt=body.cache_salt,
    )  # fmt: skip
    firsts, seconds = zip(*body.pairs, strict=True)
    vectors = embeddings.vectors
    scores = cosine(vectors[[*firsts]], vectors[[first + b for b in seconds]]).tolist()
    data: list[PairScore] = [
        {"index": i, "object": "score", "score": score} for i, score in enumerate(scores)
    ]
    read = sum(embeddings.tokens)
    return data, {"prompt_tokens": read, "total_tokens": read}


# -- /v1/rerank, in the form of Jina and Cohere ------------------------------------------------


_CUT = "no document is cut here; leave it out"


class Document(Body):
    """A document that is an object."""

    text: str


class Wording(Body):
    """What a model that writes is asked of each document; as Qwen3-Reranker was trained on it."""

    system: str = Field(SYSTEM, description='the system message; "": none')
    user: str = Field(USER, description="with {query}, {document} and, if wanted, {instruction}")
    answers: list[str] = Field(
        ["yes", "no"], min_length=2, max_length=2, fail_fast=True,
        description="that it is relevant, and that it is not",
    )  # fmt: skip


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
    instruction: str = Field(INSTRUCTION, description="ours: what makes a document relevant")
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
        """The texts of the documents."""
        return [
            document if isinstance(document, str) else document.text for document in self.documents
        ]

    @property
    def words(self) -> reranking.RankingWords:
        """The wording in the form that ``LLM.rerank`` takes."""
        first, second = self.wording.answers
        return reranking.RankingWords(self.wording.system, self.wording.user, (first, second))

    def check(self) -> int:
        """Return the number of all characters; InputError for too much text or a bad wording."""
        self.words.check()
        asks = self.wording
        around = len(self.query) + len(asks.user) + len(asks.system) + len(self.instruction)
        length = sum(len(text) + around for text in self.texts)
        check_amount("documents", len(self.documents), length)
        return length


@router.post("/v2/rerank", responses=replies(Ranking, *QUEUE_ERRORS), name="rerank_cohere")
@router.post("/rerank", responses=replies(Ranking, *QUEUE_ERRORS), name="rerank_plain")
@router.post("/v1/rerank", responses=replies(Ranking, *QUEUE_ERRORS))
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Documents, the most relevant for a query first."""
    service = service_of(request, body.model)
    name, length = service.names.resolve(body.model), body.check()
    set_fields = body.model_fields_set
    method = reranking.check_method(
        service.llm, body.method,
        instruction="instruction" in set_fields or None, wording="wording" in set_fields or None,
    )  # fmt: skip
    refuse_trace(method, traced=body.trace)
    if method == "cosine":
        check_count(Name("documents", prose=" with query"), 1 + len(body.texts))
    answers = method == "answers"

    def ask(service: Service) -> PrefillTask[Any, reranking.Reranking]:
        return reranking.rerank(
            service.llm, body.query, body.texts, method=method,
            instruction=body.instruction if answers else None,
            wording=body.words if answers else None,
        )  # fmt: skip

    ranking, readers = await prefill_texts(
        request, body.model, ask, prompt={"query": body.query, "documents": body.texts},
        length=length, user=body.user, cache_salt=body.cache_salt,
    )  # fmt: skip
    results = ranking.results[: body.top_n or None]
    answer: Ranking = {
        "id": f"rerank-{answer_id(request)}",
        "model": name,
        "results": [_to_ranked(body, service.llm, ranking, document) for document in results],
        "usage": usage_of(readers),
        "system_fingerprint": service.names.fingerprint(body.model),
        "cutaway": _describe_method(body) if answers else {"method": method},
    }
    return JSONResponse(answer)


def _to_ranked(
    body: RerankRequest, llm: AsyncModel, ranking: reranking.Reranking, document: Relevance
) -> Ranked:
    i = document.index
    result: Ranked = {"index": i, "relevance_score": document.relevance}
    if body.return_documents:
        result["document"] = {"text": body.texts[i]}
    if ranking.chances:
        result["cutaway"] = report_chances(llm, ranking.chances[i], traced=body.trace)
    return result


def _describe_method(body: RerankRequest) -> HowRanked:
    wording = body.wording
    return {
        "method": "answers",
        "wording": {
            "system": wording.system or None, "user": wording.user, "answers": wording.answers,
        },
        "instruction": body.instruction,
    }  # fmt: skip


def refuse_trace(method: str, *, traced: bool) -> None:
    """InputError for a trace with a method whose scores are not probabilities of tokens."""
    reasons = {"cosine": "a cosine", "head": "a head that scores", "maxsim": "late interaction"}
    if traced and method in reasons:
        raise InputError("trace", f": {reasons[method]} is of no tokens; leave it out")
