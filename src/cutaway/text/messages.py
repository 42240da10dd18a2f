"""The messages of a conversation: what a client sends, and what a chat template takes.

Knows the roles' fields, calls of tools and their results, and where they must refer to each other.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cutaway.base import strict_json
from cutaway.base.checks import shown
from cutaway.errors import InputError, Name
from cutaway.text.tools.tool import INPUT, Tool

Message = Mapping[str, Any]
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names for a message's thought


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages, with every call's arguments as an object.

    InputError, with the message's index: a role or content that is missing, arguments that
    are no JSON object, a result of a call that no message made.
    """
    if not messages:
        raise InputError("messages", " is empty: give at least one message")
    made: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # call id -> tool
    for index, message in enumerate(messages):
        where = Name("messages", index)
        if not isinstance(message, Mapping):
            raise InputError(where, ' must be an object with "role" and "content"')
        copy = dict(message)
        if copy.get("role") == "assistant" and "tool_calls" in copy:
            _read_calls(copy, names, where)
        for field in ("role", "content"):
            if not isinstance(copy.get(field), str):
                raise InputError(where, f' needs a "{field}" that is a string')
        if copy["role"] == "tool":
            _name_result(copy, names, where)
        made.append(_with_thought(copy))
    return made


def check_goes_on(last: Message) -> None:
    """InputError unless an answer can continue the last message of a conversation."""
    if last["role"] != "assistant":
        raise InputError(
            "continue_final_message",
            f": the last message is of the role {shown(last['role'])}; end "
            "with the assistant's, which is continued",
        )
    if "tool_calls" in last:
        raise InputError(
            "continue_final_message",
            ": the last message calls tools, and what calls tools has ended; "
            "add their results, or leave out tool_calls",
        )


def _with_thought(message: dict[str, Any]) -> dict[str, Any]:
    """The thought under both names that templates read, as ``transformers`` gives it."""
    thought = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
    if thought is None:
        return message
    return {"thinking": thought, **message, "reasoning_content": thought}


def _read_calls(message: dict[str, Any], names: dict[str, str], where: str) -> None:
    calls = message.pop("tool_calls")
    if calls is None or calls == []:
        return
    if not isinstance(calls, (list, tuple)):
        raise InputError(Name(where, "tool_calls"), f" must be a list of calls, not {shown(calls)}")
    if message.get("content") is None:
        message["content"] = ""
    read = [_call(call, Name(where, "tool_calls", index)) for index, call in enumerate(calls)]
    names.update((call["id"], call["function"]["name"]) for call in read)
    message["tool_calls"] = read


def _call(call: Any, where: str) -> dict[str, Any]:
    kind = call.get("type", "function") if isinstance(call, Mapping) else None
    inner = call.get(kind) if isinstance(call, Mapping) and isinstance(kind, str) else None
    if kind not in ("function", "custom") or not isinstance(inner, Mapping):
        raise InputError(where, ' must be an object with "id" and "function" (or "custom")')
    for field, value in ((("id",), call.get("id")), ((kind, "name"), inner.get("name"))):
        if not isinstance(value, str) or not value:
            raise InputError(Name(where, *field), " must be a string that is not empty")
    arguments = _arguments(inner, where) if kind == "function" else _input(inner, where)
    function = {"name": inner["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


def _arguments(function: Message, where: str) -> dict[str, Any]:
    """OpenAI's clients send a string of JSON; an object does as well."""
    value = function.get("arguments")
    where = Name(where, "function", "arguments")
    try:
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
    except (TypeError, ValueError, RecursionError):
        data = b"null"
    read = strict_json.parse(data, where)
    if not isinstance(read, dict):
        raise InputError(where, f" must be a JSON object (as a string), not {shown(value)}")
    return read


def _input(custom: Message, where: str) -> dict[str, Any]:
    """A custom tool's text, as the argument that it is described by."""
    value = custom.get("input")
    if not isinstance(value, str):
        raise InputError(Name(where, "custom", "input"), f" must be a string, not {shown(value)}")
    return {INPUT: value}


def _name_result(message: dict[str, Any], names: Mapping[str, str], where: str) -> None:
    """Puts the tool's name beside a result, which some templates want."""
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in names:
        raise InputError(
            Name(where, "tool_call_id"),
            f" must be the id of a call in an earlier assistant message, not {shown(call_id)}",
        )
    message["name"] = message.get("name") or names[call_id]


def with_schema(
    messages: Sequence[Message], schema: Any, tools: Sequence[Tool] = ()
) -> list[dict[str, Any]]:
    """A conversation whose first message, of the system or a user, says what the answer is to be.

    No message is added, as not every template has a place for one of the system.
    tools: what the answer may call instead
    """
    said = [dict(message) for message in messages]
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    for message in said:
        if message["role"] in ("system", "user"):
            asked = "Where you call no tool, answer" if tools else "Answer"
            message["content"] += f"\n\n{asked} in JSON of this schema:\n{text}"
            break
    return said
