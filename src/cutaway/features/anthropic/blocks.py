"""The content blocks of messages in Anthropic's requests."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cutaway.server.body import Body, Unsupported, doc, optional
from cutaway.server.shared.messages import ONLY_TEXT, only_types

CacheControl = Annotated[dict[str, Any] | None, doc("ignored: every prefix is cached")]


class TextBlock(Body):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {"citations": (([],), ONLY_TEXT)}


Texts = str | Annotated[list[Annotated[TextBlock, only_types("text")]], Field(fail_fast=True)]


class CallBlock(Body):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {
        "caller": (({"type": "direct"},), "tools are called by the model alone; leave it out")
    }


class ResultBlock(Body):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = optional("ignored with content; without content the model reads: error")
    cache_control: CacheControl = None


class ThoughtBlock(Body):
    """What was thought before an earlier answer, for templates that have a place for it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = optional("ignored")


UserBlock = Annotated[
    TextBlock | ResultBlock, Field(discriminator="type"), only_types("text", "tool_result")
]
AssistantBlock = Annotated[
    TextBlock | CallBlock | ThoughtBlock,
    Field(discriminator="type"),
    only_types("text", "tool_use", "thinking"),
]
