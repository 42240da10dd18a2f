"""One request and its answer, with limits on what may come and on how long anything may take.

Knows ASGI's messages, sizes and clocks. Refuses to know who may ask, and what for.
"""

import asyncio
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from cutaway.server.http.errors import Refusal

CLIENT_LEFT = 499  # nobody was answered; as other servers write it into their logs
_DRAIN_BYTES, _DRAIN_SECONDS = 16 << 20, 2.0


class Exchange:
    """What passes between a client and the app.

    id      of the request; the answer carries it as x-request-id
    status  of HTTP; 0 while nobody knows, 499 where the client left first
    began   whether the answer has
    left    whether the client hung up, or has stopped reading
    """

    def __init__(
        self, id: str, scope: Scope, receive: Receive, send: Send, write_timeout: float
    ) -> None:
        self.id, self.status, self.began, self.left = id, 0, False, False
        self.headers: dict[bytes, bytes] = dict(reversed([*scope["headers"]]))  # the first counts
        self._receive, self._send, self._write_timeout = receive, send, write_timeout
        self._more = True  # of the body is to come
        self._body: bytes | None = None
        self._stalled = False

    # -- the request -------------------------------------------------------------------------

    async def read(self, limit: int, seconds: float) -> None:
        """Take in the whole body, for the app to receive at once.

        Refusal if it is longer than ``limit`` bytes or takes longer than ``seconds``;
        ClientDisconnect if the client hangs up.
        """
        if self._announced() > limit:
            raise _too_long(limit)
        try:
            async with asyncio.timeout(seconds):
                self._body = await self._whole(limit)
        except TimeoutError:
            told = f"the request was not here within {seconds:g} seconds; send it again, faster"
            raise Refusal(408, told, code="request_timeout") from None

    async def _whole(self, limit: int) -> bytes:
        body = bytearray()
        while self._more:
            body += await self._part()
            if len(body) > limit:
                raise _too_long(limit)
        return bytes(body)

    async def _part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._hang_up()
            raise ClientDisconnect
        self._more = message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    def _announced(self) -> int:
        """How many bytes the client says there are; 0 where it does not say."""
        length = self.headers.get(b"content-length", b"")
        return int(length[:20]) if length.isdigit() else 0  # 20 digits are too many in any case

    async def receive(self) -> Message:
        """For the app: its body in one message, then whatever the server has to tell."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._hang_up()
        return message

    def _hang_up(self) -> None:
        self.left = True
        self.status = self.status or CLIENT_LEFT

    # -- the answer --------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """For the app. ConnectionAbortedError when the client has stopped reading.

        The clock is that of one message: who reads so slowly that the server's buffer (64 KiB)
        does not empty within it holds up a text for nobody, even if it reads a little.
        """
        if message["type"] == "http.response.start":
            self.began, self.status = True, self.status or message["status"]
            others = [h for h in message.get("headers", ()) if h[0].lower() != b"x-request-id"]
            message = {**message, "headers": [*others, (b"x-request-id", self.id.encode())]}
        if not self._stalled:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._write_timeout):
                    return await self._send(message)
        self._stalled = self.left = True
        raise ConnectionAbortedError(f"the client did not read for {self._write_timeout:g} seconds")

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with an error, and read on for a moment if the client still sends.

        A connection that is closed while data arrive is reset, and the answer lost with it.
        """
        body, closing = refusal.body(), self._more and self._has_body()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **refusal.headers,
            **({"connection": "close"} if closing else {}),
        }
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        with suppress(ConnectionError, ClientDisconnect):  # nobody is left to be told
            await self.send(
                {"type": "http.response.start", "status": refusal.status, "headers": raw}
            )
            await self.send({"type": "http.response.body", "body": body, "more_body": closing})
            if closing:
                await self._drain()
                await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _has_body(self) -> bool:
        return self._announced() > 0 or b"transfer-encoding" in self.headers

    async def _drain(self) -> None:
        read = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self._more and read < _DRAIN_BYTES:
                    read += len(await self._part())


def _too_long(limit: int) -> Refusal:
    told = f"the body is longer than {limit} bytes; shorten it"
    told += ", or start the server with a larger --max-body"
    return Refusal(413, told, code="body_too_large")
