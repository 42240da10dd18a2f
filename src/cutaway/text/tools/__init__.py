"""Tools that a model may call: offered, forced and found in its text.

Knows OpenAI's forms of tools and choices, the dialects in which models write calls, and from one
description of a dialect both the grammar that forces a call and the call parser that finds it.

The call parser is here: it splits the text of an answer into what is said and what is called, while
it is written. Every delta is made of bytes that have passed: none is given back, and none holds
half a character or the beginning of what may be a call. It refuses to know tokens, and whether
arguments are valid: the grammar of the same dialect saw to it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cutaway.text.characters import TextStream
from cutaway.text.tools.argument_reader import JsonReader, ParameterReader, reader
from cutaway.text.tools.dialect import ID_LENGTH, Dialect, Slot, call_id, joined
from cutaway.text.tools.grammar import RAW, around, grammar
from cutaway.text.tools.tool import Tool, ToolChoice, parse_choice, parse_tools, tool_of

_BLANK = b" \t\r\n"
_NAME = re.compile(rb"[A-Za-z0-9_-]+")
_NUMBER = re.compile(rb"[0-9]+")
_ID = re.compile(rb"[A-Za-z0-9]{1,%d}" % ID_LENGTH)


@dataclass(frozen=True)
class Content:
    """Text that is said."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins: its place among the answer's calls, its id, the tool."""

    index: int
    id: str
    tool: Tool


@dataclass(frozen=True)
class Arguments:
    """More of a call's arguments: JSON of a function's, plain text of a custom tool's."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A call is complete."""

    index: int


Delta = Content | CallStart | Arguments | CallEnd


