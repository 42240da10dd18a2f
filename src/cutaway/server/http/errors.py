"""What a client is told when it cannot have what it asked for, in the form that OpenAI gave it.

Knows statuses and that form. Refuses to know requests.
"""

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


class Refusal(CutawayError):  # noqa: N818 - an answer
    """An answer that is an error.

    status   of HTTP, 400 to 599
    message  one sentence that names the field and the fix
    param    the field, where there is one
    code     a word that programs compare
    headers  that the answer carries beside its own
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
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}

    def body(self) -> bytes:
        """The same as the bytes of JSON."""
        return json.dumps(self.document(), ensure_ascii=False).encode("utf-8", "replace")
