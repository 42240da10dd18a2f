"""What the messages of ``/v1/chat/completions`` and ``/v1/responses`` share."""

from typing import Any

from pydantic import BeforeValidator

from cutaway.server.body import Body
from cutaway.server.http.errors import ApiError

ONLY_TEXT = "only text is read and written here; leave it out"


class BaseMessage(Body):
    """A message. Developer messages are given to templates as system messages, which all know."""

    role: str
    content: str | list[Any]

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        role = "system" if self.role == "developer" else self.role
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return {"role": role, "content": content}


def text_parts(param: str, *types: str) -> BeforeValidator:
    """Refuses parts of other types than these by name."""

    def check(part: Any) -> Any:
        given = part.get("type") if isinstance(part, dict) else None
        if given not in types:
            raise ApiError(
                400, f"content: a part of type {given!r:.40} cannot be read; only text can",
                param=param, code="unsupported_content",
            )  # fmt: skip
        return part

    return BeforeValidator(check)
