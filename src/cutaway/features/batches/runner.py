"""Answers the lines of batches, one batch after another; a line is a request like any other.

Knows the application only as something that answers requests. If a server ends, the next server
continues the batch.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Self
from uuid import uuid4

from starlette.types import ASGIApp, Message

from cutaway.base.strict_json import parse
from cutaway.base.whole_files import is_full, only_owner
from cutaway.errors import CutawayError, InputError
from cutaway.features.batches import BatchObject, LineFault
from cutaway.features.batches.folder import BatchFolder, whole_lines
from cutaway.server.http.errors import ApiError

MOST_LINES = 50_000
_MOST_FAULTS = 100
_FIELDS = ("custom_id", "method", "url", "body")


class Line(NamedTuple):
    """A request. number: the number of its line, from 1; body: the request's fields."""

    number: int
    custom_id: str
    body: dict[str, Any]


class Checked(NamedTuple):
    """The valid lines, and at most the first hundred faults of the invalid lines."""

    lines: list[Line]
    faults: list[LineFault]


def check_lines(data: bytes, endpoint: str) -> Checked:
    """Read a file of requests to one endpoint."""
    lines, faults = list[Line](), list[LineFault]()
    places = dict[str, int]()
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip():
            continue
        line = _read(text, number, endpoint)
        if isinstance(line, Line) and line.custom_id in places:
            line = _fault(
                number, "duplicate_custom_id", "custom_id",
                f"custom_id: line {places[line.custom_id]} has the same: give each its own",
            )  # fmt: skip
        if isinstance(line, Line):
            places[line.custom_id] = number
            lines.append(line)
        elif len(faults) < _MOST_FAULTS:
            faults.append(line)
    if not lines and not faults:
        faults.append(_fault(None, "empty_file", None, "the file has no line: give one at least"))
    if len(lines) > MOST_LINES:
        message = f"the file has {len(lines)} lines; at most {MOST_LINES} are one batch: split it"
        faults.append(_fault(None, "too_many_requests", None, message))
    return Checked(lines, faults)


def _read(text: bytes, number: int, endpoint: str) -> Line | LineFault:
    try:
        request = parse(text, "this line")
    except InputError as error:
        return _fault(number, "invalid_json_line", None, str(error))
    for param, message in _wrong(request, endpoint):
        return _fault(number, "invalid_request", param, message)
    return Line(number, request["custom_id"], request["body"])


def _wrong(request: Any, endpoint: str) -> Iterator[tuple[str | None, str]]:
    """Yield the field and a sentence for each fault of a line."""
    if not isinstance(request, dict):
        yield None, f"a line must be an object with {', '.join(_FIELDS)}"
        return
    yield from ((name, f"{name} is missing") for name in _FIELDS if request.get(name) is None)
    unknown = [name for name, value in request.items() if name not in _FIELDS and value is not None]
    yield from ((name, f"unknown field {name!r:.40}") for name in unknown)
    if not isinstance(request["custom_id"], str) or not 0 < len(request["custom_id"]) <= 512:
        yield "custom_id", "custom_id must be a text of 1 to 512 characters"
    if request["method"] != "POST":
        yield "method", "method must be POST"
    if request["url"] != endpoint:
        yield "url", f"url must be the batch's endpoint, {endpoint}"
    if not isinstance(request["body"], dict):
        yield "body", "body must be an object: the fields of the request"
    elif request["body"].get("stream"):
        yield "body.stream", "body.stream: a batch has whole answers: leave it out"


def _fault(line: int | None, code: str, param: str | None, message: str) -> LineFault:
    return {"code": code, "line": line, "message": message, "param": param}


# -- a request of the server to itself: checked, logged and counted as any other ---------------


class OwnAnswer(NamedTuple):
    """A whole answer of the application; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """The code of the answer's error; None if there is no error or no code."""
        error = json.loads(self.body).get("error")
        return error.get("code") if isinstance(error, dict) else None


