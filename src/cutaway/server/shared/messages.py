"""What the messages of ``/v1/chat/completions`` and ``/v1/responses`` share."""

from typing import Any

from pydantic import BeforeValidator

from cutaway.server.body import Body, Unsupported, refused

ONLY_TEXT = "only text is read and written here; leave it out"
_OPENED = "the model's turn is always opened; leave it out"
TURN_IS_OPENED: Unsupported = {
    "continue_final_message": ((False,), _OPENED),
    "add_generation_prompt": ((True,), _OPENED),
}
CANNOT_THINK = "this server cannot tell a model how much to think; leave it out"


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


def only_types(*types: str) -> BeforeValidator:
    """Refuses parts of messages of other types than these by name."""

    def check(part: Any) -> Any:
        given = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and given not in types:
            readable = ", ".join(types)
            said = f"{{field}}: type {given!r:.40} cannot be read here; {readable} can"
            raise refused(said, code="unsupported_content")
        return part

    return BeforeValidator(check)
