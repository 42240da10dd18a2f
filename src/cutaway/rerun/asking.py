"""Send requests to another server over HTTP: JSON, and streams of events, of any protocol.

Every command that calls a server does it here, so that a key is only sent to the named host,
nothing waits for ever, and no answer fills the memory.
"""

import io
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from math import isfinite
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from cutaway.base.checks import shown
from cutaway.base.progress import megabytes
from cutaway.errors import CutawayError, InputError

# -- a part of a server's answer ---------------------------------------------------------------
# A server may send anything: code that reads its answer asks here for a value of one kind, and gets
# it or an error.


class UnreadableError(CutawayError):
    """A server's answer is not JSON, has no end, or is not of the expected form."""


class AnswerPart:
    """A value in an answer; place: the server's address, and the path to the value, for errors.

    Every method but ``value``, ``has`` and ``get`` raises ``UnreadableError`` if the server sent
    something else.
    """

    def __init__(self, value: Any, place: str) -> None:
        self.value, self.place = value, place

    def __getitem__(self, name: str | int) -> "AnswerPart":
        """Return a field of an object, or an item of a list."""
        if isinstance(name, str):
            if name not in self.fields:
                raise UnreadableError(f"{self.place}: it has no {name}")
            return AnswerPart(self.value[name], f"{self.place}.{name}")
        if not -len(self.items) <= name < len(self.value):
            raise UnreadableError(f"{self.place}: it has {len(self.value)} items, and no {name}")
        return AnswerPart(self.value[name], f"{self.place}[{name}]")

    def __iter__(self) -> Iterator["AnswerPart"]:
        """Return the items of a list."""
        return (self[i] for i in range(len(self.items)))

    def has(self, name: str) -> bool:
        """Return whether this is an object with the field, which is not null."""
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def get(self, name: str) -> "AnswerPart | None":
        """Return the field of an object; None if it is missing or null."""
        return self[name] if self.has(name) else None

    def each(self, name: str) -> list["AnswerPart"]:
        """Return the items of a list that is a field; [] if the field is missing or null."""
        return [*self[name]] if self.has(name) else []

    @property
    def fields(self) -> dict[str, Any]:
        """The value, which must be an object."""
        fields: dict[str, Any] = self._expect(dict, "an object")
        return fields

    @property
    def items(self) -> list[Any]:
        """The value, which must be a list."""
        items: list[Any] = self._expect(list, "a list")
        return items

    @property
    def text(self) -> str:
        """The value, which must be a text without halves of surrogate pairs."""
        text: str = self._expect(str, "a text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.unlike("a text of whole characters") from None
        return text

    @property
    def whole(self) -> int:
        """The value, which must be a whole number, and not a bool."""
        number: int = self._expect(int, "a whole number")
        return number

    @property
    def number(self) -> float:
        """The value, which must be a finite number, and not a bool."""
        number: float = self._expect((int, float), "a number")
        try:
            if isfinite(number):
                return float(number)
        except OverflowError:  # a whole number beyond float64
            pass
        raise self.unlike("a finite number")

    @property
    def logprob(self) -> float | None:
        """The value, which must be a number, or null."""
        return None if self.value is None else self.number

    @property
    def byte_string(self) -> bytes:
        """The value, which must be a list of whole numbers, 0 to 255."""
        try:
            return bytes(part.whole for part in self)
        except ValueError:
            raise self.unlike("a list of bytes") from None

    def unlike(self, kind: str) -> UnreadableError:
        """Return the error of a value that is not what it should be."""
        return UnreadableError(f"{self.place}: it should be {kind}, and is {shown(self.value)}")

    def _expect(self, kind: Any, name: str) -> Any:
        if not isinstance(self.value, kind) or isinstance(self.value, bool):
            raise self.unlike(name)
        return self.value


# -- HTTP with a time limit for whole answers ---------------------------------------------------
# A server that sends a byte now and then must not keep anybody waiting.

SILENT_S = 600
"""How long a server may send nothing, such as while it loads a model."""


class _Arriving(io.RawIOBase):
    """Reads a socket until a time on the clock of ``monotonic``, then raises TimeoutError."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._raw, self._until = sock, sock.makefile("rb", buffering=0), until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left := self._until - monotonic()) <= 0:
            raise TimeoutError("it takes too long")
        self._sock.settimeout(min(left, SILENT_S))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """A socket whose answer must be complete after some seconds."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock, self._until = sock, monotonic() + seconds

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Arriving(self._sock, self._until))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _make_timed(kind: type[HTTPConnection], seconds: float) -> type[HTTPConnection]:
    class Timed(kind):  # type: ignore[valid-type,misc]
        def connect(self) -> None:
            super().connect()
            self.sock: Any = _TimedSocket(self.sock, seconds)

    return Timed


