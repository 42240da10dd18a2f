"""The endpoints that generate text, whole or streamed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from cutaway.errors import InputError
from cutaway.server.anthropic.answers import MessageAnswer
from cutaway.server.anthropic.requests import CountRequest, MessagesRequest
from cutaway.server.anthropic.schemas import InputTokens, MessageAnswered, MessageEvent
from cutaway.server.document import FIELDS, WRITTEN, replies
from cutaway.server.events import Events, EventStream, dumps
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.errors import MessagesError
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.job import TextJob
from cutaway.server.llama_cpp.infill_answer import InfillAnswer
from cutaway.server.llama_cpp.infill_request import InfillRequest
from cutaway.server.llama_cpp.schemas import Infilling
from cutaway.server.models import admit, answer_id, service_of
from cutaway.server.ollama import requests as ollama
from cutaway.server.ollama.answers import ChatAnswer, GeneratedAnswer, nothing_asked
from cutaway.server.ollama.keep_alive import keep_alive_setter, seconds_of
from cutaway.server.ollama.schemas import OllamaChat, OllamaGenerated
from cutaway.server.openai.chat import ChatChoices, ChatRequest
from cutaway.server.openai.completions import CompletionChoices, CompletionRequest
from cutaway.server.openai.kept_responses import KeptResponses
from cutaway.server.openai.response_schemas import Response as ResponseShape
from cutaway.server.openai.response_schemas import ResponseDeleted, ResponseEvent
from cutaway.server.openai.responses import ResponsesAnswer
from cutaway.server.openai.responses_request import ResponsesRequest
from cutaway.server.service import Service
from cutaway.server.shared.chat_schemas import ChatChunk, ChatCompletion
from cutaway.server.shared.schemas import CompletionChunk, TextCompletion

T = TypeVar("T")

OllamaRequest = ollama.OllamaChatRequest | ollama.OllamaGenerateRequest
TextRequest = (
    CompletionRequest | ChatRequest | ResponsesRequest | MessagesRequest | OllamaRequest
    | InfillRequest
)  # fmt: skip


router = APIRouter(route_class=StrictRoute, tags=["text"])


@router.post("/v1/completions", responses=replies(TextCompletion, *WRITTEN, events=CompletionChunk))
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue a text, or each of a list of texts."""
    return await _answer(request, body, CompletionChoices)


@router.post("/v1/chat/completions", responses=replies(ChatCompletion, *WRITTEN, events=ChatChunk))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    return await _answer(request, body, ChatChoices)


@router.post(
    "/v1/responses", responses=replies(ResponseShape, *WRITTEN, events=ResponseEvent, mark=False)
)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answer a text or a conversation, or continue from an answer that is kept."""
    kept: KeptResponses = request.app.state.responses
    await asyncio.to_thread(body.follow, kept)  # a long conversation takes a while to read
    return await _answer(request, body, partial(ResponsesAnswer, kept=kept))


ResponseId = Annotated[
    str, Path(description="of an answer that is kept", examples=["resp_example"])
]


@router.get("/v1/responses/{response_id}", responses=replies(ResponseShape, 404))
async def kept_response(response_id: ResponseId, request: Request) -> Response:
    """An answer that is kept, as it was given."""
    document = request.app.state.responses.document(response_id)
    return Response(document, media_type="application/json")


@router.delete("/v1/responses/{response_id}", responses=replies(ResponseDeleted, 404))
async def delete_response(response_id: ResponseId, request: Request) -> Response:
    """Forget an answer."""
    request.app.state.responses.delete(response_id)
    answer: ResponseDeleted = {"id": response_id, "object": "response", "deleted": True}
    return JSONResponse(answer)


_MESSAGE = replies(MessageAnswered, *WRITTEN, events=MessageEvent, mark=False, error=MessagesError)


@router.post("/v1/messages", responses=_MESSAGE)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, in Anthropic's form."""
    return await _answer(request, body, MessageAnswer)


@router.post("/v1/messages/count_tokens", responses=replies(InputTokens, *FIELDS))
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """How many tokens a conversation has, in Anthropic's form."""
    service = service_of(request, body.model)
    ids = await cancel_on_disconnect(request.receive, body.ids(service))
    counted: InputTokens = {"input_tokens": len(ids)}
    return JSONResponse(counted)


_CHAT = replies(OllamaChat, *WRITTEN, events=OllamaChat, lines=True)
_GENERATED = replies(OllamaGenerated, *WRITTEN, events=OllamaGenerated, lines=True)


@router.post("/api/chat", responses=_CHAT)
async def ollama_chat(body: ollama.OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, in Ollama's form."""
    return await _ollama(body, request, ChatAnswer)


@router.post("/api/generate", responses=_GENERATED)
async def ollama_generate(body: ollama.OllamaGenerateRequest, request: Request) -> Response:
    """Answer a prompt, or continue a text, in Ollama's form."""
    return await _ollama(body, request, GeneratedAnswer)


@router.post("/infill", responses=replies(Infilling, *WRITTEN, events=Infilling, mark=False))
async def infill(body: InfillRequest, request: Request) -> Response:
    """Write what is between two texts, in llama-server's form."""
    return await _answer(request, body, InfillAnswer)


async def _ollama(
    body: OllamaRequest,
    request: Request,
    make: Callable[[Service, Any, TextJob, str], Events],
) -> Response:
    service = service_of(request, body.model)
    keep = keep_alive_setter(service.slot, body.keep_alive)
    if not body.asks_nothing:
        return await _answer(request, body, make, keep)
    slot, reason = service.slot, "load"
    if slot and body.keep_alive is not None and seconds_of(body.keep_alive) == 0:
        reason = "unload"
        keep()
    elif slot:
        await cancel_on_disconnect(request.receive, slot.use())
        keep()
        slot.done()
    return JSONResponse(nothing_asked(body, service, reason))


async def _answer(
    request: Request,
    body: TextRequest,
    make: Callable[[Service, Any, TextJob, str], Events],
    begun: Callable[[], object] = lambda: None,
) -> Response:
    """Run a request and answer it; when the client disconnects, its sequences are aborted.

    begun: called when its texts are in the queue
    """
    service, access = admit(request, body.model, body.user, body.said)
    id = answer_id(request)

    async def start() -> TextJob:
        return await service.start(
            *await body.read(service), access, adapter=service.names.adapter(body.model),
            fill=body.FILL, stream=bool(body.stream), trace=body.trace,
        )  # fmt: skip

    job = await cancel_on_disconnect(request.receive, _named(body, start()))
    begun()
    if kept := request.app.state.receipts:
        job.closed = partial(kept.keep, id)
    events = make(service, body, job, id)
    if body.stream:
        return EventStream(job, events, service.keep_alive)
    with job:
        await cancel_on_disconnect(request.receive, job.finish())
    # A long one may take a second, while other requests run.
    whole = await asyncio.to_thread(lambda: dumps(events.whole()))
    return Response(whole, media_type="application/json")


async def _named(body: TextRequest, work: Awaitable[T]) -> T:
    """The result; an InputError has the name that the field has in this request."""
    try:
        return await work
    except InputError as error:
        word = str(error).split(maxsplit=1)[0].rstrip(":")
        name = body.called().get(word, word)
        raise type(error)(str(error) if name == word else f"{name}: {error}") from error
