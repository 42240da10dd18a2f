"""Tools in requests and answers of ``/v1/chat/completions`` and ``/v1/responses``."""

import json
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import from_json

from cutaway.engine import Ended
from cutaway.errors import InputError
from cutaway.requests.answer import AnswerReader
from cutaway.requests.tools import ToolUse
from cutaway.server.body import optional
from cutaway.server.service import Service
from cutaway.server.shared import common
from cutaway.server.shared.chat_schemas import CallPiece, ChatReason
from cutaway.server.shared.conversing import Conversing
from cutaway.text.tools import Arguments, CallStart

Tools = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Choice = str | dict[str, Any]


def arguments_of(call: str) -> dict[str, Any]:
    """A call's arguments as an object; of a call that was cut, as far as they came.

    Empty where Python has no value for what the schema lets pass, such as 1e999.
    """
    try:
        value = from_json(call or "{}", allow_partial="trailing-strings")
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class WithTools(Conversing):
    """A conversation whose answer may call tools, in OpenAI's forms."""

    tools: Tools | None = optional("what the answer may call")
    tool_choice: Choice | None = optional(
        "none, auto, required, a tool, or allowed_tools; default auto"
    )
    parallel_tool_calls: bool | None = optional(
        "whether an answer may have several calls; default true"
    )

    def _checked(self, service: Service) -> ToolUse:
        if self.tools is None and self.tool_choice not in (None, "none", "auto"):
            raise InputError("tool_choice needs tools")
        parallel = self.parallel_tool_calls is not False
        return ToolUse(
            service.llm.model, self.tools or (), self.tool_choice, parallel, self.wish(service)
        )


def piece(delta: CallStart | Arguments, reader: AnswerReader) -> CallPiece:
    """What a chat's event adds to a call: the first piece has the name."""
    is_function = reader.tool(delta.index).format is None
    said: dict[str, str] = {"arguments" if is_function else "input": ""}
    made: CallPiece = {"index": delta.index}
    if isinstance(delta, CallStart):
        made |= {"id": delta.id, "type": "function" if is_function else "custom"}
        said = {"name": delta.tool.name, **said}
    else:
        said = dict.fromkeys(said, delta.text)
    return {**made, "function": said} if is_function else {**made, "custom": said}


def finish_reason(use: ToolUse, reader: AnswerReader, ended: Ended) -> ChatReason:
    """OpenAI's word: "tool_calls" where there is a call, unless the client named its tool."""
    reason = common.finish_reason(ended)
    if reason == "stop" and reader.has_called and not use.choice.named:
        return "tool_calls"
    return reason
