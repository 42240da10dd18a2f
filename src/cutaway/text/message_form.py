"""Answers that are several messages, each with a header before its text.

Knows what such formats share: marks between messages, thoughts and text before the last message,
the grammar of whole answers, and a parser that takes an answer apart while it is written. What a
header means, and how a call is written, is each format's own: ``harmony``, ``muse``, ``inkling``.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from cutaway.text.characters import TextStream
from cutaway.text.thinking import Thinking, Thought
from cutaway.text.tools import CallParser, Content, Delta
from cutaway.text.tools.dialect import Dialect
from cutaway.text.tools.tool import Tool

if TYPE_CHECKING:
    from cutaway.text.tokenizers import Tokenizer
    from cutaway.text.tools.tool import ToolChoice

START, MESSAGE = "<|start|>", "<|message|>"
ANSWER = f"{START}assistant"
_MARK = re.compile(rb"([\xf8-\xfe])")


def mark_bytes(*names: str) -> dict[str, bytes]:
    """Map the name of each mark to its byte in the parser's input, which UTF-8 never has."""
    return {name: bytes([0xF8 + index]) for index, name in enumerate(names)}


@dataclass(frozen=True)
class MessageForm(Thinking):
    """How a model writes an answer of several messages; see ``Thinking``.

    header  the beginning of the answer's first message, which the prompt has written
    once    whether a grammar allows only one thought, at the beginning, as a budget requires
    """

    header: str = ""
    once: bool = False

    marks: ClassVar[Mapping[str, bytes]]
    """The name of each mark -> its byte in the parser's input."""
    answer: ClassVar[str] = ANSWER
    """The text of a prompt behind which the answer's first header begins."""
    in_headers: ClassVar[Collection[str]] = ()
    """The marks that are parts of a header."""
    openings: ClassVar[Collection[str]] = (MESSAGE,)
    """The marks with which a header ends, and a message's text begins."""
    last: ClassVar[str] = ""
    """The mark after the last message, if another than that which ends the answer."""
    final: ClassVar[str]
    """The header of a message with the answer."""
    preamble: ClassVar[str]
    """The header of a text before a call."""
    calls: ClassVar[Dialect]
    """The form of calls that the inner parser reads, without marks and headers."""
    tags: ClassVar[str] = ""
    """The texts of calls whose tags may be control tokens, too."""

    @classmethod
    def known_to(cls, tokenizer: Tokenizer) -> Self | None:
        """Return the format if the tokenizer has its marks as control tokens, else None."""
        control = tokenizer.control_tokens("".join([*cls.marks, cls.tags]))
        form = cls(control=control)
        headers = form.empty + cls.final
        return form if all(mark in control for mark in cls.marks if mark in headers) else None

    def with_prompt(self, prompt: str) -> Self:
        """Return a copy for answers to a prompt that ends within the assistant's first message."""
        _, begins, header = prompt.rpartition(self.answer)
        header = header if begins else self.final  # a text without messages
        return replace(self, header=header, opened=header == self.before)

    def with_start(self, text: str) -> Self:  # noqa: ARG002 - whatever it is, it is in that message
        """Return a copy for an answer that begins with ``text``.

        Templates put such a beginning into a final message.
        """
        return replace(self, header=self.final, opened=False)

    @property
    def opening(self) -> str:
        """The header of a thought."""
        return self.before

    @property
    def closing(self) -> str:
        """The end of a thought's message, and the beginning of the next."""
        return self.after

    @abstractmethod
    def meaning(self, header: bytes, tools: Collection[bytes]) -> type[Thought | Content] | bytes:
        """Return what a message with this header is: a thought, content or a call.

        Of a call, return the bytes that the parser of calls reads before the message's text.
        header: it ends with the byte of the mark that opens the text
        tools: the names of the tools that may be called
        """

    def parser(self) -> None:
        """Return None, since an answer's parser needs the headers: see ``reader``."""

    def reader(self, tools: Sequence[Tool], new_id: Any) -> MessageParser:
        """Return a parser of one answer. new_id: makes the id of a call from its index."""
        parser = MessageParser(self, tools, new_id)
        parser.push(self._to_parser_bytes(self.header))
        return parser

    def count(self, pieces: Sequence[bytes]) -> int:
        """Count the tokens of thoughts, without marks and headers."""
        parser, count = self.reader((), str), 0
        for piece in pieces:
            parser.push(piece)
            count += parser.thinks and piece not in self.marks.values()
        return count

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """Map control token id -> its bytes in the parser's input: a mark's are in no text."""
        return {i: self.marks.get(name) or name.encode() for name, i in self.control.items()}

    @property
    def grammar(self) -> str:
        """The Lark rules of thoughts and a final message.

        The message's text is the rule ``answer``, which the caller adds.
        """
        return "\n".join(self._messages(f"{self._thoughts} final", "answer"))

    @property
    def any_text(self) -> str:
        """The Lark grammar of whole answers without calls."""
        messages = self._messages(f"{self._before} final", "TEXT")
        return "\n".join(["%llguidance {}", *messages, self._preamble])

    @property
    def _thoughts(self) -> str:
        return "analysis?" if self.once else "analysis*"

    @property
    def _before(self) -> str:
        """The Lark expression of what may come before a call or a final message."""
        return "analysis? preamble*" if self.once else "(analysis | preamble)*"

    @property
    def _preamble(self) -> str:
        return f"preamble: {self._literal(self.preamble)} TEXT {self._literal(self.after)}"

    def with_tools(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        answer_rule: str = "TEXT",
        parallel: bool = True,
    ) -> str:
        """Return the Lark grammar of whole answers that may or must call one of the tools.

        answer_rule: the rule of the final message's text
        parallel: whether one answer may have several calls, if the model writes several
        InputError: no tool may be called; a custom tool's grammar that cannot be nested.
        """
        allowed = choice.require_tools(tools)
        required = choice.mode == "required"
        calls, rules = self._calls(allowed, parallel and not choice.is_named, required)
        before_json = self._before if answer_rule == "TEXT" else self._thoughts  # no preamble
        before_calls = before_json if self.preamble == self.final else self._before
        ways = [f"{before_calls} {calls}"]
        if not required:
            ways.append(f"{before_json} final")
        messages = self._messages(" | ".join(ways), answer_rule)
        return "\n".join(["%llguidance {}", *messages, self._preamble, *rules, ""])

    @abstractmethod
    def _calls(self, tools: Sequence[Tool], several: bool, required: bool) -> tuple[str, list[str]]:
        """Return the expression of an answer's calls, and the rules that it refers to."""

    def _messages(self, whole: str, answer_rule: str) -> list[str]:
        """Return the rules of messages; ``whole`` is the answer if the prompt opened no message."""
        behind = whole.replace("analysis?", "") if self.once else whole
        rest = {"": whole, self.before: f"thought ({behind})"}
        text = f"{answer_rule} {self._literal(self.last)}" if self.last else answer_rule
        begin = rest.get(self.header, text)  # a final message that the prompt has begun
        return [
            f"start: {begin}",
            f"analysis: {self._literal(self.before)} thought",
            f"thought: TEXT {self._literal(self.after)}",
            f"final: {self._literal(self.final)} {text}",
            "TEXT: /(?s:.*)/",
        ]

    def _to_parser_bytes(self, text: str) -> bytes:
        """Return a text with each mark as its byte, as the parser reads it."""
        data = text.encode()
        for name, mark in self.marks.items():
            data = data.replace(name.encode(), mark)
        return data


