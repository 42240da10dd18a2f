"""Harmony, the format of gpt-oss: an answer is one or several messages, each in a channel.

Knows the channels: "analysis" has thoughts, "commentary" has tool calls and the text before them,
"final" has the answer. Makes the grammar of such answers, and parses them while they are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cutaway.errors import InputError
from cutaway.text.characters import TextStream
from cutaway.text.thinking import Thinking, Thought, lark_string
from cutaway.text.tools import CallParser, Content, Delta
from cutaway.text.tools.dialect import Dialect, Slot
from cutaway.text.tools.grammar import arguments, arguments_frame
from cutaway.text.tools.tool import Tool

if TYPE_CHECKING:
    from cutaway.text.tokenizers import Tokenizer
    from cutaway.text.tools.tool import ToolChoice


# -- messages, taken apart ---------------------------------------------------------------------
# The parser knows the marks of a message, its header (channel and recipient) and what each channel
# means to a client. It gets bytes, no tokens: each mark is one byte that UTF-8 never has.

MARKS = {
    name: bytes([0xF8 + index])  # UTF-8 never has these bytes
    for index, name in enumerate(
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>",
         "<|call|>")
    )
}  # fmt: skip
"""A control token -> its byte in the parser's input."""

START_BYTE, CHANNEL_BYTE, _, MESSAGE_BYTE, END_BYTE, RETURN_BYTE, CALL_BYTE = MARKS.values()
_MARK = re.compile(rb"([\xf8-\xfe])")
_CHANNEL = re.compile(rb"\xf9\s*(\w+)")
_RECIPIENT = re.compile(rb"\bto=functions\.([^\s\xf8-\xfe]+)")
BARE = Dialect(("<call>", Slot.NAME, "<arguments>"), ())
"""The form of calls that the inner parser reads, without marks and headers."""


class HarmonyParser:
    """Parses one answer, from within the header of its first message.

    A message to a tool is a call, one in the channel "analysis" a thought, any other is content.
    """

    def __init__(self, tools: Sequence[Tool], new_id: Callable[[int], str]) -> None:
        self._names = {tool.name.encode() for tool in tools}
        self._calls = CallParser(BARE, tools, new_id, required=True)
        self._header: bytes | None = b""  # None within a message's text
        self._kind: type[Thought] | type[Content] | None = None  # None: a call
        self._text = TextStream()
        self._kinds_seen = set[type]()  # kinds of earlier messages

    lacks_mark = False  # a call ends where its message does

    @property
    def thinks(self) -> bool:
        """Whether the next bytes belong to a thought."""
        return self._header is None and self._kind is Thought

    def push(self, data: bytes) -> list[Thought | Delta]:
        """Return the parts that these bytes make certain."""
        parts: list[Thought | Delta] = []
        for piece in filter(None, _MARK.split(data)):
            parts += self._take(piece)
        return parts

    def finish(self) -> list[Thought | Delta]:
        """End the answer, and return the deltas that this makes certain."""
        return [*self._close()] if self._header is None else []

    def _take(self, piece: bytes) -> Iterable[Thought | Delta]:
        """Take a mark, or bytes between marks."""
        if self._header is None:
            if not _MARK.match(piece):
                return self._grow(piece)
            self._header = piece if piece == CHANNEL_BYTE else b""
            return self._close()
        if piece == MESSAGE_BYTE:
            return self._open(self._header)
        self._header = (
            b"" if piece in (START_BYTE, END_BYTE, RETURN_BYTE, CALL_BYTE) else self._header + piece
        )
        return ()

    def _open(self, header: bytes) -> Iterable[Thought | Delta]:
        channel, to = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._header, self._text = None, TextStream()
        if to and to[1] in self._names:
            self._kind = None
            return self._calls.push(b"<call>" + to[1] + b"<arguments>")
        self._kind = Thought if channel and channel[1] == b"analysis" else Content
        again = self._kind in self._kinds_seen
        self._kinds_seen.add(self._kind)
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


# -- how a model answers -----------------------------------------------------------------------

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_NEXT = f"{END}{START}assistant"
_ANALYSIS, _PREAMBLE, _FINAL = (
    f"{CHANNEL}{name}{MESSAGE}" for name in ("analysis", "commentary", "final")
)


