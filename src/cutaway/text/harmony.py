"""Harmony, the form of gpt-oss: an answer is one or several messages, each in a channel.

Knows what the channels are for: "analysis" has thoughts, "commentary" calls of tools and what is
said before them, "final" the answer. Makes the grammar of such answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cutaway.errors import InputError
from cutaway.text.harmony_parser import BARE, MARKS, HarmonyParser
from cutaway.text.thinking import Thinking, quoted
from cutaway.text.tools.grammar import arguments, around

if TYPE_CHECKING:
    from cutaway.text.tokenizer import Tokenizer
    from cutaway.text.tools.tool import Tool, ToolChoice

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_NEXT = f"{END}{START}assistant"
_ANALYSIS, _PREAMBLE, _FINAL = (
    f"{CHANNEL}{name}{MESSAGE}" for name in ("analysis", "commentary", "final")
)


@dataclass(frozen=True)
class Harmony(Thinking):
    """As ``Thinking`` says.

    header  what the prompt has of the answer's first message
    once    a grammar lets one thought pass, at the beginning, as a budget is for one
    """

    before: str = _ANALYSIS
    after: str = _NEXT
    header: str = ""
    once: bool = False

    @classmethod
    def known_to(cls, tokenizer: Tokenizer) -> Harmony | None:
        """Of a model that has the marks as control tokens; None for others."""
        control = tokenizer.control_tokens("".join(MARKS))
        needed = (START, CHANNEL, MESSAGE, END)
        return cls(control=control) if all(name in control for name in needed) else None

    def behind(self, prompt: str) -> Harmony:
        """The same behind a prompt that ends within the assistant's first message."""
        _, begins, header = prompt.rpartition(f"{START}assistant")
        header = header if begins else _FINAL  # a text that has no messages
        return replace(self, header=header, begun=header == self.before)

    def within(self, said: str) -> Harmony:  # noqa: ARG002 - whatever it is, it is in that channel
        """The same in a final message, which templates write what was said into."""
        return replace(self, header=_FINAL, begun=False)

    def parser(self) -> None:
        """None: an answer's parser sees the channels, see ``reader``."""

    def reader(self, tools: Sequence[Tool], new_id: Any) -> HarmonyParser:
        """What takes one answer apart. new_id: makes the id of a call from its index."""
        made = HarmonyParser(tools, new_id)
        made.push(self._fed(self.header))
        return made

    def count(self, pieces: Sequence[bytes]) -> int:
        """How many tokens are thoughts, without marks and the names of channels."""
        parser, found = self.reader((), str), 0
        for piece in pieces:
            parser.push(piece)
            found += parser.thinks and piece not in MARKS.values()
        return found

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """What the parser must be fed for control tokens: bytes that no text has."""
        return {token_id: MARKS[name] for name, token_id in self.control.items()}

    @property
    def grammar(self) -> str:
        """Lark of thoughts and a final message, whose text is ``answer``, not defined here."""
        return "\n".join(self._messages(f"{self._thoughts} final", "answer"))

    @property
    def any_text(self) -> str:
        """Lark of whole answers without calls."""
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
        """What may come before a call or a final message."""
        return "analysis? preamble*" if self.once else "(analysis | preamble)*"

    @property
    def _preamble(self) -> str:
        return f"preamble: {self._literal(_PREAMBLE)} TEXT {self._literal(_NEXT)}"

    def with_tools(self, tools: Sequence[Tool], choice: ToolChoice, said: str = "TEXT") -> str:
        """Lark of whole answers that may or must call one of the tools.

        said: of the final message's text
        InputError: no tool may be called; a custom tool's grammar that does not fit in.
        """
        allowed = choice.allowed(tools)
        if not allowed:
            raise InputError("tool_choice allows no tool; give tools, or generate without")
        ways = [f"{self._before} call"]
        if choice.mode != "required":  # beside JSON of a schema nothing else is said
            before = self._before if said == "TEXT" else self._thoughts
            ways.append(f"{before} final")
        names = range(len(allowed))
        return "\n".join(
            [
                "%llguidance {}",
                *self._messages(" | ".join(ways), said),
                self._preamble,
                "call: " + " | ".join(f"call_{index}" for index in names),
                *map(self._call, names, allowed),
                *map(arguments, names, allowed),
                f"format: {self._format}",
                "",
            ]
        )

    def _messages(self, whole: str, said: str) -> list[str]:
        """Rules of messages, which are ``whole`` where the prompt has begun none."""
        behind = whole.replace("analysis?", "") if self.once else whole
        rest = {"": whole, self.before: f"thought ({behind})"}
        begin = rest.get(self.header, said)  # a final message that the prompt has begun
        return [
            f"start: {begin}",
            f"analysis: {self._literal(self.before)} thought",
            f"thought: TEXT {self._literal(self.after)}",
            f"final: {self._literal(_FINAL)} {said}",
            "TEXT: /(?s:.*)/",
        ]

    def _call(self, index: int, tool: Tool) -> str:
        """The recipient stands before or behind the channel, as the model likes."""
        to = quoted(f" to=functions.{tool.name}")
        channel = self._literal(f"{CHANNEL}commentary")
        opening, closing = around(BARE, tool)
        text = " ".join(filter(None, [quoted(opening) if opening else "", f"arguments_{index}"]))
        ending = self._literal("".join(part for part in closing if isinstance(part, str)))
        end = self._literal("<|call|>") if "<|call|>" in self.control else ""
        header = f"({channel} {to} | {to} {channel}) format? {self._literal(MESSAGE)}"
        return f"call_{index}: {header} {text} {ending} {end}"

    @property
    def _format(self) -> str:
        """That arguments are JSON, which may be left unsaid."""
        mark = self._literal("<|constrain|>json")
        return '" json"' + (f' | " "? {mark}' if "<|constrain|>" in self.control else "")

    def _fed(self, text: str) -> bytes:
        """A prompt's text as the parser reads it."""
        data = text.encode()
        for name, mark in MARKS.items():
            data = data.replace(name.encode(), mark)
        return data
