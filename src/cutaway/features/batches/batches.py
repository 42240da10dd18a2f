"""``/v1/batches``: requests of a file, answered while there is nothing else to do."""

from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.features.batches.files import folder_of, runner_of
from cutaway.features.batches.paging import Asked, page_of
from cutaway.features.batches.schemas import BatchList, BatchObject, Endpoint
from cutaway.server.body import Body, MetadataField, Unsupported, examples, optional
from cutaway.server.document import FIELDS, replies
from cutaway.server.http.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["batches"])

BatchId = Annotated[str, Path(description="of a batch", examples=["batch_example"])]


class BatchRequest(Body):
    """A file of requests to answer."""

    model_config = examples(
        {
            "input_file_id": "file-example",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
    )
    input_file_id: str = Field(description="of /v1/files")
    endpoint: Endpoint = Field(description="of all its requests")
    completion_window: Literal["24h"] = Field(description="batches do not expire here")
    metadata: MetadataField | None = optional("returned with the batch")
    unsupported: ClassVar[Unsupported] = {
        "output_expires_after": ((), "files do not expire here; delete them"),
    }


@router.post("/v1/batches", responses=replies(BatchObject, *FIELDS, 507))
async def create_batch(body: BatchRequest, request: Request) -> Response:
    """Answer the requests of a file, in the background."""
    runner = runner_of(request)
    runner.folder.file(body.input_file_id, "input_file_id")
    batch = runner.folder.add_batch(body.input_file_id, body.endpoint, body.metadata)
    runner.wake()
    return JSONResponse(batch)


@router.get("/v1/batches", responses=replies(BatchList, 400, 404))
async def list_batches(request: Request, query: Annotated[Asked, Query()]) -> Response:
    """The batches, the newest first."""
    return JSONResponse(page_of([*folder_of(request).batches.values()][::-1], query))


@router.get("/v1/batches/{batch_id}", responses=replies(BatchObject, 404))
async def one_batch(batch_id: BatchId, request: Request) -> Response:
    """A batch, and how far it is."""
    return JSONResponse(folder_of(request).batch(batch_id))


@router.post("/v1/batches/{batch_id}/cancel", responses=replies(BatchObject, 400, 404, 507))
async def cancel_batch(batch_id: BatchId, request: Request) -> Response:
    """End a batch early; what was answered stays."""
    runner = runner_of(request)
    batch = runner.folder.batch(batch_id)
    runner.cancel(batch)
    return JSONResponse(batch)
