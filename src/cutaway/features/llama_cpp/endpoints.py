"""``/infill``: what is between two texts, in llama-server's form."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cutaway.features.llama_cpp import schemas
from cutaway.features.llama_cpp.infill_answer import InfillAnswer
from cutaway.features.llama_cpp.infill_request import InfillRequest
from cutaway.features.llama_cpp.schemas import Infilling
from cutaway.server.answering import answer
from cutaway.server.document import WRITTEN, replies
from cutaway.server.http.strict_json import StrictRoute

SCHEMAS = (schemas,)
router = APIRouter(route_class=StrictRoute, tags=["text"])


@router.post("/infill", responses=replies(Infilling, *WRITTEN, events=Infilling, mark=False))
async def infill(body: InfillRequest, request: Request) -> Response:
    """Write what is between two texts, in llama-server's form."""
    return await answer(request, body, InfillAnswer)
