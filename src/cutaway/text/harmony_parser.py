"""Harmony's messages, taken apart while they are written.

Knows the marks of a message, its header (channel and recipient) and what each channel is to a
client. Refuses to know tokens: a mark is fed as a byte that no text has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from cutaway.text.stream import TextStream
from cutaway.text.thinking import Thought
from cutaway.text.tools.call_parser import CallParser, Content, Delta
from cutaway.text.tools.dialect import Dialect, Slot
from cutaway.text.tools.tool import Tool

MARKS = {
    name: bytes([0xF8 + index])  # which UTF-8 has no use for
    for index, name in enumerate(
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>",
         "<|call|>")
    )
}  # fmt: skip
"""A control token -> the byte that it is fed as."""

START, CHANNEL, _, MESSAGE, END, RETURN, CALL = MARKS.values()
_MARK = re.compile(rb"([\xf8-\xfe])")
_CHANNEL = re.compile(rb"\xf9\s*(\w+)")
_RECIPIENT = re.compile(rb"\bto=functions\.([^\s\xf8-\xfe]+)")
BARE = Dialect(("<call>", Slot.NAME, "<arguments>"), ())
"""Calls as the inner parser reads them: what is around them is for the channels to know."""


class HarmonyParser:
    """One answer, from within the header of its first message.

    A message to a tool is a call, one of the channel "analysis" is a thought, any other is said.
    """

    def __init__(self, tools: Sequence[Tool], new_id: Callable[[int], str]) -> None:
        self._names = {tool.name.encode() for tool in tools}
        self._calls = CallParser(BARE, tools, new_id, required=True)
        self._header: bytes | None = b""  # None within a message's text
        self._kind: type[Thought] | type[Content] | None = None  # None: a call
        self._text = TextStream()
        self._said = set[type]()  # kinds that have had a message

    @property
    def thinks(self) -> bool:
        """Whether what comes next is of a thought."""
        return self._header is None and self._kind is Thought

    def push(self, data: bytes) -> list[Thought | Delta]:
        """What is certain after these bytes."""
        found: list[Thought | Delta] = []
        for piece in filter(None, _MARK.split(data)):
            found += self._take(piece)
        return found

    def finish(self) -> list[Thought | Delta]:
        """The end of the answer: the deltas that this makes certain."""
        return [*self._close()] if self._header is None else []

    def _take(self, piece: bytes) -> Iterable[Thought | Delta]:
        """A mark, or bytes between marks."""
        if self._header is None:
            if not _MARK.match(piece):
                return self._grow(piece)
            self._header = piece if piece == CHANNEL else b""
            return self._close()
        if piece == MESSAGE:
            return self._open(self._header)
        self._header = b"" if piece in (START, END, RETURN, CALL) else self._header + piece
        return ()

    def _open(self, header: bytes) -> Iterable[Thought | Delta]:
        channel, to = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._header, self._text = None, TextStream()
        if to and to[1] in self._names:
            self._kind = None
            return self._calls.push(b"<call>" + to[1] + b"<arguments>")
        self._kind = Thought if channel and channel[1] == b"analysis" else Content
        again = self._kind in self._said
        self._said.add(self._kind)
        return [self._kind("\n")] if again else []

    def _grow(self, data: bytes) -> Iterable[Thought | Delta]:
        if self._kind is None:
            return self._calls.push(data)
        text = self._text.push(data)
        return [self._kind(text)] if text else []

    def _close(self) -> Iterable[Thought | Delta]:
        if self._kind is None:
            return self._calls.finish()
        text = self._text.flush()
        return [self._kind(text)] if text else []
