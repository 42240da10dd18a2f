"""Harmony, the format of gpt-oss: an answer is one or several messages, each in a channel.

Knows the channels: "analysis" has thoughts, "commentary" has tool calls and the text before them,
"final" has the answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cutaway.text.message_form import ANSWER, MESSAGE, START, MessageForm, mark_bytes
from cutaway.text.thinking import Thought, lark_string
from cutaway.text.tools import Content
from cutaway.text.tools.dialect import Dialect, Slot
from cutaway.text.tools.grammar import arguments, arguments_frame
from cutaway.text.tools.tool import Tool

CHANNEL, END = "<|channel|>", "<|end|>"
MARKS = mark_bytes(START, CHANNEL, "<|constrain|>", MESSAGE, END, "<|return|>", "<|call|>")
_CHANNEL = re.compile(rb"\xf9\s*(\w+)")
_RECIPIENT = re.compile(rb"\bto=functions\.([^\s\xf8-\xfe]+)")
_ANALYSIS, _PREAMBLE, _FINAL = (
    f"{CHANNEL}{name}{MESSAGE}" for name in ("analysis", "commentary", "final")
)


@dataclass(frozen=True)
class Harmony(MessageForm):
    """How a model of gpt-oss's kind writes its answers.

    A message to a tool is a call, one in the channel "analysis" a thought, any other is content.
    """

    before: str = _ANALYSIS
    after: str = f"{END}{ANSWER}"
    marks = MARKS
    in_headers = (CHANNEL, "<|constrain|>")
    final, preamble = _FINAL, _PREAMBLE
    calls = Dialect(("<call>", Slot.NAME, "<arguments>"), ())

    def meaning(self, header: bytes, tools: Collection[bytes]) -> type[Thought | Content] | bytes:
        """Return what a message in this channel, to this recipient, is."""
        channel, to = _CHANNEL.search(header), _RECIPIENT.search(header)
        if to and to[1] in tools:
            return b"<call>" + to[1] + b"<arguments>"
        return Thought if channel and channel[1] == b"analysis" else Content

    def _calls(
        self,
        tools: Sequence[Tool],
        several: bool,  # noqa: ARG002 - a call ends the text
        required: bool,  # noqa: ARG002 - nothing can follow it
    ) -> tuple[str, list[str]]:
        names = range(len(tools))
        return "call", [
            "call: " + " | ".join(f"call_{index}" for index in names),
            *map(self._call, names, tools),
            *map(arguments, names, tools),
            f"format: {self._format}",
        ]

    def _call(self, index: int, tool: Tool) -> str:
        """Return the rule of a call: models write the recipient before or after the channel."""
        to = lark_string(f" to=functions.{tool.name}")
        channel = self._literal(f"{CHANNEL}commentary")
        opening, closing = arguments_frame(self.calls, tool)
        text = " ".join(
            filter(None, [lark_string(opening) if opening else "", f"arguments_{index}"])
        )
        ending = self._literal("".join(part for part in closing if isinstance(part, str)))
        end = self._literal("<|call|>") if "<|call|>" in self.control else ""
        header = f"({channel} {to} | {to} {channel}) format? {self._literal(MESSAGE)}"
        return f"call_{index}: {header} {text} {ending} {end}"

    @property
    def _format(self) -> str:
        """The Lark expression of a header's note that the arguments are JSON."""
        mark = self._literal("<|constrain|>json")
        return '" json"' + (f' | " "? {mark}' if "<|constrain|>" in self.control else "")
