"""Errors that are answered to a client: an HTTP status and OpenAI's error object."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.errors import CutawayError, ReplayError, ReplicaLostError

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
]
_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Fault(TypedDict):
    """Why a request failed."""

    message: Annotated[str, Field(description="one sentence that names the field and the fix")]
    type: ErrorType
    param: Annotated[str | None, Field(description="the field, where there is one")]
    code: Annotated[str | None, Field(description="an identifier for programs")]


class Error(TypedDict):
    """An error response; in a stream, the last event."""

    error: Fault


class ApiError(CutawayError):
    """An error response.

    status   of HTTP, 400 to 599
    message  one sentence that names the field and the fix
    param    the field, where there is one
    code     an identifier for programs
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
        """OpenAI's error object: {"error": {"message", "type", "param", "code"}}."""
        usual: ErrorType = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, usual)
        error: Fault = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def body(self) -> bytes:
        """The document as JSON bytes."""
        return json.dumps(self.document(), ensure_ascii=False).encode("utf-8", "replace")


def of_text(error: CutawayError) -> ApiError:
    """For what a text failed with while it was written."""
    if isinstance(error, ReplayError):
        return ApiError(409, str(error), param="replay", code="replay_differs")
    if isinstance(error, ReplicaLostError):
        return ApiError(503, str(error), code="replica_lost", headers={"Retry-After": "1"})
    return ApiError(500, str(error), code="text_failed")
