"""``/models/load`` and ``/models/unload``: models of ``--memory`` come and go by request."""

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.features.llama_cpp.schemas import Done
from cutaway.server.body import Body, examples
from cutaway.server.document import FIELDS, replies
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.http.errors import ApiError
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of

router = APIRouter(route_class=StrictRoute, tags=["status"])


class LoadRequest(Body):
    """A model."""

    model_config = examples({"model": "smollm2"})
    model: str = Field(description="one of /v1/models")


@router.post("/models/load", responses=replies(Done, *FIELDS, 429, 503))
async def load(body: LoadRequest, request: Request) -> Response:
    """Load a model; the answer comes when it is loaded."""
    service = service_of(request, body.model)
    service.check_open()
    if slot := service.slot:
        await cancel_on_disconnect(request.receive, slot.use())
        slot.keep_as_usual()
        slot.done()
    return _done()


@router.post("/models/unload", responses=replies(Done, *FIELDS))
async def unload(body: LoadRequest, request: Request) -> Response:
    """Unload a model, once the texts that it writes have ended."""
    slot = service_of(request, body.model).slot
    if slot is None:
        raise ApiError(
            400, f"model: {body.model[:100]!r} stays loaded; start the server with --unload-after "
            "or --memory for models that come and go", param="model", code="stays_loaded",
        )  # fmt: skip
    slot.keep(0)
    return _done()


def _done() -> Response:
    answer: Done = {"success": True}
    return JSONResponse(answer)
