"""OpenAI's API: the endpoints that generate text, whole or streamed."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from cutaway.server.answering import answer
from cutaway.server.body import StrictRoute
from cutaway.server.document import GENERATION_ERRORS, replies
from cutaway.server.openai.chat import ChatChoices, ChatRequest
from cutaway.server.openai.completions import CompletionChoices, CompletionRequest
from cutaway.server.openai.response_schemas import Response as ResponseShape
from cutaway.server.openai.response_schemas import ResponseDeleted, ResponseEvent
from cutaway.server.openai.responses import ResponsesAnswer
from cutaway.server.openai.responses_request import KeptResponses, ResponsesRequest
from cutaway.server.shared import ChatChunk, ChatCompletion, CompletionChunk, TextCompletion

router = APIRouter(route_class=StrictRoute, tags=["text"])


@router.post(
    "/v1/completions", responses=replies(TextCompletion, *GENERATION_ERRORS, events=CompletionChunk)
)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue a text, or each of a list of texts."""
    return await answer(request, body, CompletionChoices)


@router.post(
    "/v1/chat/completions", responses=replies(ChatCompletion, *GENERATION_ERRORS, events=ChatChunk)
)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    return await answer(request, body, ChatChoices)


@router.post(
    "/v1/responses",
    responses=replies(ResponseShape, *GENERATION_ERRORS, events=ResponseEvent, mark=False),
)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answer a text or a conversation, or continue from an answer that is kept."""
    kept_responses: KeptResponses = request.app.state.responses
    await asyncio.to_thread(
        body.follow, kept_responses
    )  # a long conversation takes a while to read
    return await answer(request, body, partial(ResponsesAnswer, kept_responses=kept_responses))


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
