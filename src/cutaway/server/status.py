"""The server's state: its models, health and readiness, and metrics for Prometheus."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from cutaway.server.document import Answers, replies
from cutaway.server.http.errors import ApiError
from cutaway.server.models import models_of, service_of
from cutaway.server.service import Service
from cutaway.server.shared.plain_schemas import Health, ModelCard, ModelList, Ready

router = APIRouter(tags=["status"])

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
    each = [_model(one, name) for one in models_of(request).services for name in one.names.every]
    answer: ModelList = {
        "object": "list", "data": each, "has_more": False, "first_id": each[0]["id"],
        "last_id": each[-1]["id"],
    }  # fmt: skip
    return JSONResponse(answer)


@router.get("/v1/models/{name:path}", responses=replies(ModelCard, 404))
async def model(name: Name, request: Request) -> Response:
    """One of these names."""
    service = service_of(request, name)
    return JSONResponse(_model(service, service.names.named(name)))


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
    here = models_of(request)
    if here.draining or not here.alive:
        raise ApiError(503, "the server is stopping; use another one", code="stopping")
    answer: Ready = {"status": "ready"}
    return JSONResponse(answer)


@router.get("/metrics", responses=_METRICS)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' format."""
    page, content_type = models_of(request).metrics(request.headers.get("accept", ""))
    return Response(page, headers={"content-type": content_type})
