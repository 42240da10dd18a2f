"""Give tools, calls and results to a chat template, or write those that the template ignores.

Renders texts that occur nowhere else, to find which of these the template writes itself. Has
cutaway's own wording for the rest.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutaway.errors import InputError
from cutaway.text.tools.dialect import (
    DEFAULT_DIALECT,
    ID_LENGTH,
    UNRENDERED,
    Dialect,
    RenderMessages,
    as_json,
    call_id,
    find_dialect,
    numbered_id,
    probe_calls,
)
from cutaway.text.tools.tool import Tool

Render = Callable[[Sequence[Mapping[str, Any]], Any], str]  # messages, the variable "tools"

_TOOL = Tool("cutaway_probe_tool", "cutaway probe description")
_MARK = "cutaway probe mark"
_USER = {"role": "user", "content": "cutaway probe question"}
_PHI_SYSTEM = "You are a helpful assistant with some tools."


@dataclass(frozen=True)
class ToolSupport:
    """How the template takes tools.

    dialect:   how the model writes calls; None with a ``refusal`` that gives the reason
    place:     where the tools go: the template's "variable", the "system" message's field
               "tools", or cutaway's own text ("ours")
    calls:     whether the template writes ``tool_calls``
    results:   whether it writes messages of the role "tool"
    system:    whether it takes a system message
    text_arguments: whether it takes a call's arguments as a string of JSON
    short_ids: whether it takes only ids of nine letters and digits
    """

    dialect: Dialect | None
    refusal: tuple[str, ...]
    place: str
    calls: bool
    results: bool
    system: bool
    text_arguments: bool
    short_ids: bool

    @classmethod
    def probe(cls, source: str, render: Render) -> "ToolSupport":
        """Find the fields by rendering probes."""
        tools = [_TOOL.describe()]
        place = _place(render, tools)
        dialect, refusal, text_arguments = _dialect(lambda messages: render(messages, tools))
        calls = dialect is not None or bool(refusal)
        if not calls:
            marks = (candidate for mark, candidate in UNRENDERED.items() if mark in source)
            dialect = next(marks, DEFAULT_DIALECT)

        def shows(*messages: Mapping[str, Any]) -> bool:
            return _MARK in _render_or_empty(render, messages, tools)

        call_message = _calls(_IDS[0], calls, text_arguments)
        result = {"role": "tool", "content": _MARK, "name": "cutaway_probe_a"}
        conversation = [_USER, call_message, result | {"tool_call_id": _IDS[0]}]
        longer = _render_or_empty(render, [_USER, _calls(_IDS[1], calls, text_arguments)], tools)
        return cls(
            dialect,
            refusal,
            place,
            calls,
            results=(place != "ours" or calls) and shows(*conversation),
            system=shows({"role": "system", "content": _MARK}, _USER),
            text_arguments=text_arguments,
            short_ids=calls and not longer,
        )

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Return (messages, the variable "tools") as the template takes them."""
        if self.dialect and self.dialect.numbers:
            messages = _number_calls(messages)
        copies = [self._message(message) for message in messages]
        if not self.results:
            copies = _results_as_turns(copies)
        descriptions = [tool.describe() for tool in tools]
        if not tools:
            return copies, None
        if self.place == "variable":
            return copies, descriptions
        if self.place == "system":
            if copies[0]["role"] != "system":
                copies.insert(0, {"role": "system", "content": _PHI_SYSTEM})
            copies[0]["tools"] = as_json([tool["function"] for tool in descriptions])
            return copies, None
        return self._introduce_tools(copies, descriptions), None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(message)
        if self.short_ids and isinstance(copy.get("tool_call_id"), str):
            copy["tool_call_id"] = _short(copy["tool_call_id"])
        if copy["role"] != "assistant" or "tool_calls" not in copy:
            return copy
        copy["tool_calls"] = calls = [self._call(call) for call in copy["tool_calls"]]
        if not self.calls and self.dialect is not None:
            del copy["tool_calls"]
            calls_text = self.dialect.write(
                (call["function"]["name"], as_json(call["function"]["arguments"]), call["id"])
                for call in calls
            )
            copy["content"] = "\n".join(filter(None, [copy["content"], calls_text]))
        return copy

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if self.text_arguments:
            function["arguments"] = as_json(function["arguments"])
        return {
            **call,
            "id": _short(call["id"]) if self.short_ids else call["id"],
            "function": function,
        }

    def _introduce_tools(
        self, messages: list[dict[str, Any]], descriptions: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Describe the tools, in cutaway's own words, in the first message."""
        assert self.dialect is not None
        example = self.dialect.write([("NAME", '{"ARGUMENT": "VALUE"}', "0" * ID_LENGTH)])
        text = _INTRODUCTION.format(
            tools="\n".join(as_json(tool["function"]) for tool in descriptions), example=example
        )
        role = "system" if self.system else "user"
        first = messages[0]
        if first["role"] == role:
            parts = (first["content"], text) if self.system else (text, first["content"])
            return [{**first, "content": "\n\n".join(filter(None, parts))}, *messages[1:]]
        return [{"role": role, "content": text}, *messages]


_INTRODUCTION = """\
You can call these tools, each described by a JSON schema:
<tools>
{tools}
</tools>
To call a tool, write its name and its arguments as JSON in this form, and nothing behind it:
{example}
Its result is then given to you between <tool_response> and </tool_response>."""

_IDS = ("cutProbe1", "call_cutaway_probe_1")


def _render_or_empty(render: Render, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
    """Render the messages; "" if the template refuses them."""
    try:
        return render(messages, tools)
    except InputError:
        return ""


def _place(render: Render, tools: Sequence[Mapping[str, Any]]) -> str:
    if _TOOL.name in _render_or_empty(render, [_USER], tools):
        return "variable"
    system = {"role": "system", "content": _MARK, "tools": json.dumps(tools)}
    return "system" if _TOOL.name in _render_or_empty(render, [system, _USER], None) else "ours"


def _dialect(render: RenderMessages) -> tuple[Dialect | None, tuple[str, ...], bool]:
    """Return (dialect or None, the refusal, whether calls take arguments as text)."""
    refusal: tuple[str, ...] = ()
    for as_text in (False, True):
        try:
            dialect = find_dialect(render, as_text)
        except InputError as error:
            refusal = refusal or error.args
            continue
        if dialect is not None:
            return dialect, (), as_text
    return None, refusal, False


def _calls(identity: str, writes_calls: bool, as_text: bool) -> dict[str, Any]:
    """Return an assistant's message, with one call if the template writes calls."""
    [call] = probe_calls(1, as_text)
    message = {"role": "assistant", "content": "" if writes_calls else "cutaway probe call"}
    return message | ({"tool_calls": [call | {"id": identity}]} if writes_calls else {})


def _short(identity: str) -> str:
    fits = len(identity) == ID_LENGTH and identity.isascii() and identity.isalnum()
    return identity if fits else call_id(identity, 0)


def _number_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages; give each call an id that contains its number in the conversation."""
    ids: dict[str, str] = {}
    copies = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            ids[call["id"]] = numbered_id(call["function"]["name"], len(ids))
            calls.append({**call, "id": ids[call["id"]]})
        result_id = message.get("tool_call_id")
        copies.append({**message, **({"tool_calls": calls} if calls else {})})
        copies[-1] |= {"tool_call_id": ids[result_id]} if result_id in ids else {}
    return copies


def _results_as_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn results of tools into messages of the user; adjacent results share one message."""
    turns: list[dict[str, Any]] = []
    joins = False
    for message in messages:
        is_result = message["role"] == "tool"
        if not is_result:
            turns.append(message)
        else:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if joins:
                turns[-1]["content"] += f"\n{text}"
            else:
                turns.append({"role": "user", "content": text})
        joins = is_result
    return turns
