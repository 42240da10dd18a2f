"""Middleware around the whole application: access, limits, request ids, failures."""

import hmac
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from socket import gethostname
from time import perf_counter
from urllib.parse import quote
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cutaway.server.http.errors import ApiError
from cutaway.server.http.limits import BodyBudget, HttpExchange
from cutaway.server.http.settings import check_key

OPEN_PATHS = ("/", "/health", "/ready")

_MOST_BODIES = 16  # bodies of the largest size that are received at once
_ABSOLUTE = re.compile(r"https?://([^/]+)(/.*)?", re.IGNORECASE | re.DOTALL)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_log = logging.getLogger("cutaway.server")


class Guard:
    """An ASGI app around another; scopes other than HTTP pass unchanged.

    api_key        the key that all paths but the open ones need, as a bearer key or as x-api-key;
                   None: no key is needed
    allow_hosts    names accepted in the Host header beside addresses and this machine's; None: any
    root_path      the path under which a proxy serves this server; stripped from requests' paths
    open_paths     paths that need no key; a path that ends in "/", except "/" itself, includes all
                   paths below it
    max_body       largest request body, in bytes; 16 of them may be received at once
    read_timeout   seconds for the whole body to arrive
    write_timeout  seconds for the client to read one message
    done           called after each request with its scope, the status (499: the client
                   disconnected before a response began) and how many seconds it took

    HEAD is handled as GET, but uvicorn sends no body. An absolute request target (RFC 9112, 3.2.2)
    is handled as its path, and its host replaces the Host header. The app finds the client's
    x-request-id, or a new id, in ``scope["state"]["request_id"]``. InputError if the key is not one
    word.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None = None,
        allow_hosts: Iterable[str] | None = None,
        root_path: str = "",
        open_paths: Iterable[str] = OPEN_PATHS,
        max_body: int = 4 << 20,
        read_timeout: float = 30.0,
        write_timeout: float = 60.0,
        done: Callable[[Scope, int, float], None] | None = None,
    ) -> None:
        check_key(api_key)
        self._app, self._done = app, done
        self._key = None if api_key is None else api_key.encode("utf-8", "surrogateescape")
        self._hosts = None if allow_hosts is None else _names(allow_hosts)
        self._root = root_path
        self._open = frozenset(open_paths)
        self._open_below = tuple(p for p in self._open if p.endswith("/") and p != "/")
        self._max_body, self._read_timeout = max_body, read_timeout
        self._write_timeout, self._budget = write_timeout, BodyBudget(_MOST_BODIES * max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, method = perf_counter(), scope["method"]
        scope = _to_origin_form({**scope, "method": "GET" if method == "HEAD" else method})
        at_root = self._root != "" and scope["path"] == self._root
        scope = _strip_root(self._root, scope)
        id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = id
        exchange = HttpExchange(id, scope, receive, send, self._write_timeout)
        try:
            # The page's links are relative to a path that ends in a slash.
            app = RedirectResponse(f"{self._root}/", 308) if at_root else self._app
            await self._pass(app, scope, exchange)
        finally:
            if self._done is not None:
                done = {**scope, "method": method}
                self._done(done, exchange.status or 500, perf_counter() - began)
        return None

    async def _pass(self, app: ASGIApp, scope: Scope, exchange: HttpExchange) -> None:
        try:
            self._check(scope, exchange)
            await exchange.read(self._max_body, self._read_timeout, self._budget)
            await app(scope, exchange.receive, exchange.send)
            if not (exchange.began or exchange.left):
                raise RuntimeError("the app ended without an answer")
        except Exception as error:
            if isinstance(error, ApiError) and not exchange.began:
                await exchange.refuse(error)
            else:
                await _fail(exchange, error)

    def _check(self, scope: Scope, exchange: HttpExchange) -> None:
        host = _name(exchange.headers.get(b"host", b"").decode("latin-1"))
        if not (self._hosts is None or host in self._hosts or _is_address(host)):
            message = f"host {host[:80]!r} is not allowed; start the server with --allow-host NAME"
            raise ApiError(403, message, code="host_not_allowed")
        if self._key is not None and not self._is_open(scope, exchange):
            _check_key(exchange.headers, self._key)

    def _is_open(self, scope: Scope, exchange: HttpExchange) -> bool:
        path: str = scope["path"]
        preflight = {b"origin", b"access-control-request-method"} <= exchange.headers.keys()
        return (
            path in self._open
            or path.startswith(self._open_below)
            or (scope["method"] == "OPTIONS" and preflight)
        )


def _to_origin_form(scope: Scope) -> Scope:
    """Return the scope; the path and host of an absolute target replace the path and Host."""
    target = _ABSOLUTE.fullmatch(scope["path"])
    if target is None:
        return scope
    host, path = target[1], target[2] or "/"
    other_headers = [header for header in scope["headers"] if header[0] != b"host"]
    return {**scope, "path": path, "raw_path": quote(path).encode(),
            "headers": [(b"host", host.encode()), *other_headers]}  # fmt: skip


def _strip_root(root: str, scope: Scope) -> Scope:
    """Return the scope with the root stripped from its path, since not every proxy strips it."""
    path = scope["path"].removeprefix(root) or "/"
    if not root or path == scope["path"] or path[0] != "/":
        return scope
    return {**scope, "path": path, "raw_path": quote(path).encode()}


def _request_id(scope: Scope) -> str:
    client_id = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return client_id.decode() if _REQUEST_ID.fullmatch(client_id) else uuid4().hex


def _name(host: str) -> str:
    """Return a host without its port, in lower case."""
    return re.sub(r":\d*$", "", host.strip().lower())


def _names(names: Iterable[str]) -> frozenset[str]:
    """Return the names that the Host header may have: this machine's names and ``names``."""
    return frozenset({"localhost", _name(gethostname()), *map(_name, names)})


def _is_address(host: str) -> bool:
    """Whether a Host is an IP address. A web page that rebinds DNS sends a domain's name."""
    try:
        if host.startswith("[") and host.endswith("]"):
            return bool(IPv6Address(host[1:-1]))
        return bool(IPv4Address(host))
    except ValueError:
        return False


def _check_key(headers: Mapping[bytes, bytes], key: bytes) -> None:
    """Check the key in Authorization or x-api-key; Anthropic's clients send x-api-key or both."""
    scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    bearer, other = scheme.lower() == b"bearer", headers.get(b"x-api-key", b"")
    good = hmac.compare_digest(credentials.strip(), key) and bearer
    if not (hmac.compare_digest(other.strip(), key) or good):
        message = "the API key is wrong" if bearer or other else "an API key is needed"
        message += "; send the header 'Authorization: Bearer KEY' with the server's key"
        challenge = {"WWW-Authenticate": "Bearer"}
        raise ApiError(401, message, code="invalid_api_key", headers=challenge)


def internal_error(id: str) -> ApiError:
    """Return the response to a bug: it says under which request id the log has the error."""
    message = f"the server failed; its log has the reason under request {id}"
    return ApiError(500, message, code="internal_error")


async def _fail(exchange: HttpExchange, error: Exception) -> None:
    """Log an error unless it is a disconnect; respond with it unless a response has begun.

    The error is not raised again, or uvicorn would log the same traceback a second time.
    """
    _, other = ExceptionGroup("", [error]).split((OSError, ClientDisconnect))  # or of a task group
    if exchange.left and not other:
        return
    _log.error("request %s failed", exchange.id, exc_info=error)
    if not exchange.began:
        await exchange.refuse(internal_error(exchange.id))
