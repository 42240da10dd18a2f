"""``/v1/inside``: attention, logit attribution and the lens of one step, beside other requests."""

import asyncio
import gzip
from base64 import b64encode
from collections.abc import Callable
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.features.inside import (
    OtherRowError,
    inside,
    page_arrays,
    summary,
    unrecorded_trace,
)
from cutaway.features.inside.endpoints import schemas
from cutaway.features.inside.endpoints.schemas import InsideOfStep
from cutaway.server.answering import dumps, run_exclusive
from cutaway.server.body import Body, StrictRoute, examples, optional
from cutaway.server.document import WRITTEN, replies
from cutaway.server.http.errors import ApiError
from cutaway.server.service import service_of
from cutaway.trace import Trace

SCHEMAS = (schemas,)
router = APIRouter(route_class=StrictRoute, tags=["inside"])

P = ParamSpec("P")
T = TypeVar("T")

_BYTES = "application/octet-stream"
_FAST = 1  # of gzip's levels: half the bytes in a hundredth of the time that a look takes
Want = Literal["lens", "maps"]


class StepOfText(Body):
    """A step of a text whose tokens are known."""

    model: str | None = optional("one of /v1/models; left out: the first")
    prompt: str | Annotated[list[int], Field(fail_fast=True)] = Field(
        description="a text or token ids"
    )
    generated: list[int] = Field(
        fail_fast=True, description="token ids that followed; those after the step may be left out"
    )
    step: int = Field(description="which of them: 0 is the first after the prompt")
    rival: int | str | None = optional(
        "the token, as id or text, to compare the step's token with; left out: the likeliest other"
    )
    row: str | None = optional(
        "hash of the step's logits as a trace has it; others than these are an error"
    )
    settings: dict[str, Any] | None = optional(
        "those in force, the seed too: for what the same luck draws; a trace's params"
    )
    drawn: int | None = optional("what was drawn at this step, where another token was given")
    interventions: list[str | dict[str, Any]] | None = optional(
        "those that the text was written with; where the server allows them", fail_fast=True
    )


B = TypeVar("B", bound=StepOfText)


class InsideRequest(StepOfText):
    """What is wanted of a step."""

    model_config = examples(
        {"prompt": "Once upon a", "generated": [32, 116], "step": 1},
        {"prompt": [79, 110, 99, 101], "generated": [32], "step": 0, "format": "safetensors"},
    )
    want: list[Want] | None = optional("the lens, and every weight; left out: both", fail_fast=True)
    format: Literal["json", "safetensors"] | None = optional("left out: as the Accept header asks")


@router.post("/v1/inside", responses=replies(InsideOfStep, *WRITTEN, binary=_BYTES))
async def look(body: InsideRequest, request: Request) -> Response:
    """The inside of one step: attention, logit attribution, what each layer would say."""
    binary = _is_binary(body, request)
    data = await beside(request, body, _answer, binary)
    headers = {"vary": "accept, accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        data = await asyncio.to_thread(gzip.compress, data, _FAST)
        headers["content-encoding"] = "gzip"
    return Response(data, media_type=_BYTES if binary else "application/json", headers=headers)


async def beside(
    request: Request,
    body: B,
    function: Callable[Concatenate[LLM, B, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """The result of a function of model and request, cancelled when the client disconnects.

    ApiError 409 where the step's logits have another hash than the one given.
    """
    service = service_of(request, body.model)
    service.check_interventions(body.interventions)
    if isinstance(body.prompt, str):
        service.llm.check_length(body.prompt)
    try:
        return await run_exclusive(request, body.model, function, body, *args, **kwargs)
    except OtherRowError:
        raise ApiError(
            409, f"row: this model gives other logits than {body.row} at step {body.step}; they "
            "are of another model, or the tokens are others", param="row", code="other_row",
        ) from None  # fmt: skip


def traced(llm: LLM, body: StepOfText) -> Trace:
    """The text and the step, as a trace has them."""
    prompt = llm.tokenize(body.prompt) if isinstance(body.prompt, str) else body.prompt
    return unrecorded_trace(
        llm, prompt, body.generated, body.step,
        settings=body.settings, drawn=body.drawn, row=body.row,
        interventions=body.interventions or (),
    )  # fmt: skip


def _is_binary(body: InsideRequest, request: Request) -> bool:
    asked = body.format or (
        "safetensors" if _BYTES in request.headers.get("accept", "") else "json"
    )
    return asked == "safetensors"


def _answer(llm: LLM, body: InsideRequest, binary: bool) -> bytes:
    wanted = ["lens", "maps"] if body.want is None else body.want
    look, name = inside(llm, traced(llm, body), body.step), llm.tokenizer.token_name
    found = look, look.logit_attribution(body.rival), look.lens(1) if "lens" in wanted else None
    as_run = None if body.row is None else look.is_as_run  # None: no row to compare with
    if binary:
        about = page_arrays.about(*found, name, trace="", model=llm.name)
        about |= {"as_run": dumps(as_run).decode()}
        return page_arrays.to_bytes(*found, about, with_maps="maps" in wanted)
    data = summary.to_dict(*found, name) | {"as_run": as_run}
    if "maps" in wanted:
        weights = page_arrays.maps(look)
        data["maps"] = {
            "weights": {
                "shape": weights.shape,
                "scale": page_arrays.SCALE,
                "data": b64encode(weights.tobytes()).decode(),
            }
        }
    return dumps(data)
