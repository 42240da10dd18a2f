"""Asking another server over HTTP: JSON, and streams of events. Knows no model."""

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from cutaway.errors import CutawayError, InputError

_SILENT_S = 600
"""How long a server may send nothing, such as while it loads a model."""


class RefusedError(CutawayError):
    """The server answered with an error status: it said no, and is there."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


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
        with self._open(path, None) as answer:
            return self._json(path, answer.read())

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer to a body; ``RefusedError`` where it says no."""
        with self._open(path, body) as answer:
            return self._json(path, self._read(path, answer))

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The JSON events of a streamed answer, up to [DONE]."""
        with self._open(path, body) as answer:
            for line in answer:
                if line.startswith(b"data:") and not line[5:].strip().startswith(b"[DONE]"):
                    yield self._json(path, line[5:])

    def model(self) -> str:
        """The name of the first model that it lists; "" where it lists none."""
        try:
            listed = self.get("/v1/models")
            return str(listed["data"][0]["id"])
        except (RefusedError, KeyError, IndexError, TypeError):
            return ""

    def _open(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, self._headers)
        try:
            return urlopen(request, timeout=_SILENT_S)
        except HTTPError as error:
            with error:
                said = error.read(2000).decode("utf-8", "replace")
            words = f"{self.url}{path}: {error.code}: {_message(said)}"
            raise RefusedError(words, error.code) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise CutawayError(f"{self.url}{path}: no answer: {reason}") from None

    def _read(self, path: str, answer: Any) -> bytes:
        try:
            data: bytes = answer.read()
        except (OSError, HTTPException) as error:
            raise CutawayError(f"{self.url}{path}: its answer was cut: {error}") from None
        return data

    def _json(self, path: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError:
            raise CutawayError(f"{self.url}{path}: the answer is not JSON: {data!r:.80}") from None


def _message(said: str) -> str:
    """The sentence in an error's body, as OpenAI, Ollama and FastAPI have it; else the body."""
    try:
        body = json.loads(said)
    except ValueError:
        return said[:200]
    found = body.get("error", body.get("detail", said)) if isinstance(body, dict) else said
    return str(found.get("message", found) if isinstance(found, dict) else found)[:300]
