"""``/v1/inside/ablate``: a step of a text without each part of the text before it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.features.inside import ablate
from cutaway.features.inside.endpoints.inside import StepOfText, beside, traced
from cutaway.features.inside.endpoints.schemas import AblationOfStep
from cutaway.server.answering import dumps
from cutaway.server.body import StrictRoute, examples, optional
from cutaway.server.document import WRITTEN, replies

router = APIRouter(route_class=StrictRoute, tags=["inside"])

_SECONDS, _MOST_SECONDS = 10.0, 60.0  # in which no other look is begun


class AblateRequest(StepOfText):
    """What is left out."""

    model_config = examples(
        {"prompt": "Once upon a", "generated": [32, 116], "step": 1, "by": "word"}
    )
    by: str | None = optional("what a part is: token, word, line or sentence; left out: token")
    how: str | None = optional("how it is taken away: delete, knock_out or other; left out: delete")
    other: int | str | None = optional(
        "with how other: the token, as id or text, in its place; left out: the likeliest other"
    )
    budget_s: float | None = optional(
        f"seconds after which what is done is sent; left out: {_SECONDS:g}", gt=0, le=_MOST_SECONDS
    )


@router.post("/v1/inside/without", include_in_schema=False)  # its earlier name
@router.post("/v1/inside/ablate", responses=replies(AblationOfStep, *WRITTEN))
async def left_out(body: AblateRequest, request: Request) -> Response:
    """The step without each part of the text before it, with the same luck."""
    data = await beside(request, body, _answer)
    return Response(data, media_type="application/json")


def _answer(llm: LLM, body: AblateRequest) -> bytes:
    done = ablate(
        llm, traced(llm, body), body.step, by=body.by or "token", how=body.how or "delete",
        other=body.other, rival=body.rival, budget_s=body.budget_s or _SECONDS,
    )  # fmt: skip
    data = done.to_dict(llm.tokenizer.token_name)
    return dumps(data | {"as_run": None if body.row is None else done.is_as_run})
