"""What the messages of ``/v1/chat/completions`` and ``/v1/responses`` share."""

from typing import Any

from pydantic import BeforeValidator, Field, model_validator

from cutaway.server.body import Body, optional, refused

ONLY_TEXT = "only text is read and written here; leave it out"


class TurnFields(Body):
    """Where the prompt of a conversation ends, in vLLM's form."""

    add_generation_prompt: bool | None = optional(
        "whether the assistant's turn is opened: always, unless the last message goes on"
    )
    continue_final_message: bool = Field(
        False, description="ours, as in vLLM: the text goes on from the last, the assistant's"
    )

    @model_validator(mode="after")
    def _one_end(self) -> "TurnFields":
        if self.add_generation_prompt and self.continue_final_message:
            raise refused(
                "{field}: continue_final_message opens no turn: leave one of them out",
                "add_generation_prompt",
            )
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise refused(
                "{field}: the assistant's turn is opened, unless continue_final_message is true: "
                "leave it out",
                "add_generation_prompt",
            )
        return self

    @property
    def goes_on(self) -> bool:
        """Whether the answer continues the last message."""
        return self.continue_final_message


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
