"""The format of Muse Glimmer: an answer is one or several messages, each to a recipient.

Knows the recipients: a message to "self" is a thought, one to "user" is text, one to a tool has a
call between the tags ``atem:function_calls``. An answer may speak, and then call several tools.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cutaway.errors import InputError
from cutaway.text.message_form import ANSWER, MESSAGE, START, MessageForm, mark_bytes
from cutaway.text.thinking import Thought
from cutaway.text.tools import Content
from cutaway.text.tools.dialect import Dialect, Slot
from cutaway.text.tools.grammar import call_rules
from cutaway.text.tools.parameters import ParameterList
from cutaway.text.tools.tool import Tool

_NEXT = f"<|eom|>{ANSWER}"
_RECIPIENT = re.compile(rb"\bto=([^\s\xf8-\xfe]+)")
_VALUE = ('">', "</atem:parameter>\n")


@dataclass(frozen=True)
class Muse(MessageForm):
    """How a model of Muse Glimmer's kind writes its answers."""

    before: str = f" to=self{MESSAGE}"
    after: str = _NEXT
    marks = mark_bytes(START, MESSAGE, "<|eom|>", "<|eot|>")
    final = preamble = f" to=user{MESSAGE}"
    calls = Dialect(
        ('<atem:function_calls>\n<atem:invoke name="', Slot.NAME, '">\n'),
        ("</atem:invoke>\n</atem:function_calls>",),
        form=ParameterList('<atem:parameter name="', _VALUE, _VALUE),
    )
    tags = "".join(part for part in calls.all_parts if isinstance(part, str))

    def meaning(self, header: bytes, tools: Collection[bytes]) -> type[Thought | Content] | bytes:
        """Return what a message to this recipient is; to no tool, it is for the user.

        Templates tell the model that a tool's recipients are its name and whatever follows a dot.
        """
        to = _RECIPIENT.search(header)
        if to is None:
            return Content
        if to[1] == b"self":
            return Thought
        return b"" if to[1].partition(b".")[0] in tools else Content

    def _literal(self, text: str) -> str:
        """Write a text in Lark; a recipient is a lexeme of its own, for names may begin alike."""
        return super()._literal(text).replace('" to=', '" to=" "')

    def _calls(self, tools: Sequence[Tool], several: bool, required: bool) -> tuple[str, list[str]]:
        if reserved := {"self", "user"}.intersection(tool.name for tool in tools):
            name = min(reserved)
            raise InputError(
                f'this model writes to "{name}" without calling a tool; rename the tool "{name}"'
            )
        head = (" to=", Slot.NAME, MESSAGE, *self.calls.head)
        dialect = replace(self.calls, head=head, between=_NEXT, control=self.control)
        return call_rules(dialect, tools, several=several, required=required)