def http_handlers(seconds: float) -> tuple[HTTPHandler, HTTPSHandler]:
    """Return urllib's handlers for connections whose answers may take so many seconds in all."""
    return _Handler(seconds), _SecureHandler(seconds)


class _Handler(HTTPHandler):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._kind = _make_timed(HTTPConnection, seconds)

    def http_open(self, req: Any) -> Any:
        req.timeout = SILENT_S
        return self.do_open(self._kind, req)


class _SecureHandler(HTTPSHandler):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._kind = _make_timed(HTTPSConnection, seconds)

    def https_open(self, req: Any) -> Any:
        req.timeout = SILENT_S
        return self.do_open(self._kind, req)


# -- servers -----------------------------------------------------------------------------------

ANSWER_S = 900
"""How long an answer may take in all."""
PATIENT_S = 86_400
"""How long a stream may take if its reader does not keep it in memory."""

MOST_BYTES = 1 << 27
"""The largest answer, event of a stream, or stream."""
MOST_VALUES = 1 << 24
"""The largest number of values in an answer, counted by brackets and commas; each is 60 bytes."""


class UnansweredError(CutawayError):
    """The server is not reachable, or its answer was cut: another server may answer."""


class RefusedError(CutawayError):
    """The server answered with an error status, or with a redirect.

    error: the object under "error" in its answer, if there is one
    """

    def __init__(self, text: str, status: int = 0, error: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status, self.error = status, error or {}


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the key is for the named server only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, which makes each redirect an ``HTTPError``."""


class Server:
    """A server at a URL, which may end in /v1.

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
        """Return the JSON document at a path; ``RefusedError`` if the server refuses."""
        return self._document(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> AnswerPart:
        """Return the JSON answer to a body; ``RefusedError`` if the server refuses."""
        return self._document(path, body)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[AnswerPart]:
        """Yield the JSON events of a streamed answer, up to [DONE]."""
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
        """Return the name of the first model that the server lists; "" if it lists none."""
        try:
            return self.get("/v1/models")["data"][0]["id"].text
        except (RefusedError, UnreadableError):
            return ""

    def _document(self, path: str, body: Mapping[str, Any] | None) -> AnswerPart:
        with self._open(path, body) as answer:
            data = self._read(path, answer.read)
            if answer.length:  # what is missing of Content-Length
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
        text = self._read(path, lambda _: error.read(20_000)).decode("utf-8", "replace")
        message, body = _message(text)
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
        place = f"{self.url}{path}"
        if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise UnreadableError(f"{place}: its answer has more than {MOST_VALUES} values")
        try:
            return AnswerPart(_json(data), place)
        except ValueError as error:
            raise UnreadableError(f"{place}: the answer is not JSON: {error}") from None


def _check_url(url: str) -> None:
    """Raise InputError for a URL at which there can be no server."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid brackets, or an invalid port
        whole = False
    if not whole:
        raise InputError("url", f" must begin with http:// or https:// and a host, not {url!r:.80}")


def _json(data: bytes | str) -> Any:
    """Parse JSON; raise ValueError, with a few words, if the data is not JSON."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError:
        raise ValueError(f"{data!r:.80}") from None


def _message(text: str) -> tuple[str, Mapping[str, Any] | None]:
    """Return the message and the error in a body as OpenAI, Ollama or FastAPI write it.

    Any other body is itself the message, without an error.
    """
    try:
        body = _json(text)
    except ValueError:
        return text[:200], None
    error = body.get("error", body.get("detail", text)) if isinstance(body, dict) else text
    if isinstance(error, dict):
        return str(error.get("message", error))[:300], error
    return str(error)[:300], None
