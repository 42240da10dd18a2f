"""The models, in Ollama's form: ``/api/tags``, ``show``, ``ps``, ``version``."""

import asyncio
from time import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from cutaway._version import __version__
from cutaway.api.async_model import AsyncModel
from cutaway.features.ollama import (
    OllamaDetails,
    OllamaModel,
    OllamaProcesses,
    OllamaRunning,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
)
from cutaway.features.ollama.endpoints import format_time
from cutaway.server.body import Body, StrictRoute, examples, optional
from cutaway.server.document import FIELD_ERRORS, replies
from cutaway.server.service import Service, models_of, service_of

router = APIRouter(route_class=StrictRoute, tags=["status"])

_OLLAMA = "0.12.11"
"""The release of Ollama whose API this is; some clients refuse an older release."""
_NEVER = "2318-01-01T00:00:00Z"
_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


class ShowRequest(Body):
    """A model by name."""

    model_config = examples({})
    model: str | None = optional("one of /api/tags; left out: the first")
    name: str | None = optional("the older name of model")
    verbose: bool | None = optional("ignored")
    system: str | None = optional("ignored")
    template: str | None = optional("ignored")
    options: dict[str, Any] | None = optional("ignored")


@router.get("/api/tags", responses=replies(OllamaTags))
async def tags(request: Request) -> Response:
    """The names that requests may use for a model, in Ollama's form."""
    models = [
        _model(service, name)
        for service in models_of(request).services
        for name in service.names.all
    ]
    answer: OllamaTags = {"models": models}
    return JSONResponse(answer)


@router.get("/api/ps", responses=replies(OllamaProcesses))
async def processes(request: Request) -> Response:
    """The models that are in memory."""
    services = models_of(request).services
    loaded = [s for s in services if s.slot is None or s.slot.state == "loaded"]
    answer: OllamaProcesses = {"models": [*map(_running, loaded)]}
    return JSONResponse(answer)


@router.get("/api/version", responses=replies(OllamaVersion))
async def version() -> Response:
    """Which release of Ollama has this API."""
    answer: OllamaVersion = {"version": _OLLAMA, "cutaway": __version__}
    return JSONResponse(answer)


@router.post("/api/show", responses=replies(OllamaShown, *FIELD_ERRORS))
async def show(body: ShowRequest, request: Request) -> Response:
    """What is known of the model, in Ollama's form."""
    service = service_of(request, body.model or body.name)
    name, llm = service.names.resolve(body.model or body.name), service.llm
    template = llm.model.template
    answer: OllamaShown = {
        "modelfile": _modelfile(service, name),
        "parameters": "",
        "template": template.source if template else "",
        "license": "",
        "details": _details(service, name),
        "model_info": _info(service),
        "capabilities": _capabilities(llm),
        "modified_at": format_time(service.created),
    }
    return JSONResponse(answer)


def _modelfile(service: Service, name: str) -> str:
    if service.names.adapter(name):
        return f"FROM {service.names.first}\nADAPTER {name}\n"
    return f"FROM {name}\n"


def _model(service: Service, name: str) -> OllamaModel:
    tagged, model = name if ":" in name else f"{name}:latest", service.names.model(name)
    return {
        "name": tagged, "model": tagged, "modified_at": format_time(service.created),
        "size": model.parts.nbytes, "digest": model.identity.weights,
        "details": _details(service, name),
    }  # fmt: skip


def _running(service: Service) -> OllamaRunning:
    model, slot = _model(service, service.names.first), service.slot
    size = slot.model.memory if slot else model["size"]
    expires = slot.expires if slot else None
    left = None if expires is None else expires - asyncio.get_running_loop().time()
    return {
        "name": model["name"], "model": model["model"], "size": size, "digest": model["digest"],
        "details": model["details"],
        "expires_at": _NEVER if left is None else format_time(time() + left),
        "size_vram": 0, "context_length": service.room,
    }  # fmt: skip


def _details(service: Service, name: str) -> OllamaDetails:
    parts = service.llm.model.parts
    size, unit = next(((s, u) for s, u in _UNITS if parts.parameters >= s), (1.0, ""))
    family = parts.config.architecture
    return {
        "parent_model": service.names.first if service.names.adapter(name) else "",
        "format": "gguf", "family": family, "families": [family],
        "parameter_size": f"{parts.parameters / size:.4g}{unit}",
        "quantization_level": parts.format,
    }  # fmt: skip


def _info(service: Service) -> dict[str, Any]:
    """Return facts about the model, by GGUF's names."""
    config, parts = service.llm.config, service.llm.model.parts
    name = config.architecture
    return {
        "general.architecture": name,
        "general.parameter_count": parts.parameters,
        f"{name}.context_length": service.room,
        f"{name}.embedding_length": config.hidden,
        f"{name}.block_count": config.layers,
        f"{name}.attention.head_count": config.heads,
        f"{name}.attention.head_count_kv": config.kv_heads,
    }


def _capabilities(llm: AsyncModel) -> list[Any]:
    writes = llm.graph.has_head and llm.config.is_causal
    capabilities = {
        "completion": llm.graph.has_head, "tools": writes and _knows_tools(llm),
        "insert": writes and llm.tokenizer.fim is not None,
        "thinking": writes and llm.model.thinking is not None, "embedding": True,
    }  # fmt: skip
    return [name for name, has in capabilities.items() if has]


def _knows_tools(llm: AsyncModel) -> bool:
    """Whether the model takes tools: any template will do, as the first message can list tools."""
    return llm.model.template is not None
