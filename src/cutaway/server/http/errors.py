"""Error responses: an HTTP status, and an object in the form of the path's API."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.errors import (
    CutawayError,
    DeviceLostError,
    FileChangedError,
    InputError,
    ReplayError,
    ReplicaLostError,
)

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
]
MessagesErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
    "timeout_error",
]
_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MESSAGES_TYPES: Mapping[int, MessagesErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_MESSAGES = re.compile(r"/v1/messages(/.*)?", re.DOTALL)
TOO_LONG = "context_length_exceeded"


class Fault(TypedDict):
    """Why a request failed."""

    message: Annotated[str, Field(description="one sentence that names the field and the fix")]
    type: ErrorType
    param: Annotated[str | None, Field(description="the field, where there is one")]
    code: Annotated[str | None, Field(description="an identifier for programs")]


class Error(TypedDict):
    """An error response; in a stream, the last event."""

    error: Fault


class MessagesFault(TypedDict):
    """Why a request of Anthropic's form failed."""

    type: MessagesErrorType
    message: Annotated[str, Field(description="one sentence that names the field and the fix")]


class MessagesError(TypedDict):
    """An error response in Anthropic's form; in a stream, the last event."""

    type: Literal["error"]
    error: MessagesFault


class OllamaError(TypedDict):
    """An error response in Ollama's form; in a stream, the last line."""

    error: Annotated[str, Field(description="one sentence that names the field and the fix")]


class ApiError(CutawayError):
    """An error that is sent as a response.

    status   the HTTP status, 400 to 599
    message  one sentence that names the field and the fix
    param    the field's path in the request; None if the error is not about a field
    code     an identifier for programs, or None
    headers  additional headers of the response
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def __reduce__(self) -> Any:
        whole = partial(type(self), param=self.param, code=self.code, headers=self.headers)
        return whole, (self.status, self.message)

    def document(self) -> Error:
        """Return OpenAI's error object: {"error": {"message", "type", "param", "code"}}."""
        usual: ErrorType = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, usual)
        error: Fault = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def messages_document(self) -> MessagesError:
        """Return Anthropic's error object: {"type": "error", "error": {"type", "message"}}.

        Anthropic's clients recognise a too long prompt by how the message begins, and shorten the
        prompt.
        """
        usual: MessagesErrorType = "invalid_request_error" if self.status < 500 else "api_error"
        prefix = "prompt is too long: " if self.code == TOO_LONG else ""
        kind = _MESSAGES_TYPES.get(self.status, usual)
        return {"type": "error", "error": {"type": kind, "message": prefix + self.message}}

    def ollama_document(self) -> OllamaError:
        """Return Ollama's error object: {"error": message}."""
        return {"error": self.message}

    def body(self, path: str) -> bytes:
        """Return the document as JSON bytes, in the form of the path's API."""
        document: Any = self.ollama_document() if is_ollama(path) else self.document()
        if is_messages(path):
            document = self.messages_document()
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def is_messages(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return _MESSAGES.fullmatch(path) is not None


def is_ollama(path: str) -> bool:
    """Whether a path belongs to Ollama's API."""
    return path.startswith("/api/")


def to_api_error(error: CutawayError) -> ApiError:
    """Return the error response for a text that failed while it was generated."""
    if isinstance(error, ReplayError):
        return ApiError(409, str(error), param="replay", code="replay_differs")
    if isinstance(error, ReplicaLostError):
        return ApiError(503, str(error), code="replica_lost", headers={"Retry-After": "1"})
    if isinstance(error, DeviceLostError):
        return ApiError(503, str(error), code="device_lost")
    if isinstance(error, FileChangedError):
        file = PurePath(error.args[0]).name  # without the folder, which is private
        return ApiError(503, f"{file}{error.reason}", code="file_changed")
    return ApiError(400 if isinstance(error, InputError) else 500, str(error), code="text_failed")
