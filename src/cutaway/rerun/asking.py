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

from cutaway.base.checks import shown
from cutaway.base.progress import megabytes
from cutaway.errors import CutawayError, InputError
from cutaway.rerun.answer_part import AnswerPart, UnreadableError
from cutaway.rerun.timed_http import http_handlers

ANSWER_S = 900
"""How long an answer may take in all."""
PATIENT_S = 86_400
"""How long a stream may take that its reader keeps no part of."""

MOST_BYTES = 1 << 27
"""The largest answer, event of a stream, or stream."""
MOST_VALUES = 1 << 24
"""Of an answer, as far as its brackets and commas say; each takes some 60 bytes of memory."""


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


class Server:
    """A server at a URL: its root, or its /v1.

    key      its API key, if it wants one
    patient  whether a stream may take a day, and any number of bytes
    """

    def __init__(self, url: str, key: str = "", *, patient: bool = False) -> None:
        _check_url(url)
        if not (key.isascii() and key.isprintable()):
            raise InputError("the API key (CUTAWAY_API_KEY) has characters that no header may have")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._patient = patient
        self._opener = build_opener(_NoRedirect, *http_handlers(PATIENT_S if patient else ANSWER_S))

    def get(self, path: str) -> AnswerPart:
        """The JSON document at a path; ``RefusedError`` where it says no."""
        return self._document(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> AnswerPart:
        """The JSON answer to a body; ``RefusedError`` where it says no."""
        return self._document(path, body)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[AnswerPart]:
        """The JSON events of a streamed answer, up to [DONE]."""
        seen = 0
        with self._open(path, body) as answer:
            while line := self._read(path, answer.readline):
                seen += len(line)
                if seen > MOST_BYTES and not self._patient:
                    raise self._too_large(path)
                if line.startswith(b"data:"):
                    if line[5:].strip().startswith(b"[DONE]"):
                        return
                    yield self._part(path, line[5:])

    def model(self) -> str:
        """The name of the first model that it lists; "" where it lists none."""
        try:
            return self.get("/v1/models")["data"][0]["id"].text
        except (RefusedError, UnreadableError):
            return ""

    def _document(self, path: str, body: Mapping[str, Any] | None) -> AnswerPart:
        with self._open(path, body) as answer:
            data = self._read(path, answer.read)
            if answer.length:  # of Content-Length: what is still to come
                raise UnansweredError(f"{self.url}{path}: its answer was cut")
            return self._part(path, data)

    def _open(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, self._headers)
        try:
            return self._opener.open(request)
        except HTTPError as error:
            with error:
                raise self._refusal(path, error) from None
        except (OSError, HTTPException, UnicodeError) as error:
            reason = shown(str(getattr(error, "reason", error)))[1:-1]
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
            raise self._too_large(path)
        return data

    def _too_large(self, path: str) -> UnreadableError:
        return UnreadableError(
            f"{self.url}{path}: its answer is larger than {megabytes(MOST_BYTES)}"
        )

    def _part(self, path: str, data: bytes) -> AnswerPart:
        where = f"{self.url}{path}"
        if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise UnreadableError(f"{where}: its answer has more than {MOST_VALUES} values")
        try:
            return AnswerPart(_json(data), where)
        except ValueError as error:
            raise UnreadableError(f"{where}: the answer is not JSON: {error}") from None


def _check_url(url: str) -> None:
    """InputError where nothing could be asked at the URL."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that are none
        whole = False
    if not whole:
        raise InputError(f"url must begin with http:// or https:// and a host, not {url!r:.80}")


def _json(data: bytes | str) -> Any:
    """ValueError, in a few words, where this is no JSON."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError:
        raise ValueError(f"{data!r:.80}") from None


def _message(said: str) -> tuple[str, Mapping[str, Any] | None]:
    """The sentence in an error's body, as OpenAI, Ollama and FastAPI have it, and the error.

    Else the body, and none.
    """
    try:
        body = _json(said)
    except ValueError:
        return said[:200], None
    told = body.get("error", body.get("detail", said)) if isinstance(body, dict) else said
    if isinstance(told, dict):
        return str(told.get("message", told))[:300], told
    return str(told)[:300], None
