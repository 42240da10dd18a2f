"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: adapters come and go, as in vLLM.

Knows who may ask and which names are free. Refuses to know how an adapter is read and put on.
"""

from typing import ClassVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.api.async_llm import AsyncLLM
from cutaway.errors import InputError
from cutaway.server.body import Body, Unsupported, examples, optional
from cutaway.server.document import FIELDS, replies
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.errors import ApiError
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import models_of, service_of
from cutaway.server.service import Service
from cutaway.server.shared.plain_schemas import AdaptersChanged

router = APIRouter(route_class=StrictRoute, tags=["status"])


class LoadAdapterRequest(Body):
    """An adapter on the server's disk."""

    model_config = examples({"lora_name": "poet", "lora_path": "poet.gguf"})
    lora_name: str = Field(description="what requests then give as model")
    lora_path: str = Field(description="FILE or FOLDER on the server, :X behind it for a factor")
    model: str | None = optional("ours: whose adapter it is; left out: the first of /v1/models")
    unsupported: ClassVar[Unsupported] = {
        "load_inplace": ((False,), "unload the earlier one first; leave it out"),
    }


class UnloadAdapterRequest(Body):
    """An adapter that is loaded."""

    model_config = examples({"lora_name": "poet"})
    lora_name: str = Field(description="one of /v1/models that has a parent")
    unsupported: ClassVar[Unsupported] = {
        "lora_int_id": ((), "adapters have names here; leave it out"),
    }


@router.post("/v1/load_lora_adapter", responses=replies(AdaptersChanged, *FIELDS))
async def load_lora_adapter(body: LoadAdapterRequest, request: Request) -> Response:
    """Load an adapter, which requests then name as a model; needs serve --allow-adapters."""
    service = service_of(request, body.model)
    llm = _allowed(request, service)
    if any(one.names.known(body.lora_name) for one in models_of(request).services):
        raise InputError(
            f"lora_name: {body.lora_name[:100]} is the name of a model or of an adapter already: "
            "give another, or unload that"
        )
    loading = llm.load_adapter(body.lora_name, body.lora_path)
    await cancel_on_disconnect(request.receive, loading)
    return _answer(service)


@router.post("/v1/unload_lora_adapter", responses=replies(AdaptersChanged, *FIELDS, 409))
async def unload_lora_adapter(body: UnloadAdapterRequest, request: Request) -> Response:
    """Unload an adapter that no text is written with; needs serve --allow-adapters."""
    service = service_of(request, body.lora_name)
    llm = _allowed(request, service)
    name = service.names.adapter(body.lora_name)
    if not name:
        raise InputError(f"lora_name: {body.lora_name[:100]} is a model, not an adapter")
    try:
        await cancel_on_disconnect(request.receive, llm.unload_adapter(name))
    except InputError as error:
        raise ApiError(409, str(error), param="lora_name", code="adapter_in_use") from None
    return _answer(service)


def _allowed(request: Request, service: Service) -> AsyncLLM:
    """The model, whose adapters may change. ApiError where they may not."""
    if not request.app.state.settings.allow_adapters:
        raise ApiError(
            404, "adapters are not loaded or unloaded by requests here; start the server with "
            "--allow-adapters", code="adapters_not_allowed",
        )  # fmt: skip
    service.check_open()
    if not isinstance(service.llm, AsyncLLM):
        raise ApiError(
            400, "adapters come and go where one model stays in the server's own process: "
            "of several models, on demand, or with --replicas, name them at the start (--adapter)",
            code="unsupported",
        )  # fmt: skip
    return service.llm


def _answer(service: Service) -> Response:
    answer: AdaptersChanged = {"adapters": service.llm.model.adapters}
    return JSONResponse(answer)
