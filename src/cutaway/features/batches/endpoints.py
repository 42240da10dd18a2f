"""``/v1/files`` and ``/v1/batches``: files of requests, answered after all other requests.

Knows the forms and lists of OpenAI's API; the folder and the runner know the rest.
"""

import asyncio
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import FileResponse, JSONResponse, Response

from cutaway.features import batches
from cutaway.features.batches import (
    BatchList,
    BatchObject,
    Endpoint,
    FileDeleted,
    FileList,
    FileObject,
)
from cutaway.features.batches.folder import BatchFolder
from cutaway.features.batches.runner import BatchRunner, ask
from cutaway.server.body import Body, MetadataField, StrictRoute, Unsupported, examples, optional
from cutaway.server.document import FIELD_ERRORS, Answers, replies
from cutaway.server.http.errors import ApiError
from cutaway.server.http.settings import ServerSettings


class Asked(BaseModel):
    """A page of a list."""

    model_config = ConfigDict(extra="forbid")
    after: str | None = optional("the id before the first of the page")
    limit: int = Field(20, ge=1, le=100)


def page_of(objects: Sequence[Any], query: Asked) -> dict[str, Any]:
    """One page of objects that have ids. ApiError if no object has the id ``after``."""
    ids = [item["id"] for item in objects]
    if query.after is not None and query.after not in ids:
        raise ApiError(404, f"after: there is no {query.after[:100]!r} here", param="after")
    start = 0 if query.after is None else ids.index(query.after) + 1
    page = objects[start : start + query.limit]
    return {
        "object": "list", "data": page,
        "first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(objects),
    }  # fmt: skip


# -- bodies of multipart/form-data (RFC 7578): a file and a few fields, each once --------------


_MOST_PARTS = 32
_MOST_HEAD = 8192  # bytes of a part's headers
_OPTION = re.compile(r';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;]*))', re.DOTALL)


class Part(NamedTuple):
    """A field of a form. filename: None for a field that is not a file."""

    filename: str | None
    content: bytes


def read_form(content_type: str, body: bytes) -> dict[str, Part]:
    """Return the fields by name. ApiError 415 for another type, 400 for a malformed body."""
    kind, options = _header_options(content_type)
    if kind != "multipart/form-data":
        raise ApiError(
            415, "the body must be a form with a file; send it as multipart/form-data",
            code="unsupported_media_type",
        )  # fmt: skip
    boundary = options.get("boundary", "").encode("utf-8", "replace")
    if not boundary:
        raise _broken_form("its Content-Type names no boundary")
    # Splitting stops at the first part too many.
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary, _MOST_PARTS + 2)
    if len(parts) > _MOST_PARTS + 1:
        raise _broken_form(f"it has more than {_MOST_PARTS} parts")
    if first.strip() or not parts or parts.pop().strip() != b"--":
        raise _broken_form("its parts are not between lines of its boundary")
    form = dict[str, Part]()
    for text in parts:
        name, part = _part_of_form(text)
        if name in form:
            raise ApiError(400, f"{name}: there are two of it; give one", param=name)
        form[name] = part
    return form


def _part_of_form(text: bytes) -> tuple[str, Part]:
    head, empty, content = text.partition(b"\r\n\r\n")
    if not empty:
        raise _broken_form("a part has no empty line after its headers")
    if len(head) > _MOST_HEAD:
        raise _broken_form(
            f"the headers of a part have {len(head)} bytes; at most {_MOST_HEAD} are read"
        )
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            kind, options = _header_options(value)
            if kind == "form-data" and "name" in options:
                return options["name"], Part(options.get("filename"), content)
    raise _broken_form("a part has no Content-Disposition: form-data with a name")


