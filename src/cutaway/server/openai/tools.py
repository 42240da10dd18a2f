"""Tools in requests and answers of ``/v1/chat/completions`` and ``/v1/responses``.

Knows OpenAI's fields and reasons. Refuses to know how a model writes a call: ``text.tools`` does.
"""

from typing import Any

from cutaway.api.tools import AnswerReader, ToolUse
from cutaway.engine import Ended
from cutaway.server.http.errors import ApiError
from cutaway.server.openai import common
from cutaway.server.openai.chat_schemas import CallPiece, ChatReason
from cutaway.server.service import Service
from cutaway.text.tools import Arguments, CallStart

Tools = list[dict[str, Any]]
Choice = str | dict[str, Any]


def use_of(
    service: Service, tools: Tools | None, choice: Choice | None, parallel: bool | None
) -> ToolUse:
    """The tools of a request, checked; InputError for those that cannot be."""
    if tools is None and choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
    return ToolUse(service.llm.model, tools or (), choice, parallel is not False)


def piece(delta: CallStart | Arguments, reader: AnswerReader) -> CallPiece:
    """What a chat's event adds to a call: in its first piece who is called."""
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