class CallParser:
    """One answer.

    new_id:   makes the id of a call from its index
    required: whether the answer must be a call, so that its beginning is never content
    """

    def __init__(
        self,
        dialect: Dialect,
        tools: Iterable[Tool],
        new_id: Callable[[int], str],
        required: bool = False,
    ) -> None:
        self._dialect, self._new_id, self._required = dialect, new_id, required
        self._tools = {tool.name.encode(): tool for tool in tools}
        self._first = _encoded(dialect.opening)
        self._literal = self._first[0] if isinstance(self._first[0], bytes) else b""
        self._next = _encoded((dialect.between, *dialect.head))
        self._state: Callable[[], list[Delta]] = self._saying
        self._held = b""
        self._begun = False  # whether anything was given as content
        self._calls = 0
        self._text = TextStream()
        self._reader: JsonReader | ParameterReader = JsonReader(Tool(""))
        self._tail: _Parts = ()

    def push(self, data: bytes) -> list[Delta]:
        """What is certain after these bytes, perhaps nothing."""
        self._held += data
        found: list[Delta] = []
        while True:
            state, size = self._state, len(self._held)
            found += state()
            if (self._state, len(self._held)) == (state, size):
                return found

    def finish(self) -> list[Delta]:
        """The end of the answer: the deltas that this makes certain."""
        found: list[Delta] = []
        if self._state == self._saying:
            found = [] if self._required else self._content(self._last_words(), last=True)
        elif self._state == self._raw:
            found = self._raw_end()
        self._held = b""
        return found

    @property
    def lacks_mark(self) -> bool:
        """Whether all of a call is there but its closing mark, as where it repeats another."""
        return self._state == self._closing

    def _saying(self) -> list[Delta]:
        """Content, up to what may be the beginning of a call."""
        at, head = 0, None
        while (at := self._candidate(at)) < len(self._held):
            head = self._head(self._first, self._held[at:])
            if head is not _NO:
                break
            at += 1
        text = self._held[:at].rstrip(_BLANK)
        if head is None or head is _NO:
            self._held = self._held[len(text) :]
            return self._content(text)
        self._held = self._held[at:]
        return [*self._content(text, last=True), *self._start(head)]

    def _candidate(self, at: int) -> int:
        """Where a call may begin, at or after ``at``; the end if nowhere."""
        if not self._dialect.trigger:
            return 0 if at == 0 and not self._begun and not self._calls else len(self._held)
        found = self._held.find(self._literal[:1], at)
        return found if found >= 0 else len(self._held)

    def _last_words(self) -> bytes:
        """The content at the end: all but an unfinished call, and white space after calls."""
        trigger = self._dialect.trigger.encode() or self._literal
        words = self._held
        cut = self._candidate(0)
        if words[cut:].startswith(trigger):
            return words[:cut].rstrip(_BLANK)
        return words.rstrip(_BLANK) if self._calls else words

    def _content(self, data: bytes, last: bool = False) -> list[Delta]:
        if self._calls and not self._begun:
            data = data.lstrip(_BLANK)
        self._begun |= bool(data)
        text = self._text.push(data) + (self._text.flush() if last else "")
        return [Content(text)] if text else []

    def _head(self, parts: "_Parts", data: bytes) -> "_Head | None":
        """How a call begins: None if more bytes are needed, _NO if it is none."""
        at, tool = 0, None
        for part in parts:
            size = _size(part, data[at:])
            if size is None or size < 0:
                return None if size is None else _NO
            if part is Slot.NAME:
                tool = self._tools.get(data[at : at + size])
                if tool is None:
                    return _NO
            at += size
        assert tool is not None
        size = _size(around(self._dialect, tool)[0].encode(), data[at:])
        if size is None or size < 0:
            return None if size is None else _NO
        return _Head(at + size, tool)

    def _start(self, head: "_Head") -> list[Delta]:
        self._held = self._held[head.size :]
        self._text, self._tail = TextStream(), _encoded(around(self._dialect, head.tool)[1])
        first = self._tail[0] if self._tail else b""
        behind = first if isinstance(first, bytes) else b""
        self._reader = reader(self._dialect.form, head.tool, behind)
        self._state = self._raw if head.tool.format == RAW else self._arguments
        return [CallStart(self._calls, self._new_id(self._calls), head.tool)]

    def _arguments(self) -> list[Delta]:
        text, rest = self._reader.push(self._held)
        self._held = rest or b""
        if rest is not None:
            self._state = self._closing
        return [Arguments(self._calls, text)] if text else []

    def _closing(self) -> list[Delta]:
        at = 0
        for part in self._tail:
            size = _size(part, self._held[at:])
            if size is None:
                return []
            at += max(size, 0)
        self._held = self._held[at:]
        return self._end()

    def _raw(self) -> list[Delta]:
        """Text that ends where the answer does: all but as many bytes as its closing has."""
        size = max(len(self._held) - _length(self._tail), 0)
        text = self._text.push(self._held[:size])
        self._held = self._held[size:]
        return [Arguments(self._calls, text)] if text else []

    def _raw_end(self) -> list[Delta]:
        """A closing, or the text up to what may be the beginning of one."""
        if _matched(self._tail, self._held) == len(self._held) == _length(self._tail):
            return self._end()
        size = 0
        while size < len(self._held) and _matched(self._tail, self._held[size:]) is not None:
            size += 1
        text = self._text.push(self._held[:size])
        return [Arguments(self._calls, text)] if text else []

    def _end(self) -> list[Delta]:
        self._calls += 1
        self._text, self._begun = TextStream(), False
        self._state = self._between
        return [CallEnd(self._calls - 1)]

    def _between(self) -> list[Delta]:
        """Behind a call: the next one, the end of all, or (where nothing forces it) content."""
        if not self._dialect.many:
            self._state = self._saying
            return []
        if not self._held:
            return []
        head = self._head(self._next, self._held)
        if isinstance(head, _Head) and head is not _NO:
            return self._start(head)
        end = _size(self._dialect.end.encode(), self._held) if self._dialect.end else -1
        if head is _NO and end is not None:
            self._held = self._held[max(end, 0) :]
            self._state = self._saying
        return []


_Parts = tuple["bytes | Slot", ...]


@dataclass(frozen=True)
class _Head:
    """A call's beginning: its size in bytes, the tool that it names."""

    size: int
    tool: Tool


_NO = _Head(-1, Tool(""))


def _encoded(parts: Sequence[str | Slot]) -> _Parts:
    return tuple(p if isinstance(p, Slot) else p.encode() for p in joined(parts))


def _size(part: bytes | Slot, data: bytes) -> int | None:
    """Bytes of ``data`` that are this part; None if more are needed, -1 if it is not."""
    if isinstance(part, bytes):
        if data.startswith(part):
            return len(part)
        return None if part.startswith(data) else -1
    pattern = {Slot.NAME: _NAME, Slot.ID: _ID, Slot.NUMBER: _NUMBER}[part]
    match = pattern.match(data)
    size = match.end() if match else 0
    if size == len(data) and not (part is Slot.ID and size == ID_LENGTH):
        return None
    return size or -1


def _matched(parts: _Parts, data: bytes) -> int | None:
    """Bytes of ``data`` that are these parts; None if more are needed, -1 if they are not."""
    at = 0
    for part in parts:
        size = _size(part, data[at:])
        if size is None or size < 0:
            return size
        at += size
    return at


def _length(parts: _Parts) -> int:
    return sum(ID_LENGTH if isinstance(part, Slot) else len(part) for part in parts)
