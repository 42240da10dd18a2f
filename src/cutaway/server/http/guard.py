"""The door: what every request must pass before the app sees it, and what becomes of failures.

Knows host names, the key, limits, and that every answer names its request. Refuses to know paths,
beyond which of them need no key, and what is asked.
"""

import hmac
import logging
import re
from collections.abc import Callable, Iterable
from time import perf_counter
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from cutaway.server.http.errors import Refusal
from cutaway.server.http.exchange import Exchange
from cutaway.server.http.settings import check_key

OPEN_PATHS = ("/", "/health", "/ready")

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_log = logging.getLogger("cutaway.server")


class Guard:
    """An ASGI app around another; what is not HTTP passes untouched.

    api_key        the bearer key that all but the open paths need; None: nobody needs one
    allow_hosts    names in the Host header that are welcome beside the local ones; None: all are
    open_paths     need no key; one that ends in "/" stands for all below it, "/" for itself alone
    max_body       bytes
    read_timeout   seconds for the whole body
    write_timeout  seconds for one message to a client that does not read
    done           called once after each request with its scope, the status (499: the client left
                   before an answer began) and the seconds that it took

    ``scope["state"]["request_id"]`` is the client's own x-request-id, or one made here.
    InputError if the key is not one word.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None = None,
        allow_hosts: Iterable[str] | None = None,
        open_paths: Iterable[str] = OPEN_PATHS,
        max_body: int = 4 << 20,
        read_timeout: float = 30.0,
        write_timeout: float = 60.0,
        done: Callable[[Scope, int, float], None] | None = None,
    ) -> None:
        check_key(api_key)
        self._app, self._done = app, done
        self._key = None if api_key is None else api_key.encode("utf-8", "surrogateescape")
        self._hosts = None if allow_hosts is None else {*_LOCAL_NAMES, *map(_name, allow_hosts)}
        self._open = frozenset(open_paths)
        self._open_below = tuple(p for p in self._open if p.endswith("/") and p != "/")
        self._max_body, self._read_timeout = max_body, read_timeout
        self._write_timeout = write_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request pass, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began = perf_counter()
        id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = id
        exchange = Exchange(id, scope, receive, send, self._write_timeout)
        try:
            await self._pass(scope, exchange)
        finally:
            if self._done is not None:
                self._done(scope, exchange.status or 500, perf_counter() - began)
        return None

    async def _pass(self, scope: Scope, exchange: Exchange) -> None:
        try:
            self._check(scope, exchange)
            await exchange.read(self._max_body, self._read_timeout)
            await self._app(scope, exchange.receive, exchange.send)
            if not (exchange.began or exchange.left):
                raise RuntimeError("the app ended without an answer")
        except Exception as error:
            if isinstance(error, Refusal) and not exchange.began:
                await exchange.refuse(error)
            else:
                await _fail(exchange, error)

    def _check(self, scope: Scope, exchange: Exchange) -> None:
        host = _name(exchange.headers.get(b"host", b"").decode("latin-1"))
        if self._hosts is not None and host not in self._hosts:
            told = f"host {host[:80]!r} is unknown here; start the server with --allow-host NAME"
            raise Refusal(403, told, code="host_not_allowed")
        if self._key is not None and not self._is_open(scope, exchange):
            _check_key(exchange.headers.get(b"authorization", b""), self._key)

    def _is_open(self, scope: Scope, exchange: Exchange) -> bool:
        path: str = scope["path"]
        preflight = {b"origin", b"access-control-request-method"} <= exchange.headers.keys()
        return (
            path in self._open
            or path.startswith(self._open_below)
            or (scope["method"] == "OPTIONS" and preflight)
        )


def _request_id(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else uuid4().hex


def _name(host: str) -> str:
    """A host without its port, in small letters."""
    return re.sub(r":\d*$", "", host.strip().lower())


def _check_key(authorization: bytes, key: bytes) -> None:
    scheme, _, given = authorization.partition(b" ")
    bearer = scheme.lower() == b"bearer"
    if not (hmac.compare_digest(given.strip(), key) and bearer):
        told = "the key is wrong" if bearer else "a key is needed"
        told += "; send the header 'Authorization: Bearer KEY' with the server's own"
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refusal(401, told, code="invalid_api_key", headers=headers)


def broken(id: str) -> Refusal:
    """What a client is told of a bug: where to find it, and nothing of what it was."""
    told = f"the server failed; its log has the reason under request {id}"
    return Refusal(500, told, code="internal_error")


async def _fail(exchange: Exchange, error: Exception) -> None:
    """Log what was no client's leaving, and answer if no answer began; else the server hangs up.

    It is logged here and not raised again: the server would write the same traceback once more.
    """
    _, other = ExceptionGroup("", [error]).split((OSError, ClientDisconnect))  # of a task group too
    if exchange.left and not other:
        return
    _log.error("request %s failed", exchange.id, exc_info=error)
    if not exchange.began:
        await exchange.refuse(broken(exchange.id))
