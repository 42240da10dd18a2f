"""``/page/near``: what makes the score of two texts, for the page's panel "Two texts"."""

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.errors import InputError
from cutaway.methods.nearness import splits
from cutaway.server.body import Body, optional
from cutaway.server.events import dumps
from cutaway.server.exclusive import run_exclusive
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

_MOST_PAIRS = 1 << 14  # each is a product of two rows: about a second


class NearRequest(Body):
    """Two texts."""

    model: str | None = optional("one of /v1/models; left out: the first")
    first: str = Field(description="one text; of a reranker the query", min_length=1)
    second: str = Field(description="the other; of a reranker the document", min_length=1)


@router.post("/page/near")
async def near(body: NearRequest, request: Request) -> Response:
    """What ``LLM.near`` says of two texts."""
    service = service_of(request, body.model)
    for text in (body.first, body.second):
        service.llm.check_length(text)
    data = await run_exclusive(request, body.model, _answer, body)
    return Response(data, media_type="application/json")


def _answer(llm: LLM, body: NearRequest) -> bytes:
    first, second = (len(llm.tokenize(text)) for text in (body.first, body.second))
    if splits(llm) and first * second > _MOST_PAIRS:
        raise InputError(
            f"the texts have {first} and {second} tokens, and here at most {_MOST_PAIRS} pairs of "
            "tokens are computed: shorten them, or use cutaway near"
        )
    return dumps(llm.near(body.first, body.second).to_dict())
