"""The endpoints that look into a step: ``/v1/inside``, ``/v1/inside/ablate``, ``/page/near``.

They know the fields of a request, and when a look gets its turn among other requests.
"""

import asyncio
import gzip
from base64 import b64encode
from collections.abc import Callable
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.errors import InputError
from cutaway.features.inside import schemas, summary
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import OtherRowError, inside
from cutaway.features.inside.schemas import AblationOfStep, InsideOfStep
from cutaway.features.inside.steps import unrecorded_trace
from cutaway.features.inside.texts import text_attention
from cutaway.methods.nearness import splits
from cutaway.server.answering import run_exclusive
from cutaway.server.body import Body, StrictRoute, examples, optional
from cutaway.server.document import GENERATION_ERRORS, replies
from cutaway.server.event_stream import dumps
from cutaway.server.http.errors import ApiError
from cutaway.server.service import service_of
from cutaway.trace import Trace

SCHEMAS = (schemas,)
router = APIRouter(route_class=StrictRoute, tags=["inside"])

P = ParamSpec("P")
T = TypeVar("T")

_BYTES = "application/octet-stream"
_FAST = 1  # gzip's level: half the bytes, in a hundredth of a look's time
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


@router.post("/v1/inside", responses=replies(InsideOfStep, *GENERATION_ERRORS, binary=_BYTES))
async def look(body: InsideRequest, request: Request) -> Response:
    """The inside of one step: attention, logit attribution, what each layer would say."""
    binary = _is_binary(body, request)
    data = await run_look(request, body, _answer, binary)
    headers = {"vary": "accept, accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        data = await asyncio.to_thread(gzip.compress, data, _FAST)
        headers["content-encoding"] = "gzip"
    return Response(data, media_type=_BYTES if binary else "application/json", headers=headers)


async def run_look(
    request: Request,
    body: B,
    function: Callable[Concatenate[LLM, B, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a function of a model and a request; cancel it when the client disconnects.

    Raises ApiError 409 where the step's logits have another hash than the request gives.
    """
    service = service_of(request, body.model)
    service.check_interventions(body.interventions)
    if isinstance(body.prompt, str):
        service.llm.check_length(body.prompt)
    try:
        return await run_exclusive(request, body.model, function, body, *args, **kwargs)
    except OtherRowError:
        raise ApiError(
            409, f"row: this model gives other logits than {body.row} at this step; they are of "
            "another model, or the tokens are others", param="row", code="other_row",
        ) from None  # fmt: skip


def to_trace(llm: LLM, body: StepOfText) -> Trace:
    """Make a trace of the request's text, up to its step."""
    prompt = llm.tokenize(body.prompt) if isinstance(body.prompt, str) else body.prompt
    return unrecorded_trace(
        llm, prompt, body.generated, body.step,
        settings=body.settings, drawn_id=body.drawn, row=body.row,
        interventions=body.interventions or (),
    )  # fmt: skip


def _is_binary(body: InsideRequest, request: Request) -> bool:
    form = body.format or ("safetensors" if _BYTES in request.headers.get("accept", "") else "json")
    return form == "safetensors"


def _answer(llm: LLM, body: InsideRequest, binary: bool) -> bytes:
    parts = ["lens", "maps"] if body.want is None else body.want
    look, name = inside(llm, to_trace(llm, body), body.step), llm.tokenizer.token_name
    figures = look, look.logit_attribution(body.rival), look.lens(1) if "lens" in parts else None
    as_run = None if body.row is None else look.is_as_run  # None: the request gave no hash
    if binary:
        about = summary.page_header(*figures, name, trace="", model=llm.name)
        about |= {"as_run": dumps(as_run).decode()}
        return summary.to_bytes(*figures, about, with_maps="maps" in parts)
    data = summary.to_dict(*figures, name) | {"as_run": as_run}
    if "maps" in parts:
        weights = summary.maps(look)
        data["maps"] = {
            "weights": {
                "shape": weights.shape,
                "scale": summary.SCALE,
                "data": b64encode(weights.tobytes()).decode(),
            }
        }
    return dumps(data)


# -- ``/v1/inside/ablate``: a step without each part of the text before it -------------------------


_SECONDS, _MAX_SECONDS = 10.0, 60.0  # no other look begins meanwhile


class AblateRequest(StepOfText):
    """What a request leaves out of a text."""

    model_config = examples(
        {"prompt": "Once upon a", "generated": [32, 116], "step": 1, "by": "word"}
    )
    by: str | None = optional("what a part is: token, word, line or sentence; left out: token")
    how: str | None = optional("how it is taken away: delete, knock_out or other; left out: delete")
    other: int | str | None = optional(
        "with how other: the token, as id or text, in its place; left out: the likeliest other"
    )
    budget_s: float | None = optional(
        f"seconds after which what is done is sent; left out: {_SECONDS:g}", gt=0, le=_MAX_SECONDS
    )


@router.post("/v1/inside/without", include_in_schema=False)  # its earlier name
@router.post("/v1/inside/ablate", responses=replies(AblationOfStep, *GENERATION_ERRORS))
async def left_out(body: AblateRequest, request: Request) -> Response:
    """The step without each part of the text before it, with the same luck."""
    data = await run_look(request, body, _ablation)
    return Response(data, media_type="application/json")


def _ablation(llm: LLM, body: AblateRequest) -> bytes:
    ablation = ablate(
        llm, to_trace(llm, body), body.step, by=body.by or "token", how=body.how or "delete",
        other=body.other, rival=body.rival, budget_s=body.budget_s or _SECONDS,
    )  # fmt: skip
    data = ablation.to_dict(llm.tokenizer.token_name)
    return dumps(data | {"as_run": None if body.row is None else ablation.is_as_run})


# -- ``/page/near``: two texts, for the page -------------------------------------------------------


_DIGITS = 6
_MAX_PAIRS = 1 << 14  # each is a product of two rows: about a second


class NearRequest(Body):
    """Two texts to compare."""

    model: str | None = optional("one of /v1/models; left out: the first")
    first: str = Field(description="one text; of a reranker the query", min_length=1)
    second: str = Field(description="the other; of a reranker the document", min_length=1)


class AttentionRequest(NearRequest):
    """Two texts, and a token of one of them."""

    which: int = Field(
        0, description="the text, 0 or 1; 0 where both are read together", ge=0, le=1
    )
    position: int | None = optional(
        "of the token; left out: the last where tokens see none after them, else the first", ge=0
    )


@router.post("/page/near", include_in_schema=False)
async def compare_texts(body: NearRequest, request: Request) -> Response:
    """Answer with the JSON of ``LLM.near`` for two texts."""
    _check_length(body, request)
    data = await run_exclusive(request, body.model, _nearness, body)
    return Response(data, media_type="application/json")


@router.post("/page/near/attention", include_in_schema=False)
async def attention(body: AttentionRequest, request: Request) -> Response:
    """Answer with one token's attention weights, by layer and head, from ``text_attention``."""
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
        raise InputError("which", ": the model reads both texts together: 0")
    text = texts[body.which]
    last = len(text.token_ids) - 1
    position = body.position if body.position is not None else last if llm.config.is_causal else 0
    if position > last:
        raise InputError("position", f": the text has {last + 1} tokens: 0 to {last}")
    weights = text.weights[:, :, position].astype(float).round(_DIGITS)
    return dumps({
        "texts": len(texts), "tokens": [llm.tokenizer.token_name(i) for i in text.token_ids],
        "position": position, "weights": weights.tolist(),
    })  # fmt: skip


def _nearness(llm: LLM, body: NearRequest) -> bytes:
    first, second = (len(llm.tokenize(text)) for text in (body.first, body.second))
    if splits(llm) and first * second > _MAX_PAIRS:
        raise InputError(
            f"the texts have {first} and {second} tokens, and here at most {_MAX_PAIRS} pairs of "
            "tokens are computed: shorten them, or use cutaway near"
        )
    return dumps(llm.near(body.first, body.second).to_dict())
