"""``/v1/files``: the inputs and outputs of batches."""

import asyncio
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Path, Query, Request
from pydantic import Field
from starlette.responses import FileResponse, JSONResponse, Response

from cutaway.features.batches import schemas
from cutaway.features.batches.folder import BatchFolder
from cutaway.features.batches.paging import Asked, page_of
from cutaway.features.batches.runner import BatchRunner
from cutaway.features.batches.schemas import FileDeleted, FileList, FileObject
from cutaway.server.document import Answers, replies
from cutaway.server.http.errors import ApiError
from cutaway.server.http.multipart import Part, read_form
from cutaway.server.http.own_request import ask
from cutaway.server.http.settings import ServerSettings
from cutaway.server.http.strict_json import StrictRoute

SCHEMAS = (schemas,)
router = APIRouter(route_class=StrictRoute, tags=["batches"])

FileId = Annotated[str, Path(description="of a file", examples=["file-example"])]
_FIELDS = ("file", "purpose")
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {
                            "type": "string", "contentMediaType": "application/octet-stream",
                            "description": "lines of JSON, each a request",
                        },
                        "purpose": {"const": "batch"},
                    },
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                }
            }
        },
    }
}  # fmt: skip
_BYTES: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {}}}}
_CONTENT: Answers = replies(FileObject, 404) | {200: {"description": "Its bytes.", **_BYTES}}


def install(app: FastAPI, settings: ServerSettings) -> BatchRunner | None:
    """What answers batches, where the settings name a folder for them."""
    runner: BatchRunner | None = None
    if settings.batches is not None:
        folder = BatchFolder(pathlib.Path(settings.batches).expanduser())
        runner = BatchRunner(
            folder, lambda path, id, body: ask(app, path, id, body, key=settings.api_key)
        )
    app.state.batches = runner
    return runner


class FilesAsked(Asked):
    """Which files."""

    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = Field("desc", description="by age; desc: the newest first")
    purpose: Literal["batch", "batch_output"] | None = None


def runner_of(request: Request) -> BatchRunner:
    """ApiError where the server has no folder for batches."""
    runner: BatchRunner | None = request.app.state.batches
    if runner is None:
        raise ApiError(
            404, "this server keeps no files: start it with --batches FOLDER", code="no_batches"
        )
    return runner


def folder_of(request: Request) -> BatchFolder:
    """As ``runner_of``."""
    return runner_of(request).folder


@router.post("/v1/files", responses=replies(FileObject, 400, 404, 415, 507), openapi_extra=_FORM)
async def upload_file(request: Request) -> Response:
    """Keep a file of requests for a batch."""
    folder = folder_of(request)
    _check_origin(request)
    kind = request.headers.get("content-type", "")
    form = await asyncio.to_thread(read_form, kind, await request.body())
    file = _checked(form)
    name = (file.filename or "input.jsonl").rpartition("/")[2][:255]
    return JSONResponse(await asyncio.to_thread(folder.add_file, name, file.content))


@router.get("/v1/files", responses=replies(FileList, 400, 404))
async def list_files(request: Request, query: Annotated[FilesAsked, Query()]) -> Response:
    """The files that are kept."""
    files = [*folder_of(request).files.values()]
    wanted = [one for one in files if query.purpose in (None, one["purpose"])]
    return JSONResponse(page_of(wanted if query.order == "asc" else wanted[::-1], query))


@router.get("/v1/files/{file_id}/content", responses=_CONTENT)
async def file_content(file_id: FileId, request: Request) -> Response:
    """A file's bytes."""
    folder = folder_of(request)
    folder.file(file_id)
    return FileResponse(folder.content(file_id), media_type="application/octet-stream")


@router.get("/v1/files/{file_id}", responses=replies(FileObject, 404))
async def one_file(file_id: FileId, request: Request) -> Response:
    """What is known of a file."""
    return JSONResponse(folder_of(request).file(file_id))


@router.delete("/v1/files/{file_id}", responses=replies(FileDeleted, 400, 404))
async def delete_file(file_id: FileId, request: Request) -> Response:
    """Forget a file."""
    folder_of(request).delete_file(file_id)
    answer: FileDeleted = {"id": file_id, "object": "file", "deleted": True}
    return JSONResponse(answer)


def _checked(form: Mapping[str, Part]) -> Part:
    """The file of a form. ApiError that names the field."""
    for name in form:
        if name not in _FIELDS:
            said = "files do not expire here" if name.startswith("expires") else "unknown field"
            raise ApiError(400, f"{name[:40]}: {said}; leave it out", param=name[:40])
    for name in _FIELDS:
        if name not in form:
            raise ApiError(400, f"{name} is missing", param=name)
    purpose = form["purpose"].content
    if purpose != b"batch":
        shown = purpose[:40].decode("utf-8", "replace")
        raise ApiError(400, f"purpose must be batch, not {shown!r}", param="purpose")
    if form["file"].filename is None:
        raise ApiError(400, "file must be a file, with a filename", param="file")
    return form["file"]


def _check_origin(request: Request) -> None:
    """ApiError for a page of another origin: forms, unlike JSON, are sent without a preflight."""
    origin, allowed = request.headers.get("origin"), request.app.state.settings.cors
    if origin is None or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise ApiError(400, "pages of other origins need --cors ORIGIN", code="other_origin")
