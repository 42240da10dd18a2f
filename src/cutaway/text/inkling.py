"""The format of Inkling: an answer is one or several messages, each of one kind.

Knows the kinds, which a mark before the message's text tells: a thought, text, or a call, whose
tool is also named before the mark. An answer may think, speak, and then call several tools.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cutaway.text.message_form import MessageForm, mark_bytes
from cutaway.text.thinking import Thought
from cutaway.text.tools import Content
from cutaway.text.tools.dialect import Dialect, Slot
from cutaway.text.tools.grammar import call_rules
from cutaway.text.tools.tool import Tool

_MODEL, _END = "<|message_model|>", "<|end_message|>"
_TEXT, _THINKING, _CALL = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"
_CALL_AS_TEXT = "<|content_invoke_tool_text|>"


@dataclass(frozen=True)
class InklingMessages(MessageForm):
    """How a model of Inkling's kind writes its answers."""

    before: str = _THINKING
    after: str = f"{_END}{_MODEL}"
    marks = mark_bytes(
        _MODEL, _TEXT, _THINKING, _CALL, _CALL_AS_TEXT, _END, "<|content_model_end_sampling|>"
    )
    answer = _MODEL
    openings = (_TEXT, _THINKING, _CALL, _CALL_AS_TEXT)
    final = preamble = _TEXT
    last = _END
    calls = Dialect(('{"name":"', Slot.NAME, '","args":'), ("}",))

    def meaning(self, header: bytes, tools: Collection[bytes]) -> type[Thought | Content] | bytes:
        """Return what a message of this kind is; a call's JSON names the tool, too."""
        name, kind = header[:-1], header[-1:]
        if kind == self.marks[_THINKING]:
            return Thought
        return b"" if kind == self.marks[_CALL] and name in {b"", *tools} else Content

    def _calls(self, tools: Sequence[Tool], several: bool, required: bool) -> tuple[str, list[str]]:
        head = (Slot.NAME, _CALL, *self.calls.head)
        dialect = replace(self.calls, head=head, between=self.after, end=_END, control=self.control)
        return call_rules(dialect, tools, several=several, required=required)
