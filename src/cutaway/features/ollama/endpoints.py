"""``/api/chat`` and ``/api/generate``: texts in Ollama's form."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from cutaway.features.ollama import schemas
from cutaway.features.ollama.answers import ChatAnswer, GeneratedAnswer, nothing_asked
from cutaway.features.ollama.keep_alive import keep_alive_setter, seconds_of
from cutaway.features.ollama.requests import OllamaChatRequest, OllamaGenerateRequest
from cutaway.features.ollama.schemas import OllamaChat, OllamaGenerated
from cutaway.server.answering import answer
from cutaway.server.document import WRITTEN, replies
from cutaway.server.events import Events
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.job import TextJob
from cutaway.server.models import service_of
from cutaway.server.service import Service

SCHEMAS = (schemas,)
router = APIRouter(route_class=StrictRoute, tags=["text"])

_CHAT = replies(OllamaChat, *WRITTEN, events=OllamaChat, lines=True)
_GENERATED = replies(OllamaGenerated, *WRITTEN, events=OllamaGenerated, lines=True)


@router.post("/api/chat", responses=_CHAT)
async def ollama_chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, in Ollama's form."""
    return await _ollama(body, request, ChatAnswer)


@router.post("/api/generate", responses=_GENERATED)
async def ollama_generate(body: OllamaGenerateRequest, request: Request) -> Response:
    """Answer a prompt, or continue a text, in Ollama's form."""
    return await _ollama(body, request, GeneratedAnswer)


async def _ollama(
    body: OllamaChatRequest | OllamaGenerateRequest,
    request: Request,
    make: Callable[[Service, Any, TextJob, str], Events],
) -> Response:
    service = service_of(request, body.model)
    keep = keep_alive_setter(service.slot, body.keep_alive)
    if not body.asks_nothing:
        return await answer(request, body, make, keep)
    slot, reason = service.slot, "load"
    if slot and body.keep_alive is not None and seconds_of(body.keep_alive) == 0:
        reason = "unload"
        keep()
    elif slot:
        await cancel_on_disconnect(request.receive, slot.use())
        keep()
        slot.done()
    return JSONResponse(nothing_asked(body, service, reason))
