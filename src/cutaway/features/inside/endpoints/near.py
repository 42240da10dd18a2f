"""``/page/near``: what makes the score of two texts, and their attention, for the page's panel
"Two texts"."""

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.errors import InputError
from cutaway.features.inside import text_attention
from cutaway.methods.nearness import splits
from cutaway.server.answering import dumps, run_exclusive
from cutaway.server.body import Body, StrictRoute, optional
from cutaway.server.service import service_of

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

_DIGITS = 6
_MOST_PAIRS = 1 << 14  # each is a product of two rows: about a second


class NearRequest(Body):
    """Two texts."""

    model: str | None = optional("one of /v1/models; left out: the first")
    first: str = Field(description="one text; of a reranker the query", min_length=1)
    second: str = Field(description="the other; of a reranker the document", min_length=1)


class AttentionRequest(NearRequest):
    """A token of them."""

    which: int = Field(
        0, description="the text, 0 or 1; 0 where both are read together", ge=0, le=1
    )
    position: int | None = optional(
        "of the token; left out: the last where tokens see none after them, else the first", ge=0
    )


@router.post("/page/near")
async def near(body: NearRequest, request: Request) -> Response:
    """What ``LLM.near`` says of two texts."""
    _check_length(body, request)
    data = await run_exclusive(request, body.model, _answer, body)
    return Response(data, media_type="application/json")


@router.post("/page/near/attention")
async def attention(body: AttentionRequest, request: Request) -> Response:
    """From which tokens one reads, by layer and head; as ``text_attention`` has it."""
    _check_length(body, request)
    data = await run_exclusive(request, body.model, _attention, body)
    return Response(data, media_type="application/json")


def _check_length(body: NearRequest, request: Request) -> None:
    llm = service_of(request, body.model).llm
    for text in (body.first, body.second):
        llm.check_length(text)


def _attention(llm: LLM, body: AttentionRequest) -> bytes:
    texts = text_attention(llm, body.first, body.second)
    if body.which >= len(texts):
        raise InputError("which: the model reads both texts together: 0")
    one = texts[body.which]
    last = len(one.token_ids) - 1
    position = body.position if body.position is not None else last if llm.config.is_causal else 0
    if position > last:
        raise InputError(f"position: the text has {last + 1} tokens: 0 to {last}")
    weights = one.weights[:, :, position].astype(float).round(_DIGITS)
    return dumps({
        "texts": len(texts), "tokens": [llm.tokenizer.token_name(i) for i in one.token_ids],
        "position": position, "weights": weights.tolist(),
    })  # fmt: skip


def _answer(llm: LLM, body: NearRequest) -> bytes:
    first, second = (len(llm.tokenize(text)) for text in (body.first, body.second))
    if splits(llm) and first * second > _MOST_PAIRS:
        raise InputError(
            f"the texts have {first} and {second} tokens, and here at most {_MOST_PAIRS} pairs of "
            "tokens are computed: shorten them, or use cutaway near"
        )
    return dumps(llm.near(body.first, body.second).to_dict())