@dataclass(frozen=True)
class Harmony(Thinking):
    """How a model of gpt-oss's kind writes thoughts; see ``Thinking``.

    header  the beginning of the answer's first message, which the prompt has written
    once    whether a grammar allows only one thought, at the beginning, as a budget requires
    """

    before: str = _ANALYSIS
    after: str = _NEXT
    header: str = ""
    once: bool = False

    @classmethod
    def known_to(cls, tokenizer: Tokenizer) -> Harmony | None:
        """Return the format if the tokenizer has the marks as control tokens, else None."""
        control = tokenizer.control_tokens("".join(MARKS))
        marks = (START, CHANNEL, MESSAGE, END)
        return cls(control=control) if all(name in control for name in marks) else None

    def with_prompt(self, prompt: str) -> Harmony:
        """Return a copy for answers to a prompt that ends within the assistant's first message."""
        _, begins, header = prompt.rpartition(f"{START}assistant")
        header = header if begins else _FINAL  # a text without messages
        return replace(self, header=header, opened=header == self.before)

    def with_start(self, text: str) -> Harmony:  # noqa: ARG002 - whatever it is, it is in that channel
        """Return a copy for an answer that begins with ``text``.

        Templates put such a beginning into a final message.
        """
        return replace(self, header=_FINAL, opened=False)

    def parser(self) -> None:
        """Return None, since an answer's parser needs the channels: see ``reader``."""

    def reader(self, tools: Sequence[Tool], new_id: Any) -> HarmonyParser:
        """Return a parser of one answer. new_id: makes the id of a call from its index."""
        parser = HarmonyParser(tools, new_id)
        parser.push(self._to_parser_bytes(self.header))
        return parser

    def count(self, pieces: Sequence[bytes]) -> int:
        """Count the tokens of thoughts, without marks and channel names."""
        parser, count = self.reader((), str), 0
        for piece in pieces:
            parser.push(piece)
            count += parser.thinks and piece not in MARKS.values()
        return count

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """Map control token id -> its byte in the parser's input, which no text has."""
        return {token_id: MARKS[name] for name, token_id in self.control.items()}

    @property
    def grammar(self) -> str:
        """The Lark rules of thoughts and a final message.

        The message's text is the rule ``answer``, which the caller adds.
        """
        return "\n".join(self._messages(f"{self._thoughts} final", "answer"))

    @property
    def any_text(self) -> str:
        """The Lark grammar of whole answers without calls."""
        return "\n".join(
            [
                "%llguidance {}",
                *self._messages(f"{self._before} final", "TEXT"),
                self._preamble,
            ]
        )

    @property
    def _thoughts(self) -> str:
        return "analysis?" if self.once else "analysis*"

    @property
    def _before(self) -> str:
        """The Lark expression of what may come before a call or a final message."""
        return "analysis? preamble*" if self.once else "(analysis | preamble)*"

    @property
    def _preamble(self) -> str:
        return f"preamble: {self._literal(_PREAMBLE)} TEXT {self._literal(_NEXT)}"

    def with_tools(
        self, tools: Sequence[Tool], choice: ToolChoice, answer_rule: str = "TEXT"
    ) -> str:
        """Return the Lark grammar of whole answers that may or must call one of the tools.

        answer_rule: the rule of the final message's text
        InputError: no tool may be called; a custom tool's grammar that cannot be nested.
        """
        allowed = choice.allowed_tools(tools)
        if not allowed:
            raise InputError("tool_choice", " allows no tool; give tools, or generate without")
        ways = [f"{self._before} call"]
        if choice.mode != "required":  # no preamble before the JSON of a schema
            before = self._before if answer_rule == "TEXT" else self._thoughts
            ways.append(f"{before} final")
        names = range(len(allowed))
        return "\n".join(
            [
                "%llguidance {}",
                *self._messages(" | ".join(ways), answer_rule),
                self._preamble,
                "call: " + " | ".join(f"call_{index}" for index in names),
                *map(self._call, names, allowed),
                *map(arguments, names, allowed),
                f"format: {self._format}",
                "",
            ]
        )

    def _messages(self, whole: str, answer_rule: str) -> list[str]:
        """Return the rules of messages; ``whole`` is the answer if the prompt opened no message."""
        behind = whole.replace("analysis?", "") if self.once else whole
        rest = {"": whole, self.before: f"thought ({behind})"}
        begin = rest.get(self.header, answer_rule)  # a final message that the prompt has begun
        return [
            f"start: {begin}",
            f"analysis: {self._literal(self.before)} thought",
            f"thought: TEXT {self._literal(self.after)}",
            f"final: {self._literal(_FINAL)} {answer_rule}",
            "TEXT: /(?s:.*)/",
        ]

    def _call(self, index: int, tool: Tool) -> str:
        """Return the rule of a call: models write the recipient before or after the channel."""
        to = lark_string(f" to=functions.{tool.name}")
        channel = self._literal(f"{CHANNEL}commentary")
        opening, closing = arguments_frame(BARE, tool)
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

    def _to_parser_bytes(self, text: str) -> bytes:
        """Return a text with each mark as its byte, as the parser reads it."""
        data = text.encode()
        for name, mark in MARKS.items():
            data = data.replace(name.encode(), mark)
        return data
