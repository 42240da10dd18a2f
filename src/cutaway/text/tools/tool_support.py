"""How one chat template takes tools, calls and their results, and what is done where it does not.

Knows which of these the template writes itself (it is asked, with texts that occur nowhere else),
and our own wording for the rest.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutaway.errors import InputError
from cutaway.text.tools.dialect import (
    ID_LENGTH,
    OURS,
    UNRENDERED,
    Dialect,
    RenderMessages,
    as_json,
    call_id,
    find_dialect,
    numbered,
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

    dialect:   how the model writes calls; None with a ``refusal`` that says why not
    place:     where the tools go: the template's "variable", the "system" message's field
               "tools", or a text of "ours"
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
    def of(cls, source: str, render: Render) -> "ToolSupport":
        """Ask the template."""
        tools = [_TOOL.described()]
        place = _place(render, tools)
        dialect, refusal, text_arguments = _dialect(lambda messages: render(messages, tools))
        calls = dialect is not None or bool(refusal)
        if not calls:
            marks = (known for mark, known in UNRENDERED.items() if mark in source)
            dialect = next(marks, OURS)

        def shows(*messages: Mapping[str, Any]) -> bool:
            return _MARK in _tried(render, messages, tools)

        asked = _calls(_IDS[0], calls, text_arguments)
        result = {"role": "tool", "content": _MARK, "name": "cutaway_probe_a"}
        answered = [_USER, asked, result | {"tool_call_id": _IDS[0]}]
        longer = _tried(render, [_USER, _calls(_IDS[1], calls, text_arguments)], tools)
        return cls(
            dialect,
            refusal,
            place,
            calls,
            results=(place != "ours" or calls) and shows(*answered),
            system=shows({"role": "system", "content": _MARK}, _USER),
            text_arguments=text_arguments,
            short_ids=calls and not longer,
        )

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """(messages, the variable "tools") as the template takes them."""
        if self.dialect and self.dialect.numbers:
            messages = _numbered(messages)
        made = [self._message(message) for message in messages]
        if not self.results:
            made = _results_as_turns(made)
        described = [tool.described() for tool in tools]
        if not tools:
            return made, None
        if self.place == "variable":
            return made, described
        if self.place == "system":
            if made[0]["role"] != "system":
                made.insert(0, {"role": "system", "content": _PHI_SYSTEM})
            made[0]["tools"] = as_json([tool["function"] for tool in described])
            return made, None
        return self._introduced(made, described), None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(message)
        if self.short_ids and isinstance(made.get("tool_call_id"), str):
            made["tool_call_id"] = _short(made["tool_call_id"])
        if made["role"] != "assistant" or "tool_calls" not in made:
            return made
        made["tool_calls"] = calls = [self._call(call) for call in made["tool_calls"]]
        if not self.calls and self.dialect is not None:
            del made["tool_calls"]
            written = self.dialect.write(
                (call["function"]["name"], as_json(call["function"]["arguments"]), call["id"])
                for call in calls
            )
            made["content"] = "\n".join(filter(None, [made["content"], written]))
        return made

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if self.text_arguments:
            function["arguments"] = as_json(function["arguments"])
        return {
            **call,
            "id": _short(call["id"]) if self.short_ids else call["id"],
            "function": function,
        }

    def _introduced(
        self, messages: list[dict[str, Any]], described: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """The messages with a text of ours that describes the tools, first of all."""
        assert self.dialect is not None
        example = self.dialect.write([("NAME", '{"ARGUMENT": "VALUE"}', "0" * ID_LENGTH)])
        text = _INTRODUCTION.format(
            tools="\n".join(as_json(tool["function"]) for tool in described), example=example
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


def _tried(render: Render, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
    """The text, "" where the template refuses or fails."""
    try:
        return render(messages, tools)
    except InputError:
        return ""


def _place(render: Render, tools: Sequence[Mapping[str, Any]]) -> str:
    if _TOOL.name in _tried(render, [_USER], tools):
        return "variable"
    system = {"role": "system", "content": _MARK, "tools": json.dumps(tools)}
    return "system" if _TOOL.name in _tried(render, [system, _USER], None) else "ours"


def _dialect(render: RenderMessages) -> tuple[Dialect | None, tuple[str, ...], bool]:
    """(dialect, why there is none, whether arguments go in as text)."""
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


def _calls(identity: str, written: bool, as_text: bool) -> dict[str, Any]:
    """An assistant's message with one call, where the template writes calls."""
    [call] = probe_calls(1, as_text)
    message = {"role": "assistant", "content": "" if written else "cutaway probe call"}
    return message | ({"tool_calls": [call | {"id": identity}]} if written else {})


def _short(identity: str) -> str:
    fits = len(identity) == ID_LENGTH and identity.isascii() and identity.isalnum()
    return identity if fits else call_id(identity, 0)


def _numbered(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with ids that number the calls of the whole conversation."""
    ids: dict[str, str] = {}
    made = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            ids[call["id"]] = numbered(call["function"]["name"], len(ids))
            calls.append({**call, "id": ids[call["id"]]})
        given = message.get("tool_call_id")
        made.append({**message, **({"tool_calls": calls} if calls else {})})
        made[-1] |= {"tool_call_id": ids[given]} if given in ids else {}
    return made


def _results_as_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools as what the user says next, neighbours in one turn."""
    made: list[dict[str, Any]] = []
    joins = False
    for message in messages:
        is_result = message["role"] == "tool"
        if not is_result:
            made.append(message)
        else:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if joins:
                made[-1]["content"] += f"\n{text}"
            else:
                made.append({"role": "user", "content": text})
        joins = is_result
    return made
