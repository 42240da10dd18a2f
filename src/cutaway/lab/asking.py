"""Asking another server over HTTP: JSON, and streams of events. Knows no model.

Every command that asks a server does it here, so that a key goes to the host that was named and to
no other, nothing waits for ever, and no answer fills the memory.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cutaway.base.progress import megabytes
from cutaway.errors import CutawayError, InputError

_SILENT_S = 600
"""How long a server may send nothing, such as while it loads a model."""

MOST_BYTES = 1 << 28
"""The largest answer, or event of a stream."""


class UnansweredError(CutawayError):
    """The server is not there, or its answer was cut: another may answer."""


class RefusedError(CutawayError):
    """The server answered with an error status, or with a redirect: it is there.

    error: what its answer has under "error", where that is an object
    """

    def __init__(self, text: str, status: int = 0, error: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status, self.error = status, error or {}


class _NoRedirect(HTTPRedirectHandler):
    """Whoever names a server gives the key to it, and not to where it points."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: each is an ``HTTPError``."""


_opener = build_opener(_NoRedirect)


class Server:
    """A server at a URL: its root, or its /v1.

    key  its API key, if it wants one
    """

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(f"url must begin with http:// or https:// and a host, not {url!r:.80}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str) -> Any:
        """The JSON document at a path; ``RefusedError`` where it says no."""
        return self._document(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer to a body; ``RefusedError`` where it says no."""
        return self._document(path, body)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The JSON events of a streamed answer, up to [DONE]."""
        with self._open(path, body) as answer:
            while line := self._read(path, answer.readline):
                if line.startswith(b"data:") and not line[5:].strip().startswith(b"[DONE]"):
                    yield self._json(path, line[5:])

    def model(self) -> str:
        """The name of the first model that it lists; "" where it lists none."""
        try:
            listed = self.get("/v1/models")
            return str(listed["data"][0]["id"])
        except (RefusedError, KeyError, IndexError, TypeError):
            return ""

    def _document(self, path: str, body: Mapping[str, Any] | None) -> Any:
        with self._open(path, body) as answer:
            data = self._read(path, answer.read)
            if answer.length:  # of Content-Length: what is still to come
                raise UnansweredError(f"{self.url}{path}: its answer was cut")
            return self._json(path, data)

    def _open(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, self._headers)
        try:
            return _opener.open(request, timeout=_SILENT_S)
        except HTTPError as error:
            with error:
                raise self._refusal(path, error) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnansweredError(f"{self.url}{path}: no answer: {reason}") from None

    def _refusal(self, path: str, error: HTTPError) -> RefusedError:
        if 300 <= error.code < 400:
            place = str(error.headers.get("Location", "nowhere"))[:200]
            return RefusedError(
                f"{self.url}{path}: it redirects to {place}, which is not followed, since a key "
                "may be sent along: name the URL of the server itself",
                error.code,
            )
        said = self._read(path, lambda _: error.read(20_000)).decode("utf-8", "replace")
        message, body = _message(said)
        return RefusedError(f"{self.url}{path}: {error.code}: {message}", error.code, body)

    def _read(self, path: str, read: Callable[[int], bytes]) -> bytes:
        try:
            data = read(MOST_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise UnansweredError(f"{self.url}{path}: its answer was cut: {error}") from None
        if len(data) > MOST_BYTES:
            raise CutawayError(
                f"{self.url}{path}: its answer is larger than {megabytes(MOST_BYTES)}"
            )
        return data

    def _json(self, path: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError:
            raise CutawayError(f"{self.url}{path}: the answer is not JSON: {data!r:.80}") from None


def _message(said: str) -> tuple[str, Mapping[str, Any] | None]:
    """The sentence in an error's body, as OpenAI, Ollama and FastAPI have it, and the error.

    Else the body, and none.
    """
    try:
        body = json.loads(said)
    except ValueError:
        return said[:200], None
    told = body.get("error", body.get("detail", said)) if isinstance(body, dict) else said
    if isinstance(told, dict):
        return str(told.get("message", told))[:300], told
    return str(told)[:300], None
