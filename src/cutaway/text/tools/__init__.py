"""Tool calls: offer tools to a model, force a call of one, and find calls in the model's text.

Knows OpenAI's forms of tools and choices, and the dialects in which models write calls. One
description of a dialect defines both the grammar that forces a call and the parser that finds it.

The call parser, below, splits an answer into content and calls while the model writes. A delta is
final, and never has half a character or a possible beginning of a call. The parser does not know
tokens, and does not check arguments: the grammar of the same dialect made them valid.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cutaway.text.characters import TextStream
from cutaway.text.tools.argument_reader import JsonReader, ParameterReader, reader
from cutaway.text.tools.dialect import ID_LENGTH, Dialect, Slot, call_id, join_parts
from cutaway.text.tools.grammar import RAW, arguments_frame, grammar
from cutaway.text.tools.tool import Tool, ToolChoice, parse_choice, parse_tools, tool_of

_BLANK = b" \t\r\n"
_NAME = re.compile(rb"[A-Za-z0-9_-]+")
_NUMBER = re.compile(rb"[0-9]{1,9}")
_ID = re.compile(rb"[A-Za-z0-9]{1,%d}" % ID_LENGTH)


@dataclass(frozen=True)
class Content:
    """Text of the answer outside of calls."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The start of a call: its index among the answer's calls, its id and the tool."""

    index: int
    id: str
    tool: Tool


