"""Errors that are answered to a client: an HTTP status and OpenAI's error object."""

import json
from collections.abc import Mapping
from typing import Any

from cutaway.errors import CutawayError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(CutawayError):
    """An answer that is an error.

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

    def document(self) -> dict[str, Any]:
        """OpenAI's error object: {"error": {"message", "type", "param", "code"}}."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, usual)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def body(self) -> bytes:
        """The document as JSON bytes."""
        return json.dumps(self.document(), ensure_ascii=False).encode("utf-8", "replace")
