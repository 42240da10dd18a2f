"""``/v1/score``, in the form of vLLM: how well each text goes with another."""

from collections.abc import Iterator
from time import time
from typing import ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.errors import InputError
from cutaway.methods.scoring import Cut, Cutter
from cutaway.server.body import Body, Texts, Unsupported, examples, optional
from cutaway.server.document import TEXT, replies
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import answer_id, service_of
from cutaway.server.scores.cosines import cosines, refuse_asked
from cutaway.server.scores.likelihoods import check_amount, likelihoods, method_of, scored_tokens
from cutaway.server.scores.schemas import PairScore, Scores
from cutaway.server.service import Service
from cutaway.server.shared.keyword_fields import CACHE_SALT
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
    read = _by_vectors(body, request) if method == "cosine" else _by_model(body, request, length)
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


async def _by_model(
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


async def _by_vectors(body: ScoreRequest, request: Request) -> tuple[list[PairScore], TokensRead]:
    first = len(body.text_1)

    def named(i: int) -> str:
        return f"text_1[{i}]" if i < first else f"text_2[{i - first}]"

    each, usage = await cosines(
        request, body.model, [*body.text_1, *body.text_2],
        [(a, first + b) for a, b in body.pairs], fields="text_2 with text_1", named=named,
        user=body.user, cache_salt=body.cache_salt,
    )  # fmt: skip
    return [{"index": i, "object": "score", "score": one} for i, one in enumerate(each)], usage
