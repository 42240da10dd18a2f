"""One HTTP request and its response; limits the body's size, and the times to read and to write.

Knows when the client has disconnected, and then cancels the client's work.
"""

import asyncio
import zlib
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from cutaway.server.http.errors import ApiError

T = TypeVar("T")


CLIENT_CLOSED = 499  # nginx's status for a client that closed the connection unanswered
_DRAIN_BYTES, _DRAIN_SECONDS = 16 << 20, 2.0
_SMALL = 64 << 10


class BodyBudget:
    """The memory of all bodies that are being received.

    The first 64 KiB of each body are not counted, so that slow clients with large bodies keep out
    other large bodies, but no chat.

    left: bytes that bodies may still take
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, before: int, after: int) -> None:
        """Let a body grow from one size to another; ApiError 503 if no room is left."""
        size = _budgeted_size(after) - _budgeted_size(before)
        if size > self.left:
            raise ApiError(
                503, "too many large bodies arrive at once; send it again in a moment",
                code="too_many_bodies", headers={"Retry-After": "1"},
            )  # fmt: skip
        self.left -= size

    def free(self, size: int) -> None:
        """Give back the bytes that a body of this size took."""
        self.left += _budgeted_size(size)


def _budgeted_size(size: int) -> int:
    return max(0, size - _SMALL)


class HttpExchange:
    """The messages between a client and the app.

    id      the request's id; the response's header x-request-id
    status  the HTTP status; 0 until it is known, 499 if the client disconnected first
    began   whether the response has begun
    left    whether the client disconnected, or has stopped reading
    """

    def __init__(
        self, id: str, scope: Scope, receive: Receive, send: Send, write_timeout: float
    ) -> None:
        self.id, self.status, self.began, self.left = id, 0, False, False
        self.headers: dict[bytes, bytes] = dict(reversed([*scope["headers"]]))  # the first counts
        self._receive, self._send, self._write_timeout = receive, send, write_timeout
        self._path: str = scope["path"]
        self._more = True  # whether more of the body may arrive
        self._body: bytes | None = None
        self._stalled = False

    # -- the request -------------------------------------------------------------------------

    async def read(self, limit: int, seconds: float, budget: BodyBudget) -> None:
        """Read the whole body and decompress it; the app then receives it in one message.

        ApiError if the body is longer than ``limit`` bytes or than the rest of the budget, arrives
        in more than ``seconds``, is not encoded as its Content-Encoding says, or has both
        Content-Length and Transfer-Encoding. ClientDisconnect if the client disconnects.
        """
        if self.headers.keys() >= {b"content-length", b"transfer-encoding"}:
            raise ApiError(
                400, "the request has both Content-Length and Transfer-Encoding; send one of them",
                headers={"connection": "close"},  # RFC 9112, 6.3: it may be a smuggled request
            )  # fmt: skip
        if self._content_length() > limit:
            raise _too_long(limit)
        try:
            async with asyncio.timeout(seconds):
                body = await self._read_body(limit, budget)
        except TimeoutError:
            message = f"the body did not arrive within {seconds:g} seconds; send it again, faster"
            raise ApiError(408, message, code="request_timeout") from None
        self._body = _decode(body, self.headers.get(b"content-encoding", b""), limit)

    async def _read_body(self, limit: int, budget: BodyBudget) -> bytes:
        body, size = bytearray(), 0
        try:
            while self._more:
                part = await self._read_part()
                if size + len(part) > limit:
                    raise _too_long(limit)
                budget.take(size, size + len(part))
                size += len(part)
                body += part
        finally:
            budget.free(size)
        return bytes(body)

    async def _read_part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._hang_up()
            raise ClientDisconnect
        self._more = message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    def _content_length(self) -> int:
        """Return Content-Length in bytes; 0 if there is none."""
        length = self.headers.get(b"content-length", b"")
        return int(length[:20]) if length.isdigit() else 0  # 20 digits are over any limit

    async def receive(self) -> Message:
        """Return the next message for the app: the whole body, then the server's messages."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._hang_up()
        return message

    def _hang_up(self) -> None:
        self.left = True
        self.status = self.status or CLIENT_CLOSED

    # -- the answer --------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Send the app's message; ConnectionAbortedError if the client has stopped reading.

        The timeout is for one message. A client that does not empty the server's buffer (64 KiB) in
        that time, even if it reads a little, would keep a sequence running for nothing.
        """
        if message["type"] == "http.response.start":
            self.began, self.status = True, self.status or message["status"]
            other_headers = [
                h for h in message.get("headers", ()) if h[0].lower() != b"x-request-id"
            ]
            message = {**message, "headers": [*other_headers, (b"x-request-id", self.id.encode())]}
        if not self._stalled:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._write_timeout):
                    return await self._send(message)
        self._stalled = self.left = True
        raise ConnectionAbortedError(f"the client did not read for {self._write_timeout:g} seconds")

    async def refuse(self, error: ApiError) -> None:
        """Respond with an error; if the client still sends, read and drop the body for 2 s at most.

        A connection that is closed while data arrive is reset, and the response is lost.
        """
        body, closing = error.body(self._path), self._more and self._has_body()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **error.headers,
            **({"connection": "close"} if closing else {}),
        }
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        with suppress(ConnectionError, ClientDisconnect):  # the client has disconnected
            await self.send({"type": "http.response.start", "status": error.status, "headers": raw})
            await self.send({"type": "http.response.body", "body": body, "more_body": closing})
            if closing:
                await self._drain()
                await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _has_body(self) -> bool:
        return self._content_length() > 0 or b"transfer-encoding" in self.headers

    async def _drain(self) -> None:
        read = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self._more and read < _DRAIN_BYTES:
                    read += len(await self._read_part())


def _decode(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Decompress the body; ApiError if its Content-Encoding is unknown or wrong."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name != b"gzip":
        message = (
            f"Content-Encoding {name.decode('latin-1')[:40]!r} is not read here; send gzip or none"
        )
        raise ApiError(415, message, code="unsupported_encoding")
    gunzip = zlib.decompressobj(wbits=31)  # 31: with gzip's header
    try:
        plain = gunzip.decompress(body, limit + 1)
    except zlib.error:
        plain = b""
    if len(plain) > limit:
        raise _too_long(limit)
    if not gunzip.eof or gunzip.unused_data:
        raise ApiError(400, "the body is not whole gzip, as its Content-Encoding says; send it so")
    return plain


def _too_long(limit: int) -> ApiError:
    message = f"the body is longer than {limit} bytes; shorten it"
    message += ", or start the server with a larger --max-body"
    return ApiError(413, message, code="body_too_large")


# -- work that ends when the client disconnects ------------------------------------------------


async def cancel_on_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of ``work``; cancel it and raise ClientDisconnect on a disconnect."""
    result, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({result, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        for task in (result, disconnect):
            task.cancel()
        await asyncio.gather(result, disconnect, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
