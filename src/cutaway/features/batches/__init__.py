"""OpenAI's files and batches: requests in a file, answered one after another, kept on disk.

This module has their JSON; see ``server.shared``.
"""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import doc

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "cancelling", "cancelled"
]
Time = Annotated[int, doc("seconds of the epoch")]


class FileObject(TypedDict):
    """A file that is kept."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: Time
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(TypedDict):
    """Files, the newest first unless another order is asked for."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(TypedDict):
    """A file that is not kept any longer."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class LineFault(TypedDict):
    """What is wrong with a line of the input."""

    code: str
    line: Annotated[int | None, doc("from 1")]
    message: str
    param: str | None


class LineFaults(TypedDict):
    """All that is wrong with the input."""

    object: Literal["list"]
    data: list[LineFault]


class RequestCounts(TypedDict):
    """How many requests there are, and what became of them."""

    total: int
    completed: int
    failed: int


class BatchObject(TypedDict):
    """Requests of a file, and how far they are."""

    id: str
    object: Literal["batch"]
    endpoint: Endpoint
    input_file_id: str
    completion_window: Annotated[Literal["24h"], doc("batches do not expire here")]
    status: BatchStatus
    created_at: Time
    metadata: dict[str, str] | None
    request_counts: RequestCounts
    errors: LineFaults | None
    output_file_id: Annotated[str | None, doc("once it has ended, of the answers")]
    error_file_id: Annotated[str | None, doc("once it has ended, of the errors, if there are any")]
    in_progress_at: NotRequired[Time]
    finalizing_at: NotRequired[Time]
    completed_at: NotRequired[Time]
    failed_at: NotRequired[Time]
    cancelling_at: NotRequired[Time]
    cancelled_at: NotRequired[Time]


class BatchList(TypedDict):
    """Batches, the newest first."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