async def ask(app: ASGIApp, path: str, id: str, body: bytes, *, key: str | None) -> OwnAnswer:
    """Return an application's answer to a POST of JSON. Cancelling this cancels the request.

    id: the request's id; key: the API key, if clients must send a key
    """
    content, status, headers = bytearray(), 500, dict[str, str]()
    parts = [body]

    async def receive() -> Message:
        if not parts:
            await asyncio.get_running_loop().create_future()  # nobody disconnects
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {k.decode().lower(): v.decode("latin-1") for k, v in message["headers"]}
        else:
            content.extend(message.get("body", b""))

    request_headers = {"host": "localhost", "content-type": "application/json", "x-request-id": id}
    if key is not None:
        request_headers["authorization"] = f"Bearer {key}"
    raw = [(k.encode(), v.encode("utf-8", "surrogateescape")) for k, v in request_headers.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "headers": raw, "client": None, "server": None,
        "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return OwnAnswer(status, headers, bytes(content))


# -- batches, one after another ----------------------------------------------------------------


AT_ONCE = 32
"""How many lines are asked at once; the engine batches them with other requests."""
AGAIN_S = 10.0
"""Seconds until the runner tries again a batch that found no room on the disk."""
_LATER = 100
"""The priority of lines that name no priority, so that other requests go before these lines."""
_WITHOUT_PRIORITY = "/v1/embeddings"
_STOPPING = ("stopping", "shutting_down")
_log = logging.getLogger("cutaway.server")


Ask = Callable[[str, str, bytes], Awaitable[OwnAnswer]]
"""(path, id of the request, JSON) -> the answer"""


class BatchRunner:
    """Runs the batches of a folder in the background, while its ``async with`` block lasts."""

    def __init__(self, folder: BatchFolder, ask: Ask) -> None:
        self.folder, self._ask = folder, ask
        self._new = asyncio.Event()
        self._running: tuple[str, asyncio.Task[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.folder.close()

    def wake(self) -> None:
        """Note that there is a new batch."""
        self._new.set()

    def cancel(self, batch: BatchObject) -> None:
        """End a batch early. ApiError if it has ended already."""
        if batch["status"] not in ("validating", "in_progress", "cancelling"):
            raise ApiError(
                400, f"batch_id: it is {batch['status']} and cannot be cancelled",
                param="batch_id", code="batch_ended",
            )  # fmt: skip
        if batch["status"] != "cancelling":
            self.folder.change(batch, "cancelling")
        if self._running and self._running[0] == batch["id"]:
            self._running[1].cancel()
        else:
            self._finish(batch)

    # -- all batches ---------------------------------------------------------------------------

    async def _run_all(self) -> None:
        while True:
            self._new.clear()
            if (batch := self.folder.next_open()) is None:
                await self._new.wait()
                continue
            work = asyncio.create_task(self._run(batch))
            self._running = batch["id"], work
            try:
                await self._end_of(work, batch)
            except _ServerStopsError:
                return
            finally:
                self._running = None

    async def _end_of(self, work: "asyncio.Task[None]", batch: BatchObject) -> None:
        """Wait for a batch to end. If running it raises an error, the batch fails.

        If the disk is full, the batch stays as it is, and is continued later.
        """
        try:
            await asyncio.wait([work])
            if not work.cancelled():
                work.result()
            elif batch["status"] == "cancelling":
                self._finish(batch)
        except _ServerStopsError:
            raise
        except Exception as error:
            if is_full(error):
                return await self._wait_for_room(batch, error)
            _log.exception("batch %s failed", batch["id"])
            message = "the server failed, and its log says why"
            fault = {"code": "server_error", "line": None, "message": message, "param": None}
            try:
                self._fail(batch, [fault])
            except CutawayError as unwritten:
                await self._wait_for_room(batch, unwritten)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return None

    async def _wait_for_room(self, batch: BatchObject, error: Exception) -> None:
        _log.error("batch %s waits, as nothing can be written: %s", batch["id"], error)
        await asyncio.sleep(AGAIN_S)

    # -- one batch -----------------------------------------------------------------------------

    async def _run(self, batch: BatchObject) -> None:
        if batch["status"] in ("finalizing", "cancelling"):  # when the previous server ended
            return self._finish(batch)
        data = await asyncio.to_thread(self.folder.content(batch["input_file_id"]).read_bytes)
        lines, faults = await asyncio.to_thread(check_lines, data, batch["endpoint"])
        if faults:
            return self._fail(batch, faults)
        done = await asyncio.to_thread(self._done, batch)
        batch["request_counts"]["total"] = len(lines)
        if batch["status"] == "validating":
            self.folder.change(batch, "in_progress")
        left = (line for line in lines if line.custom_id not in done)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self._work(batch, left))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self._finish(batch)
        return None

    async def _work(self, batch: BatchObject, lines: Iterator[Line]) -> None:
        for line in lines:
            id = f"batch_req_{uuid4().hex}"
            answer = await self._await_answer(batch["endpoint"], id, line.body)
            record = {
                "id": id, "custom_id": line.custom_id, "error": None,
                "response": {
                    "status_code": answer.status, "request_id": id,
                    "body": json.loads(answer.body),
                },
            }  # fmt: skip
            good = answer.status == 200
            self._append(batch, record, good=good)
            batch["request_counts"]["completed" if good else "failed"] += 1

    async def _await_answer(self, path: str, id: str, body: dict[str, Any]) -> OwnAnswer:
        """Send a request, again and again until the queue has room, and return the answer.

        _ServerStopsError if the server stops before the answer.
        """
        later = {} if path == _WITHOUT_PRIORITY else {"priority": _LATER}
        data = json.dumps({**later, **body}).encode()
        while True:
            answer = await self._ask(path, id, data)
            if answer.status == 429:
                await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
            elif answer.status == 503 and answer.code in _STOPPING:
                raise _ServerStopsError
            else:
                return answer

    # -- files on disk -------------------------------------------------------------------------

    def _output(self, batch: BatchObject, *, good: bool) -> str:
        """Return the id of the file with a batch's answers; if not ``good``, with its errors."""
        return f"file-{batch['id']}_{'output' if good else 'errors'}"

    def _append(self, batch: BatchObject, record: Any, *, good: bool) -> None:
        path = self.folder.content(self._output(batch, good=good))
        with open(path, "ab", opener=only_owner) as out:
            out.write(json.dumps(record).encode() + b"\n")

    def _done(self, batch: BatchObject) -> set[str]:
        """Return the custom ids of the lines that an earlier server has answered."""
        return {json.loads(line)["custom_id"] for line in self._records(batch)}

    def _records(self, batch: BatchObject) -> list[bytes]:
        """Read and count the lines on disk; remove a last line that was cut off."""
        good, bad = (
            whole_lines(self.folder.content(self._output(batch, good=good)))
            for good in (True, False)
        )
        batch["request_counts"].update({"completed": len(good), "failed": len(bad)})
        return [*good, *bad]

    def _fail(self, batch: BatchObject, faults: Any) -> None:
        self.folder.change(batch, "failed", errors={"object": "list", "data": faults})

    def _finish(self, batch: BatchObject) -> None:
        """End the batch, and list the files that it wrote. A second call changes nothing."""
        cancelled = batch["status"] == "cancelling"
        if not cancelled:
            self.folder.change(batch, "finalizing")
        self._records(batch)
        output_ids = dict[str, str]()
        for good, field in ((True, "output_file_id"), (False, "error_file_id")):
            id = self._output(batch, good=good)
            if self.folder.content(id).exists():
                self.folder.list_file(id, f"{id.removeprefix('file-')}.jsonl", "batch_output")
                output_ids[field] = id
        self.folder.change(batch, "cancelled" if cancelled else "completed", **output_ids)


class _ServerStopsError(Exception):
    """The server is stopping: no more lines are answered."""
