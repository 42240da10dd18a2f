"""Turn a client's messages into those that a chat template takes.

Knows the fields of each role, tool calls and their results, and how a result names its call.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from cutaway.base import strict_json
from cutaway.base.checks import shown
from cutaway.errors import InputError, Name
from cutaway.text.tools.tool import INPUT, Tool

Message = Mapping[str, Any]
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # fields of a message's thought


def to_template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return copies of the messages, with the arguments of every call as an object.

    InputError, with the message's index: a role or content is missing, arguments are not a JSON
    object, or a result belongs to no earlier call.
    """
    if not messages:
        raise InputError("messages", " is empty: give at least one message")
    copies: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # call id -> tool
    for index, message in enumerate(messages):
        place = Name("messages", index)
        if not isinstance(message, Mapping):
            raise InputError(place, ' must be an object with "role" and "content"')
        copy = dict(message)
        if copy.get("role") == "assistant" and "tool_calls" in copy:
            _read_calls(copy, names, place)
        for field in ("role", "content"):
            if not isinstance(copy.get(field), str):
                raise InputError(place, f' needs a "{field}" that is a string')
        if copy["role"] == "tool":
            _name_result(copy, names, place)
        copies.append(_with_thought(copy))
    return copies


def check_goes_on(last: Message) -> None:
    """Raise InputError unless an answer can continue the last message of a conversation."""
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
    """Return a message with its thought under both names that templates read."""
    reasoning = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _read_calls(message: dict[str, Any], names: dict[str, str], place: str) -> None:
    calls = message.pop("tool_calls")
    if calls is None or calls == []:
        return
    if not isinstance(calls, (list, tuple)):
        raise InputError(Name(place, "tool_calls"), f" must be a list of calls, not {shown(calls)}")
    if message.get("content") is None:
        message["content"] = ""
    read = [_call(call, Name(place, "tool_calls", index)) for index, call in enumerate(calls)]
    names.update((call["id"], call["function"]["name"]) for call in read)
    message["tool_calls"] = read


def _call(call: Any, place: str) -> dict[str, Any]:
    kind = call.get("type", "function") if isinstance(call, Mapping) else None
    inner = call.get(kind) if isinstance(call, Mapping) and isinstance(kind, str) else None
    if kind not in ("function", "custom") or not isinstance(inner, Mapping):
        raise InputError(place, ' must be an object with "id" and "function" (or "custom")')
    for field, value in ((("id",), call.get("id")), ((kind, "name"), inner.get("name"))):
        if not isinstance(value, str) or not value:
            raise InputError(Name(place, *field), " must be a string that is not empty")
    arguments = _arguments(inner, place) if kind == "function" else _input(inner, place)
    function = {"name": inner["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


def _arguments(function: Message, place: str) -> dict[str, Any]:
    """Parse a call's arguments: a string of JSON, as OpenAI's clients send, or an object."""
    value = function.get("arguments")
    place = Name(place, "function", "arguments")
    try:
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
    except (TypeError, ValueError, RecursionError):
        data = b"null"
    read = strict_json.parse(data, place)
    if not isinstance(read, dict):
        raise InputError(place, f" must be a JSON object (as a string), not {shown(value)}")
    return read


def _input(custom: Message, place: str) -> dict[str, Any]:
    """Return a custom tool's text as ``INPUT``, the only argument that the model writes for it."""
    value = custom.get("input")
    if not isinstance(value, str):
        raise InputError(Name(place, "custom", "input"), f" must be a string, not {shown(value)}")
    return {INPUT: value}


def _name_result(message: dict[str, Any], names: Mapping[str, str], place: str) -> None:
    """Add the tool's name to its result, because some templates need the name."""
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in names:
        raise InputError(
            Name(place, "tool_call_id"),
            f" must be the id of a call in an earlier assistant message, not {shown(call_id)}",
        )
    message["name"] = message.get("name") or names[call_id]


def with_schema(
    messages: Sequence[Message], schema: Any, tools: Sequence[Tool] = ()
) -> list[dict[str, Any]]:
    """Ask for JSON of a schema in the first system or user message of a conversation.

    No message is added, since some templates take no system message.
    tools: the tools that the answer may call instead
    """
    copies = [dict(message) for message in messages]
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    for message in copies:
        if message["role"] in ("system", "user"):
            instruction = "Where you call no tool, answer" if tools else "Answer"
            message["content"] += f"\n\n{instruction} in JSON of this schema:\n{text}"
            break
    return copies


# -- answers of several messages ---------------------------------------------------------------
# Harmony's templates take a thought as "thinking" and one call in a message; text before a call is
# part of the thought. Muse's leave out the text of a message with calls, so it is its own message.
# Inkling's write an empty text before calls where the content is "", and none where it is null.

# Texts that the source of every template of these formats has.
_HARMONY_MARK, _MUSE_MARK = "<|channel|>analysis<|message|>", "to=self<|message|>"
_INKLING_MARK = "invoke_tool_json"


def split_messages(messages: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """Return the messages as the template of this source takes them, one by one.

    InputError for a message that the template would leave out.
    """
    if _HARMONY_MARK in source:
        return _to_harmony(messages)
    if _MUSE_MARK in source:
        return _to_muse(messages)
    return _to_inkling(messages) if _INKLING_MARK in source else messages


def _to_inkling(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with null as the content of those that only call."""
    return [
        {**message, "content": message["content"] or None} if "tool_calls" in message else message
        for message in messages
    ]


def _to_muse(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the text before calls, and its thought, in a message before them."""
    muse_messages: list[dict[str, Any]] = []
    for message in messages:
        if "tool_calls" in message and message["content"]:
            spoken = {k: v for k, v in message.items() if k != "tool_calls"}
            calls = {"role": "assistant", "content": "", "tool_calls": message["tool_calls"]}
            muse_messages += [{**spoken, "end_turn": False}, calls]
        else:
            muse_messages.append(message)
    return muse_messages


def _to_harmony(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with each call followed by its result.

    InputError for a later system message, which these templates would leave out.
    """
    harmony_messages: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if message["role"] in ("system", "developer") and index:
            raise InputError(
                Name("messages", index),
                ": this model's template takes a system message only as the "
                "first; put its text there",
            )
        if message["role"] != "assistant":
            harmony_messages += [message] if message["role"] != "tool" else []
            continue
        reasoning = message.get("reasoning_content") or message.get("thinking")
        plain = {k: v for k, v in message.items() if k not in ("reasoning_content", "thinking")}
        if "tool_calls" not in message:
            harmony_messages.append({**plain, "thinking": reasoning} if reasoning else plain)
            continue
        thinking = "\n".join(filter(None, [reasoning, plain["content"]]))
        results = [*takewhile(lambda m: m["role"] == "tool", messages[index + 1 :])]
        for call in plain["tool_calls"]:
            harmony_messages.append({**plain, "content": "", "tool_calls": [call]})
            harmony_messages[-1] |= {"thinking": thinking} if thinking else {}
            harmony_messages += [
                result for result in results if result["tool_call_id"] == call["id"]
            ]
            thinking = ""
    return harmony_messages
