"""``/v1/fill``: candidates for the masks in a text."""

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.errors import InputError
from cutaway.methods.filling import split_at_masks
from cutaway.server.answering import run_exclusive
from cutaway.server.body import Body, StrictRoute, examples, optional
from cutaway.server.document import QUEUE_ERRORS, replies
from cutaway.server.event_stream import dumps
from cutaway.server.limits import MOST_ROWS
from cutaway.server.service import service_of
from cutaway.server.shared.plain_schemas import FilledIn

router = APIRouter(route_class=StrictRoute, tags=["text"])

_TOP, _CANDIDATES, _TARGETS = 5, 64, 256


class FillRequest(Body):
    """A text with masks."""

    model_config = examples(
        {"text": "Once upon a [MASK]"}, {"text": "a [MASK] c", "targets": ["b", "ab"]}
    )
    model: str | None = optional("one of /v1/models; left out: the first")
    text: str = Field(description="with [MASK], or the model's own mask token, at least once")
    top: int | None = optional(f"candidates for each mask; left out: {_TOP}", ge=1, le=1000)
    targets: list[str] | None = optional(
        "only these, each scored whole; left out: the likeliest",
        fail_fast=True,
        max_length=_TARGETS,
    )
    candidates: int | None = optional(
        "how many are considered by Bayes' rule, and how many beginnings of several "
        f"masks together; left out: {_CANDIDATES}",
        ge=1,
        le=1000,
    )


@router.post("/v1/fill", responses=replies(FilledIn, *QUEUE_ERRORS))
async def fill(body: FillRequest, request: Request) -> Response:
    """Candidates for the masks of a text, of each and of all together."""
    service = service_of(request, body.model)
    for text in (body.text, *(body.targets or ())):
        service.llm.check_length(text)
    data = await run_exclusive(request, body.model, _answer, body)
    return Response(data, media_type="application/json")


def _answer(llm: LLM, body: FillRequest) -> bytes:
    top, candidates = body.top or _TOP, body.candidates or _CANDIDATES
    parts = split_at_masks(body.text, llm.tokenizer)
    masks = len(parts) - 1
    tokens = masks + sum(len(llm.tokenize(part)) for part in parts)
    texts = max(top, candidates) + sum(len(llm.tokenize(target)) for target in body.targets or ())
    texts *= masks
    if tokens * texts > MOST_ROWS:
        raise InputError(
            "text",
            f": {tokens} tokens in {texts} variants are more than the {MOST_ROWS} tokens "
            "that one request may have computed: shorten it, or ask for fewer candidates",
        )
    return dumps(llm.fill(body.text, top, body.targets, candidates=candidates).to_dict())
