"""The ASGI application: endpoints and middleware around one model or several."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from time import time
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope

from cutaway import registry
from cutaway._version import __version__
from cutaway.api.async_model import AsyncModel
from cutaway.server import openai, shared
from cutaway.server.body import bodies
from cutaway.server.document import Documented
from cutaway.server.http import errors, refusals
from cutaway.server.http.guard import OPEN_PATHS, Guard
from cutaway.server.http.log import access
from cutaway.server.http.metrics import Metrics
from cutaway.server.http.settings import ServerSettings
from cutaway.server.job import AccessRecord
from cutaway.server.on_demand import OnDemandLLM
from cutaway.server.openai import response_schemas
from cutaway.server.openai.responses_request import KeptResponses
from cutaway.server.routes import embeddings, fill, page, status, tokens
from cutaway.server.scores import decisions, relevance
from cutaway.server.scores import schemas as score_schemas
from cutaway.server.service import Names, ServedModels, Service, names_of
from cutaway.server.shared import plain_schemas

_ROUTERS = (openai, embeddings, relevance, decisions, fill, tokens, status, page)
_SCHEMAS = (shared, response_schemas, plain_schemas, score_schemas, errors)

MODULES = (*_ROUTERS, *registry.endpoints())
"""The modules with endpoints: the core's, then those of the features in the registry."""
ROUTERS = [module.router for module in MODULES]
SCHEMAS = (*_SCHEMAS, *(more for module in MODULES for more in getattr(module, "SCHEMAS", ())))
PAGES = {name: path for m in MODULES for name, path in getattr(m, "PAGES", {}).items()}
"""Pages for people beside the one at /: name -> path."""
_OPEN_PATHS = [path for module in MODULES for path in getattr(module, "OPEN_PATHS", ())]


def create_app(
    llm: AsyncModel | Mapping[str, AsyncModel], settings: ServerSettings | None = None
) -> FastAPI:
    """Return an ASGI application that serves one model, or several by name.

    The application closes the models when it ends. Its endpoints share ``state.models``.
    """
    settings = settings or ServerSettings()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for service in models.services:
                await stack.enter_async_context(service.llm)
                await asyncio.to_thread(_prepare, service)
            stack.callback(app.state.bodies.close)
            for context in reversed(contexts):  # the first in the list ends first
                await stack.enter_async_context(context)
            yield

    app = Documented(
        settings, SCHEMAS, title="cutaway", version=__version__, lifespan=lifespan,
        redoc_url=None, docs_url=None, summary="Text from a transformer, one token at a time",
        servers=[{"url": settings.root_path}] if settings.root_path else None,
    )  # fmt: skip
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", page.Static())
    app.state.models = models = _models(llm, settings, app)
    app.state.responses = KeptResponses(settings.keep_responses)
    app.state.settings = settings
    app.state.bodies = bodies()
    app.state.keep = None  # set by a feature: a function of an answer's id and texts
    installed = (module.install(app, settings) for module in MODULES if hasattr(module, "install"))
    contexts = [context for context in installed if context is not None]
    refusals.install(app, retry_after=lambda: models.retry_after)
    _add_middleware(app, settings, models)
    return app


def _add_middleware(app: FastAPI, settings: ServerSettings, models: ServedModels) -> None:
    app.add_middleware(
        Guard, open_paths=(*OPEN_PATHS, "/static/", *_OPEN_PATHS), api_key=settings.api_key,
        allow_hosts=settings.allow_hosts, max_body=settings.max_body, root_path=settings.root_path,
        read_timeout=settings.read_timeout,
        write_timeout=settings.write_timeout, done=_done(models),
    )  # fmt: skip
    if settings.cors:  # outermost, so that pages can read error responses, too
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors, allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"], expose_headers=["x-request-id", "retry-after"],
        )  # fmt: skip


def _prepare(service: Service) -> None:
    """Hash the model's file and prepare grammars now, so that no request waits for this."""
    model = service.llm.model
    _ = model.identity  # reads the whole file, once
    if model.graph.has_head:  # a model without a head writes no text
        model.grammars.prepare()


def _models(
    llm: AsyncModel | Mapping[str, AsyncModel], settings: ServerSettings, app: FastAPI
) -> ServedModels:
    llms = llm if isinstance(llm, Mapping) else {"": llm}
    pairs = zip(llms.values(), names_of(llms, settings.names), strict=True)
    return ServedModels([_service(model, names, settings, app) for model, names in pairs])


def _service(llm: AsyncModel, names: Names, settings: ServerSettings, app: FastAPI) -> Service:
    routes = [route for part in (app, *ROUTERS) for route in part.routes]  # kept apart by FastAPI
    paths = {route.path for route in routes if hasattr(route, "path")}
    loaded = (lambda: llm.slot.state == "loaded") if isinstance(llm, OnDemandLLM) else None
    metrics = Metrics(
        llm.state, lambda: llm.model.computer, replicas=lambda: llm.replicas, version=__version__,
        model=names.first, paths=paths, loaded=loaded,
    )  # fmt: skip
    return Service(
        llm, names, metrics, created=int(time()), keep_alive=settings.keep_alive,
        log_prompts=settings.log_prompts, allow_interventions=settings.allow_interventions,
    )  # fmt: skip


def _done(models: ServedModels) -> Callable[[Scope, int, float], None]:
    """Return a function that counts and logs a request that has ended."""

    def done(scope: Scope, status: int, seconds: float) -> None:
        route, record = scope.get("route"), scope["state"].get("access")
        models.first.metrics.count_http(
            getattr(route, "path", None), scope["method"], status, seconds
        )
        client = scope.get("client")
        access(
            id=scope["state"]["request_id"], client=client and client[0], method=scope["method"],
            path=scope["path"], status=status, seconds=seconds, **_log_fields(record),
        )  # fmt: skip

    return done


def _log_fields(access: AccessRecord | None) -> dict[str, Any]:
    if access is None:
        return {}
    texts = access.texts
    queued = [text.queue_s for text in texts if text.queue_s is not None]
    first = [text.ttft_s for text in texts if text.ttft_s is not None]
    return {
        "model": access.model,
        "user": access.user,
        "prompt": access.prompt,
        "prompt_tokens": sum(text.prompt_tokens for text in texts),
        "cached_tokens": sum(text.cached_tokens or 0 for text in texts),
        "completion_tokens": sum(text.completion_tokens for text in texts),
        "replica": access.route and access.route.reasons[-1],
        "resumed": (access.route and access.route.resumed) or None,
        "finish_reasons": [text.finish_reason for text in texts],
        "queue_s": max(queued, default=None),
        "ttft_s": min(first, default=None),
        "load_s": access.load_s or None,
    }
