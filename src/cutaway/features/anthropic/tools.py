"""Tools in Anthropic's requests."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cutaway.errors import InputError
from cutaway.features.anthropic.blocks import CacheControl
from cutaway.requests.tools import ToolUse
from cutaway.server.body import Body, Unsupported, optional, refused
from cutaway.server.service import Service
from cutaway.server.shared.conversing import Conversing


class ClientTool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="of the arguments")
    strict: bool | None = optional("as if true: arguments keep to input_schema")
    eager_input_streaming: bool | None = optional(
        "ignored: arguments are streamed as they are written"
    )
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {
        "defer_loading": (
            (False,),
            "there is no tool search here; offer the tools that are needed",
        ),
        "allowed_callers": (([], ["direct"]), "tools are called by the model alone; leave it out"),
        "input_examples": (([],), "templates have no place for it; write it into description"),
    }

    def as_function(self) -> dict[str, Any]:
        """As the room of tools takes it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
        }


def _own(tool: Any) -> Any:
    """Refuse, by name, tools that run at Anthropic."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in (None, "custom"):
        raise refused(
            f"{{field}}: type {kind!r:.40} is not known here; give tools with input_schema",
            code="unsupported_tool",
        )
    return tool


class MessagesToolChoice(Body):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = optional("of the tool that must be called")
    disable_parallel_tool_use: bool | None = optional("at most one call an answer")

    def said(self) -> Any:
        """As the room of tools takes it."""
        if self.type == "tool":
            return {"type": "function", "name": self.name}
        return "required" if self.type == "any" else self.type


class WithMessagesTools(Conversing):
    """A conversation whose answer may call tools, in Anthropic's form."""

    tools: list[Annotated[ClientTool, BeforeValidator(_own)]] | None = optional(
        "what the answer may call", fail_fast=True
    )
    tool_choice: MessagesToolChoice | None = optional("default auto")

    def _checked(self, service: Service) -> ToolUse:
        choice = self.tool_choice or MessagesToolChoice.model_validate({"type": "auto"})
        if not self.tools and choice.type not in ("none", "auto"):
            raise InputError("tool_choice needs tools")
        if (choice.type == "tool") != (choice.name is not None):
            raise InputError('tool_choice.name goes with type "tool": give both, or neither')
        tools = [tool.as_function() for tool in self.tools or ()]
        try:
            parallel = not choice.disable_parallel_tool_use
            return ToolUse(service.llm.model, tools, choice.said(), parallel, self.wish(service))
        except InputError as error:
            raise InputError(str(error).replace(".parameters", ".input_schema")) from None
