"""``/v1/messages``: texts in Anthropic's form."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from cutaway.features.anthropic import schemas
from cutaway.features.anthropic.answers import MessageAnswer
from cutaway.features.anthropic.requests import CountRequest, MessagesRequest
from cutaway.features.anthropic.schemas import InputTokens, MessageAnswered, MessageEvent
from cutaway.server.answering import answer
from cutaway.server.document import FIELDS, WRITTEN, replies
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.errors import MessagesError
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of

SCHEMAS = (schemas,)
router = APIRouter(route_class=StrictRoute, tags=["text"])

_MESSAGE = replies(MessageAnswered, *WRITTEN, events=MessageEvent, mark=False, error=MessagesError)


@router.post("/v1/messages", responses=_MESSAGE)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, in Anthropic's form."""
    return await answer(request, body, MessageAnswer)


@router.post("/v1/messages/count_tokens", responses=replies(InputTokens, *FIELDS))
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """How many tokens a conversation has, in Anthropic's form."""
    service = service_of(request, body.model)
    ids = await cancel_on_disconnect(request.receive, body.ids(service))
    counted: InputTokens = {"input_tokens": len(ids)}
    return JSONResponse(counted)
