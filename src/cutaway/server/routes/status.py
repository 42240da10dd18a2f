"""The server's state: models, adapters to load and unload, health and metrics for Prometheus.

Knows when adapters may be changed, and which names are free. Refuses to know how an adapter is read
and applied.
"""

from datetime import UTC, datetime
from typing import Annotated, ClassVar

from fastapi import APIRouter, Path, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.api.async_llm import AsyncLLM
from cutaway.errors import InputError
from cutaway.server.body import Body, StrictRoute, Unsupported, examples, optional
from cutaway.server.document import FIELD_ERRORS, Answers, replies
from cutaway.server.http.errors import ApiError
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.service import Service, models_of, service_of
from cutaway.server.shared.plain_schemas import AdaptersChanged, Health, ModelCard, ModelList, Ready

router = APIRouter(route_class=StrictRoute, tags=["status"])

Name = Annotated[str, Path(description="one of /v1/models")]
_TEXT = {"schema": {"type": "string"}}
_METRICS: Answers = {
    200: {
        "description": "Metrics in the format that the Accept header asks for.",
        "content": {"text/plain": _TEXT, "application/openmetrics-text": _TEXT},
    }
}


@router.get("/v1/models", responses=replies(ModelList))
async def models(request: Request) -> Response:
    """The names that requests may use for a model."""
    cards = [
        _model(service, name)
        for service in models_of(request).services
        for name in service.names.all
    ]
    answer: ModelList = {
        "object": "list", "data": cards, "has_more": False, "first_id": cards[0]["id"],
        "last_id": cards[-1]["id"],
    }  # fmt: skip
    return JSONResponse(answer)


@router.get("/v1/models/{name:path}", responses=replies(ModelCard, 404))
async def model(name: Name, request: Request) -> Response:
    """One of these names."""
    service = service_of(request, name)
    return JSONResponse(_model(service, service.names.resolve(name)))


def _model(service: Service, name: str) -> ModelCard:
    answer: ModelCard = {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": service.created,
        "created_at": datetime.fromtimestamp(service.created, UTC).isoformat(),
        "owned_by": "cutaway",
        "root": service.names.model(name).name,
        "max_model_len": service.room,
        "attention": service.llm.config.attention,
    }
    if service.names.adapter(name):
        answer["parent"] = service.names.first
    if service.slot:
        answer["loaded"] = service.slot.state == "loaded"
    return answer


@router.get("/health", responses=replies(Health, 503))
async def health(request: Request) -> Response:
    """Whether the engine is alive."""
    if not models_of(request).alive:
        raise ApiError(503, "the engine has stopped; start the server again", code="engine_ended")
    answer: Health = {"status": "ok"}
    return JSONResponse(answer)


@router.get("/ready", responses=replies(Ready, 503))
async def ready(request: Request) -> Response:
    """Whether it takes requests."""
    served = models_of(request)
    if served.draining or not served.alive:
        raise ApiError(503, "the server is stopping; use another one", code="stopping")
    answer: Ready = {"status": "ready"}
    return JSONResponse(answer)


@router.get("/metrics", responses=_METRICS)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' format."""
    page, content_type = models_of(request).metrics(request.headers.get("accept", ""))
    return Response(page, headers={"content-type": content_type})


# -- adapters that requests load and unload, as in vLLM ----------------------------------------


class LoadAdapterRequest(Body):
    """An adapter on the server's disk."""

    model_config = examples({"lora_name": "poet", "lora_path": "poet.gguf"})
    lora_name: str = Field(description="what requests then give as model")
    lora_path: str = Field(description="FILE or FOLDER on the server, followed by :X for a factor")
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


@router.post("/v1/load_lora_adapter", responses=replies(AdaptersChanged, *FIELD_ERRORS))
async def load_lora_adapter(body: LoadAdapterRequest, request: Request) -> Response:
    """Load an adapter, which requests then name as a model; needs serve --allow-adapters."""
    service = service_of(request, body.model)
    llm = _check_changeable(request, service)
    if any(other.names.find(body.lora_name) for other in models_of(request).services):
        raise InputError(
            "lora_name",
            f": {body.lora_name[:100]} is the name of a model or of an adapter already: "
            "give another, or unload that",
        )
    loading = llm.load_adapter(body.lora_name, body.lora_path)
    await cancel_on_disconnect(request.receive, loading)
    return _list_adapters(service)


@router.post("/v1/unload_lora_adapter", responses=replies(AdaptersChanged, *FIELD_ERRORS, 409))
async def unload_lora_adapter(body: UnloadAdapterRequest, request: Request) -> Response:
    """Unload an adapter that no text is written with; needs serve --allow-adapters."""
    service = service_of(request, body.lora_name)
    llm = _check_changeable(request, service)
    name = service.names.adapter(body.lora_name)
    if not name:
        raise InputError("lora_name", f": {body.lora_name[:100]} is a model, not an adapter")
    try:
        await cancel_on_disconnect(request.receive, llm.unload_adapter(name))
    except InputError as error:
        raise ApiError(409, str(error), param="lora_name", code="adapter_in_use") from None
    return _list_adapters(service)


def _check_changeable(request: Request, service: Service) -> AsyncLLM:
    """Return the model whose adapters a request changes; ApiError if it may change none."""
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


def _list_adapters(service: Service) -> Response:
    answer: AdaptersChanged = {"adapters": service.llm.model.adapters}
    return JSONResponse(answer)
