"""A request that the server asks itself: checked, logged and counted as any other."""

import asyncio
import json
from typing import NamedTuple

from starlette.types import ASGIApp, Message


class OwnAnswer(NamedTuple):
    """A whole answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """Of its error."""
        error = json.loads(self.body).get("error")
        return error.get("code") if isinstance(error, dict) else None


async def ask(app: ASGIApp, path: str, id: str, body: bytes, *, key: str | None) -> OwnAnswer:
    """The answer of an application to a POST of JSON; cancelled, the request is.

    id: of the request; key: what clients must send
    """
    said, status, headers = bytearray(), 500, dict[str, str]()
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
            said.extend(message.get("body", b""))

    given = {"host": "localhost", "content-type": "application/json", "x-request-id": id}
    if key is not None:
        given["authorization"] = f"Bearer {key}"
    raw = [(k.encode(), v.encode("utf-8", "surrogateescape")) for k, v in given.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "headers": raw, "client": None, "server": None,
        "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return OwnAnswer(status, headers, bytes(said))
