"""The folder of ``--batches``: files, and the batches that read and write them.

Knows names and states on disk, and nothing of requests. Each document is replaced as a whole, so a
server that is killed leaves either the old document or the new one.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from time import time
from typing import IO, Any, Literal, TypeVar, cast
from uuid import uuid4

from cutaway.base import system
from cutaway.base.whole_files import whole_file
from cutaway.errors import CutawayError, InputError
from cutaway.features.batches import BatchObject, BatchStatus, Endpoint, FileObject
from cutaway.server.http.errors import ApiError

T = TypeVar("T")

OPEN: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses of a batch that has not ended."""


class BatchFolder:
    """Files and batches by their ids, oldest first. InputError if the folder cannot be used.

    Only one process may use a folder at a time: another process gets an InputError.
    """

    def __init__(self, path: Path) -> None:
        self._files, self._batches = path / "files", path / "batches"
        with ExitStack() as stack:
            self._lock = stack.enter_context(_lock_folder(path, self._files, self._batches))
            self.files = cast(dict[str, FileObject], _documents(self._files))
            self.batches = cast(dict[str, BatchObject], _documents(self._batches))
            stack.pop_all()

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.close()

    # -- files ---------------------------------------------------------------------------------

    def file(self, id: str, field: str = "file_id") -> FileObject:
        """Return a file. ApiError 404 if it does not exist.

        field: the name of the request's field that has the id
        """
        return _look_up(self.files, id, field, "file")

    def content(self, id: str) -> Path:
        """Return the path of a file's content."""
        return self._files / f"{id}.content"

    def add_file(self, name: str, content: bytes) -> FileObject:
        """Keep a client's file."""
        id = f"file-{uuid4().hex}"
        with whole_file(self.content(id), private=True) as out:
            out.write(content)
        try:
            return self.list_file(id, name, "batch")
        except CutawayError:
            self.content(id).unlink()
            raise

    def list_file(
        self, id: str, name: str, purpose: Literal["batch", "batch_output"]
    ) -> FileObject:
        """Make a file of content that is on disk already."""
        file: FileObject = {
            "id": id, "object": "file", "bytes": self.content(id).stat().st_size,
            "created_at": int(time()), "filename": name, "purpose": purpose,
            "status": "processed",
        }  # fmt: skip
        _write(self._files / f"{id}.json", file)
        self.files[id] = file
        return file

    def delete_file(self, id: str) -> None:
        """Delete a file. ApiError if it does not exist or a batch still reads it."""
        self.file(id)
        for batch in self.batches.values():
            if batch["input_file_id"] == id and batch["status"] in OPEN:
                raise ApiError(
                    400, f"file_id: batch {batch['id']} reads it: cancel that first",
                    param="file_id", code="file_in_use",
                )  # fmt: skip
        del self.files[id]
        for path in (self._files / f"{id}.json", self.content(id)):
            path.unlink(missing_ok=True)

    # -- batches -------------------------------------------------------------------------------

    def batch(self, id: str) -> BatchObject:
        """Return a batch. ApiError 404 if it does not exist."""
        return _look_up(self.batches, id, "batch_id", "batch")

    def add_batch(
        self, file_id: str, endpoint: Endpoint, metadata: Mapping[str, str] | None
    ) -> BatchObject:
        """Add a batch for the requests of a file."""
        batch: BatchObject = {
            "id": f"batch_{uuid4().hex}", "object": "batch", "endpoint": endpoint,
            "input_file_id": file_id, "completion_window": "24h", "status": "validating",
            "created_at": int(time()), "metadata": {**metadata} if metadata else None,
            "request_counts": {"total": 0, "completed": 0, "failed": 0}, "errors": None,
            "output_file_id": None, "error_file_id": None,
        }  # fmt: skip
        self._save(batch)
        self.batches[batch["id"]] = batch
        return batch

    def change(self, batch: BatchObject, status: BatchStatus, **more: Any) -> None:
        """Change a batch's status and note the time.

        If the change cannot be written, the batch stays as it was: clients see the state on disk.
        """
        since = {} if status == "validating" else {f"{status}_at": int(time())}
        changed = cast(BatchObject, {**batch, "status": status, **since, **more})
        self._save(changed)
        batch.update(changed)

    def _save(self, batch: BatchObject) -> None:
        _write(self._batches / f"{batch['id']}.json", batch)

    def next_open(self) -> BatchObject | None:
        """Return the oldest batch that has not ended."""
        return next((batch for batch in self.batches.values() if batch["status"] in OPEN), None)


def _lock_folder(path: Path, *folders: Path) -> IO[bytes]:
    """Make these folders and lock the first."""
    try:
        for folder in (path, *folders):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (path / "lock").open("ab")
        try:
            system.lock(lock.fileno())
        except BaseException:
            lock.close()
            raise
        return lock
    except BlockingIOError:
        raise InputError("batches", f": another server has {path}: give another folder") from None
    except OSError as error:
        raise InputError("batches", f": {path} cannot be used: {error.strerror}") from error


def _look_up(documents: Mapping[str, T], id: str, field: str, kind: str) -> T:
    """Return the document with this id. ApiError if no document has it, so that no path is made
    of an id that a client invents."""
    if id not in documents:
        raise ApiError(404, f"{field}: there is no {kind} {id[:100]!r}", param=field,
                       code=f"{kind}_not_found")  # fmt: skip
    return documents[id]


def _documents(folder: Path) -> dict[str, Any]:
    """Read a folder's documents by id, oldest first. InputError if one cannot be read."""
    entries = []
    for path in folder.glob("*.json"):
        try:
            document = json.loads(path.read_bytes())
            entries.append((document["created_at"], document["id"], document))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                "batches", f": {path} is not what a server wrote: move it away ({error})"
            ) from error
    return {id: document for _, id, document in sorted(entries, key=lambda entry: entry[:2])}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    with whole_file(path, private=True) as out:
        out.write(json.dumps(document).encode())


def whole_lines(path: Path) -> list[bytes]:
    """Read the lines of a file that is appended to, and remove a last line that was cut off."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        file.truncate(whole)
        return data[:whole].splitlines()
    return []