def _header_options(value: str) -> tuple[str, dict[str, str]]:
    """Return a header's value and its options; an option of RFC 2231 keeps its name ``filename*``.

    Parsing with ``email.message`` would take quadratic time.
    """
    kind, _, _ = value.partition(";")
    options = {
        name.lower(): bare.strip() if quoted is None else re.sub(r'\\(["\\])', r"\1", quoted)
        for name, quoted, bare in (option.groups() for option in _OPTION.finditer(value))
    }
    return kind.strip().lower(), options


def _broken_form(fault: str) -> ApiError:
    return ApiError(400, f"the body is not multipart/form-data: {fault}", code="invalid_form")


# -- /v1/files ---------------------------------------------------------------------------------


SCHEMAS = (batches,)
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
    """Make the runner of batches; None if the settings name no folder for batches."""
    runner: BatchRunner | None = None
    if settings.batches is not None:
        folder = BatchFolder(pathlib.Path(settings.batches).expanduser())
        runner = BatchRunner(
            folder, lambda path, id, body: ask(app, path, id, body, key=settings.api_key)
        )
    app.state.batches = runner
    return runner


class FilesAsked(Asked):
    """Which files to list."""

    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = Field("desc", description="by age; desc: the newest first")
    purpose: Literal["batch", "batch_output"] | None = None


def runner_of(request: Request) -> BatchRunner:
    """Return the runner of batches. ApiError if the server has no folder for batches."""
    runner: BatchRunner | None = request.app.state.batches
    if runner is None:
        raise ApiError(
            404, "this server keeps no files: start it with --batches FOLDER", code="no_batches"
        )
    return runner


def folder_of(request: Request) -> BatchFolder:
    """Return the folder of batches. ApiError if the server has none."""
    return runner_of(request).folder


@router.post("/v1/files", responses=replies(FileObject, 400, 404, 415, 507), openapi_extra=_FORM)
async def upload_file(request: Request) -> Response:
    """Keep a file of requests for a batch."""
    folder = folder_of(request)
    _check_origin(request)
    kind = request.headers.get("content-type", "")
    form = await asyncio.to_thread(read_form, kind, await request.body())
    file = _read_file_part(form)
    name = (file.filename or "input.jsonl").rpartition("/")[2][:255]
    return JSONResponse(await asyncio.to_thread(folder.add_file, name, file.content))


@router.get("/v1/files", responses=replies(FileList, 400, 404))
async def list_files(request: Request, query: Annotated[FilesAsked, Query()]) -> Response:
    """The files that are kept."""
    files = [*folder_of(request).files.values()]
    files_of_purpose = [file for file in files if query.purpose in (None, file["purpose"])]
    return JSONResponse(
        page_of(files_of_purpose if query.order == "asc" else files_of_purpose[::-1], query)
    )


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


def _read_file_part(form: Mapping[str, Part]) -> Part:
    """Return the file of a form. ApiError names a field that is wrong."""
    for name in form:
        if name not in _FIELDS:
            advice = "files do not expire here" if name.startswith("expires") else "unknown field"
            raise ApiError(400, f"{name[:40]}: {advice}; leave it out", param=name[:40])
    for name in _FIELDS:
        if name not in form:
            raise ApiError(400, f"{name} is missing", param=name)
    purpose = form["purpose"].content
    if purpose != b"batch":
        purpose_text = purpose[:40].decode("utf-8", "replace")
        raise ApiError(400, f"purpose must be batch, not {purpose_text!r}", param="purpose")
    if form["file"].filename is None:
        raise ApiError(400, "file must be a file, with a filename", param="file")
    return form["file"]


def _check_origin(request: Request) -> None:
    """Raise ApiError for a page of another origin; browsers send its form without a preflight."""
    origin, allowed = request.headers.get("origin"), request.app.state.settings.cors
    if origin is None or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise ApiError(400, "pages of other origins need --cors ORIGIN", code="other_origin")


# -- /v1/batches -------------------------------------------------------------------------------


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


@router.post("/v1/batches", responses=replies(BatchObject, *FIELD_ERRORS, 507))
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
