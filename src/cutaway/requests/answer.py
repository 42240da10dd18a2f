"""Parses an answer into thoughts, text and tool calls while it is written."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutaway.engine import Step
from cutaway.text.characters import TextStream
from cutaway.text.grammar.matcher import Matcher
from cutaway.text.message_form import MessageParser
from cutaway.text.thinking import Thinking, Thought, escape_piece
from cutaway.text.tools import Arguments, CallEnd, CallParser, CallStart, Content, Tool
from cutaway.text.tools import Delta as Part

AnswerPart = Thought | Part


class SchemaOrCalls:
    """Decides whether an answer is a text of a schema or tool calls, and never both.

    If both grammars accept the whole answer, it consists of calls. If it was cut before one grammar
    was excluded, it consists of calls if it has named a tool.

    matcher  matches the answer's bytes with the schema and with the grammar of the calls
    parser   parses the calls
    """

    def __init__(self, matcher: Matcher, parser: CallParser) -> None:
        self._matcher, self._parser, self._text = matcher, parser, TextStream()
        self._calls: bool | None = None
        self._undecided = b""

    def push(self, data: bytes) -> list[Part]:
        """Read bytes; return the parts that are certain now."""
        if self._calls is None:
            self._decide(data)
        self._undecided += data
        if self._calls is None:
            return []
        data_so_far, self._undecided = self._undecided, b""
        return (
            self._parser.push(data_so_far)
            if self._calls
            else self._to_parts(self._text.push(data_so_far))
        )

    def finish(self) -> list[Part]:
        """Return the last parts, at the end of the answer."""
        if self._calls is None:
            text, calls = self._matcher.ends
            parts = [*self._parser.push(self._undecided), *self._parser.finish()]
            has_call = any(isinstance(part, CallStart) for part in parts)
            if calls or (has_call and not text):
                return parts
            return self._to_parts(self._undecided.decode(errors="replace"))
        return self._parser.finish() if self._calls else self._to_parts(self._text.flush())

    @property
    def lacks_mark(self) -> bool:
        """Whether the parser of the calls still expects the mark that ends a call."""
        return self._parser.lacks_mark

    def _decide(self, data: bytes) -> None:
        """Read bytes until one of the two grammars is excluded."""
        for byte in data:
            if not self._matcher.valid([byte]):  # the answer was cut within a character
                return
            self._matcher.accept(byte)
            text, calls = self._matcher.ends
            if text is None or calls is None:
                self._calls = text is None
                return

    @staticmethod
    def _to_parts(text: str) -> list[Part]:
        return [Content(text)] if text else []


@dataclass
class _Call:
    """A tool call while it is written."""

    start: CallStart
    arguments: str = ""
    whole: bool = False

    def to_dict(self) -> dict[str, Any]:
        name = self.start.tool.name
        if self.start.tool.format is None:
            body = {"type": "function", "function": {"name": name, "arguments": self.arguments}}
        else:
            body = {"type": "custom", "custom": {"name": name, "input": self.arguments}}
        return {"id": self.start.id, **body}


class AnswerReader:
    """Splits one answer into thought, text and tool calls, while it is written.

    parser       parses tool calls, or all messages of an answer; None if there is nothing to parse
    control      the control tokens that the parser reads: id -> name
    token_bytes  the bytes of a token id
    thinking     how a thought before the answer is delimited; None: the answer has no thought
    """

    def __init__(
        self,
        parser: CallParser | SchemaOrCalls | MessageParser | None,
        control: Mapping[int, bytes],
        token_bytes: Callable[[int], bytes],
        thinking: Thinking | None = None,
    ) -> None:
        self._parser, self._token_bytes = parser, token_bytes
        self._thinking, self._thoughts = thinking, thinking and thinking.parser()
        self._control = {**control, **(thinking.token_bytes if thinking else {})}
        self._thought_text, self._content, self._calls = "", "", list[_Call]()
        self._pieces: list[bytes] = []  # each token, as a parser reads it
        self._decoded = TextStream()  # decodes as the engine does, which may release text later
        self._num_decoded = self._num_pushed = 0  # bytes of decoded text
        self._is_finished = False
        self._due = deque[tuple[int, bytes]]()  # control tokens that text must precede

    def push(self, step: Step) -> list[AnswerPart]:
        """Read a step; return the parts that are certain now."""
        data = self._token_bytes(step.token_id)
        self._num_decoded += len(self._decoded.push(data).encode())
        if name := self._control.get(step.token_id):
            self._due.append((self._num_decoded - len(data), name.removesuffix(data)))
        self._pieces.append(name or escape_piece(data))
        return self._push(step.text)

    def finish(self, held_text: str = "") -> list[AnswerPart]:
        """Return the last parts; none the second time. held_text: text that no step has shown."""
        if self._is_finished:
            return []
        self._is_finished = True
        deltas = self._push(held_text)
        if self._thoughts:
            deltas += self._split(*self._thoughts.finish())
        return deltas if self._parser is None else [*deltas, *self._note(self._parser.finish())]

    def _push(self, text: str) -> list[AnswerPart]:
        """Read text, and insert each control token, which adds no text, where it was drawn.

        Text that was drawn before the token may come after it.
        """
        if self._parser is None and self._thoughts is None:
            return self._note([Content(text)] if text else [])
        data, rest = bytearray(), text.encode()
        while self._due and self._due[0][0] <= self._num_pushed + len(rest):
            position, name = self._due.popleft()
            size = max(position - self._num_pushed, 0)
            data += rest[:size] + name
            rest, self._num_pushed = rest[size:], self._num_pushed + size
        self._num_pushed += len(rest)
        reasoning, answer = b"", bytes(data + rest)
        if self._thoughts:
            reasoning, answer = self._thoughts.push(answer)
        return self._split(reasoning, answer)

    def _split(self, reasoning: bytes, answer: bytes) -> list[AnswerPart]:
        """Return the parts of both texts.

        Each text has whole characters, since the tags between them are ASCII.
        """
        deltas: list[AnswerPart] = [Thought(reasoning.decode())] if reasoning else []
        if self._parser:
            deltas += self._parser.push(answer)
        elif answer:
            deltas.append(Content(answer.decode()))
        return self._note(deltas)

    def _note(self, deltas: Sequence[AnswerPart]) -> list[AnswerPart]:
        for delta in deltas:
            if isinstance(delta, Content):
                self._content += delta.text
            elif isinstance(delta, Thought):
                self._thought_text += delta.text
            elif isinstance(delta, CallStart):
                self._calls.append(_Call(delta))
            elif isinstance(delta, Arguments):
                self._calls[delta.index].arguments += delta.text
            elif isinstance(delta, CallEnd):
                self._calls[delta.index].whole = True
        return [*deltas]

    def tool(self, index: int) -> Tool:
        """Return the tool of a call that has begun."""
        return self._calls[index].start.tool

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thought."""
        return self._thinking.count(self._pieces) if self._thinking else 0

    @property
    def has_called(self) -> bool:
        """Whether there are calls and the last one is complete, with or without its end mark."""
        if not self._calls or self._parser is None:
            return False
        return self._calls[-1].whole or self._parser.lacks_mark

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of a conversation, in OpenAI's form."""
        calls = [call.to_dict() for call in self._calls]
        content = self._content or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._thought_text:
            message["reasoning_content"] = self._thought_text
        return message | ({"tool_calls": calls} if calls else {})