# -- messages, taken apart ---------------------------------------------------------------------
# The parser gets bytes, no tokens: each mark is one byte that UTF-8 never has.


class MessageParser:
    """Parses one answer, from within the header of its first message."""

    def __init__(self, form: MessageForm, tools: Sequence[Tool], new_id: Any) -> None:
        self._form = form
        self._names = {tool.name.encode() for tool in tools}
        self._openings = {form.marks[name] for name in form.openings}
        self._in_headers = {form.marks[name] for name in form.in_headers}
        self._calls = CallParser(form.calls, tools, new_id)
        self._header: bytearray | None = bytearray()  # None within a message's text
        self._kind: type[Thought | Content] | None = None  # None: a call
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
        is_mark = bool(_MARK.match(piece))
        if self._header is None:
            if not is_mark:
                return self._grow(piece)
            deltas = self._close()
            self._header = bytearray(piece if piece in self._in_headers else b"")
            return [*deltas, *self._open(piece)] if piece in self._openings else deltas
        if piece in self._openings:
            return self._open(bytes(self._header) + piece)
        if is_mark and piece not in self._in_headers:
            self._header.clear()
        else:
            self._header += piece
        return ()

    def _open(self, header: bytes) -> Iterable[Thought | Delta]:
        meaning = self._form.meaning(header, self._names)
        self._header, self._text = None, TextStream()
        if isinstance(meaning, bytes):
            self._kind = None
            return self._calls.push(meaning)
        self._kind = meaning
        again = meaning in self._kinds_seen
        self._kinds_seen.add(meaning)
        return [meaning("\n")] if again else []

    def _grow(self, data: bytes) -> Iterable[Thought | Delta]:
        if self._kind is None:
            return self._calls.push(data)
        text = self._text.push(data)
        return [self._kind(text)] if text else []

    def _close(self) -> Sequence[Thought | Delta]:
        if self._kind is None:
            return self._calls.finish()
        text = self._text.flush()
        return [self._kind(text)] if text else []
