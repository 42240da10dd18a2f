"""The page at ``/``: its files with their security policy, and the facts that it requests first."""

import gzip
from collections.abc import Mapping
from functools import cache
from mimetypes import guess_type
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from cutaway.engine.canvas import RULES, STARTS
from cutaway.methods.reranking import method_of
from cutaway.requests.base import usual_rule
from cutaway.requests.recording import page_about
from cutaway.server.body import StrictRoute
from cutaway.server.service import Service, models_of, service_of
from cutaway.trace.page import catalogue
from cutaway.trace.web import index
from cutaway.trace.web.bundle import served_files

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

POLICY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
REVALIDATED = {"cache-control": "no-cache"}
_FOR_GOOD = {"cache-control": "public, max-age=31536000, immutable"}


class PageFile(NamedTuple):
    """A file or document of a page, and its gzipped form, which is made once."""

    whole: bytes
    packed: bytes
    kind: str
    caching: Mapping[str, str]

    def answer(self, headers: Mapping[str, str]) -> Response:
        """Answer a request with these headers."""
        answer_headers = {**self.caching, "vary": "accept-encoding"}
        if "gzip" not in headers.get("accept-encoding", ""):
            return Response(self.whole, media_type=self.kind, headers=answer_headers)
        answer_headers["content-encoding"] = "gzip"
        return Response(self.packed, media_type=self.kind, headers=answer_headers)


@cache
def _document() -> PageFile:
    text = index(catalogue(), served_files()).encode()
    return PageFile(text, gzip.compress(text), "text/html", REVALIDATED)


@cache
def _files() -> dict[str, PageFile]:
    """The page's files, by their addresses below /static/."""
    folder, contents = served_files()
    return {
        f"{folder.removeprefix('static/')}/{name}": PageFile(
            content, gzip.compress(content), guess_type(name)[0] or "application/gzip", _FOR_GOOD
        )
        for name, content in contents.items()
    }


@router.get("/")
async def page(request: Request) -> Response:
    """The page; or for clients other than browsers, the text that Ollama's clients look for.

    With the query "modules" the page fetches each of its modules: for work on them.
    """
    if "text/html" not in request.headers.get("accept", "text/html"):
        return Response("Ollama is running", media_type="text/plain")
    if "modules" in request.query_params:
        answer = Response(index(catalogue()), media_type="text/html", headers=REVALIDATED)
    else:
        answer = _document().answer(request.headers)
    answer.headers.update(POLICY)
    return answer


@router.get("/page/about")
async def page_facts(request: Request, model: str | None = None) -> Response:
    """The model that is served, or one of several, and the defaults of the page's requests."""
    service, services = service_of(request, model), models_of(request).services
    weights, llm = service.names.model(model).identity.weights, service.llm
    canvas = _canvas(service)
    page_request = {"denoise": True} if canvas and not canvas["usual"] else {}
    defaults = llm.parse(page_request).settings(0)
    answer = page_about(
        service.names.resolve(model), weights, service.room, llm.config.attention, defaults
    )
    answer |= {
        "canvas": canvas,
        "writes": _can_write(service),
        "near": _comparison(service),
        "chat": llm.template is not None,
    }
    models = [n for served in services for n in (served.names.first, *served.llm.model.adapters)]
    if len(models) > 1:
        answer["models"] = models
    return JSONResponse(answer)


def _canvas(service: Service) -> dict[str, Any] | None:
    """Return whether a diffusion model writes in blocks, whether it denoises by default, its rule.

    The rule is the model's own, and how it uses luck; "choices" are the settings with which it can
    write. None for a model that is not a diffusion model.
    """
    llm, attention = service.llm, service.llm.config.attention
    reveals_masks = llm.config.noise is None and llm.tokenizer.mask_id is not None
    is_diffusion = reveals_masks or llm.config.noise is not None
    if llm.config.is_causal or not is_diffusion or not llm.graph.has_head:
        return None
    starts = [start for start in STARTS if reveals_masks or start == "noise"]
    usual = usual_rule(llm.config) or {"rule": "confidence"}
    return {
        "blocks": isinstance(attention, int),
        "usual": llm.parse({}).denoise is not None,
        "rule": {"rule": usual["rule"], "noise": RULES[usual["rule"]].noise},
        "choices": {
            "rule": [name for name, rule in RULES.items() if rule.start in starts],
            "start": starts,
        },
    }


def _can_write(service: Service) -> bool:
    """Whether the model can write: it predicts next tokens, or denoises masked ones."""
    has_head = service.llm.graph.has_head
    return has_head and (service.llm.config.is_causal or _canvas(service) is not None)


def _comparison(service: Service) -> str | None:
    """Return the model's own method to compare texts; None if it answers a question about them."""
    method = method_of(service.llm)
    return None if method == "answers" else method


class Static(StaticFiles):
    """The page's files, and those that they are made of, with the page's security policy."""

    def __init__(self) -> None:
        super().__init__(packages=[("cutaway.trace", "web")])

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer with a file."""
        file = _files().get(path) if scope["method"] in ("GET", "HEAD") else None
        if file:
            return file.answer(Headers(scope=scope))
        answer = await super().get_response(path, scope)
        answer.headers.update(REVALIDATED)
        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a file."""

        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                policy = [(k.encode(), v.encode()) for k, v in POLICY.items()]
                message["headers"] = [*message["headers"], *policy]
            await send(message)

        await super().__call__(scope, receive, with_policy)