@dataclass(frozen=True)
class Arguments:
    """The next part of a call's arguments: JSON for a function, plain text for a custom tool."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """The end of a call."""

    index: int


Delta = Content | CallStart | Arguments | CallEnd


class CallParser:
    """Parses one answer.

    new_id:   returns the id of a call, given the call's index
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
        self._longest_name = max(map(len, self._tools), default=0)
        self._first = _encode_parts(dialect.opening)
        self._literal = self._first[0] if isinstance(self._first[0], bytes) else b""
        self._next = _encode_parts((dialect.between, *dialect.head))
        self._state: Callable[[], list[Delta]] = self._saying
        self._pending = b""
        self._has_content = False  # whether content followed the last call
        self._calls = 0
        self._text = TextStream()
        self._reader: JsonReader | ParameterReader = JsonReader(Tool(""))
        self._tail: _Parts = ()

    def push(self, data: bytes) -> list[Delta]:
        """Return the deltas that these bytes make certain."""
        self._pending += data
        deltas: list[Delta] = []
        while True:
            state, size = self._state, len(self._pending)
            deltas += state()
            if (self._state, len(self._pending)) == (state, size):
                return deltas

    def finish(self) -> list[Delta]:
        """End the answer, and return the deltas that this makes certain."""
        deltas: list[Delta] = []
        if self._state == self._saying:
            deltas = [] if self._required else self._content(self._last_words(), last=True)
        elif self._state == self._raw:
            deltas = self._raw_end()
        self._pending = b""
        return deltas

    @property
    def lacks_mark(self) -> bool:
        """Whether a call lacks only its closing mark, as a repeated last call does."""
        return self._state == self._closing

    def _saying(self) -> list[Delta]:
        """Return content up to a possible beginning of a call."""
        at, head = 0, None
        while (at := self._candidate(at)) < len(self._pending):
            head = self._head(self._first, self._pending[at:])
            if head is not _NO:
                break
            at += 1
        text = self._pending[:at].rstrip(_BLANK)
        if head is None or head is _NO:
            self._pending = self._pending[len(text) :]
            return self._content(text)
        self._pending = self._pending[at:]
        return [*self._content(text, last=True), *self._start(head)]

    def _candidate(self, at: int) -> int:
        """Return where a call may begin, at or after ``at``; the end of the bytes if nowhere."""
        if not self._dialect.trigger:
            return (
                0 if at == 0 and not self._has_content and not self._calls else len(self._pending)
            )
        start = self._pending.find(self._literal[:1], at)
        return start if start >= 0 else len(self._pending)

    def _last_words(self) -> bytes:
        """Return the last content, without an unfinished call, or white space after calls."""
        trigger = self._dialect.trigger.encode() or self._literal
        words = self._pending
        cut = self._candidate(0)
        if words[cut:].startswith(trigger):
            return words[:cut].rstrip(_BLANK)
        return words.rstrip(_BLANK) if self._calls else words

    def _content(self, data: bytes, last: bool = False) -> list[Delta]:
        if self._calls and not self._has_content:
            data = data.lstrip(_BLANK)
        self._has_content |= bool(data)
        text = self._text.push(data) + (self._text.flush() if last else "")
        return [Content(text)] if text else []

    def _head(self, parts: "_Parts", data: bytes) -> "_Head | None":
        """Read the beginning of a call; None: more bytes are needed, _NO: no call begins here."""
        at, tool = 0, None
        for part in parts:
            size = _size(part, data[at:])
            if part is Slot.NAME and size is None and len(data) - at > self._longest_name:
                return _NO  # else a name without end would be read again with each piece
            if size is None or size < 0:
                return None if size is None else _NO
            if part is Slot.NAME:
                tool = self._tools.get(data[at : at + size])
                if tool is None:
                    return _NO
            at += size
        assert tool is not None
        size = _size(arguments_frame(self._dialect, tool)[0].encode(), data[at:])
        if size is None or size < 0:
            return None if size is None else _NO
        return _Head(at + size, tool)

    def _start(self, head: "_Head") -> list[Delta]:
        self._pending = self._pending[head.size :]
        self._text, self._tail = (
            TextStream(),
            _encode_parts(arguments_frame(self._dialect, head.tool)[1]),
        )
        first = self._tail[0] if self._tail else b""
        behind = first if isinstance(first, bytes) else b""
        self._reader = reader(self._dialect.form, head.tool, behind)
        self._state = self._raw if head.tool.format == RAW else self._arguments
        return [CallStart(self._calls, self._new_id(self._calls), head.tool)]

    def _arguments(self) -> list[Delta]:
        text, rest = self._reader.push(self._pending)
        self._pending = rest or b""
        if rest is not None:
            self._state = self._closing
        return [Arguments(self._calls, text)] if text else []

    def _closing(self) -> list[Delta]:
        at = 0
        for part in self._tail:
            size = _size(part, self._pending[at:])
            if size is None:
                return []
            at += max(size, 0)
        self._pending = self._pending[at:]
        return self._end()

    def _raw(self) -> list[Delta]:
        """Return text, but hold back as many bytes as the closing has, for it ends the answer."""
        size = max(len(self._pending) - _length(self._tail), 0)
        text = self._text.push(self._pending[:size])
        self._pending = self._pending[size:]
        return [Arguments(self._calls, text)] if text else []

    def _raw_end(self) -> list[Delta]:
        """End the call at its closing, or return text up to a possible beginning of the closing."""
        if _match_parts(self._tail, self._pending) == len(self._pending) == _length(self._tail):
            return self._end()
        size = 0
        while (
            size < len(self._pending) and _match_parts(self._tail, self._pending[size:]) is not None
        ):
            size += 1
        text = self._text.push(self._pending[:size])
        return [Arguments(self._calls, text)] if text else []

    def _end(self) -> list[Delta]:
        self._calls += 1
        self._text, self._has_content = TextStream(), False
        self._state = self._read_after_call
        return [CallEnd(self._calls - 1)]

    def _read_after_call(self) -> list[Delta]:
        """Read what follows a call: another call, the end of all calls, or (if allowed) content."""
        if not self._dialect.allows_several:
            self._state = self._saying
            return []
        if not self._pending:
            return []
        head = self._head(self._next, self._pending)
        if isinstance(head, _Head) and head is not _NO:
            return self._start(head)
        end = _size(self._dialect.end.encode(), self._pending) if self._dialect.end else -1
        if head is _NO and end is not None:
            self._pending = self._pending[max(end, 0) :]
            self._state = self._saying
        return []


_Parts = tuple["bytes | Slot", ...]


@dataclass(frozen=True)
class _Head:
    """The beginning of a call: its size in bytes, and the tool that it names."""

    size: int
    tool: Tool


_NO = _Head(-1, Tool(""))


def _encode_parts(parts: Sequence[str | Slot]) -> _Parts:
    return tuple(p if isinstance(p, Slot) else p.encode() for p in join_parts(parts))


def _size(part: bytes | Slot, data: bytes) -> int | None:
    """Return the length of this part at the start of ``data``; None: too short, -1: no match."""
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


def _match_parts(parts: _Parts, data: bytes) -> int | None:
    """Return the length of these parts at the start of ``data``; None: too short, -1: no match."""
    at = 0
    for part in parts:
        size = _size(part, data[at:])
        if size is None or size < 0:
            return size
        at += size
    return at


def _length(parts: _Parts) -> int:
    return sum(ID_LENGTH if isinstance(part, Slot) else len(part) for part in parts)
