"""Thinking: the thought that a model writes before it answers.

Knows the marks around a thought. They define both the grammar of a text that may begin with a
thought, and the parser that separates the thought from the answer. Does not know requests and
protocols; ``thinking_switch`` has what a request may ask of thinking.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutaway.text.tokenizers import Tokenizer


_BLANK = b" \n"
_WHOLE = b"\xff"  # precedes a mark that is one token; UTF-8 never has this byte


@dataclass(frozen=True)
class Thinking:
    """How a model's thoughts are written.

    before, after: the marks and white space that the template writes around a thought
    opened:        whether the prompt has opened the first thought
    closed:        whether the prompt has a whole thought, which may be empty
    control:       name -> id of each mark that is one token, mostly a control token; the same mark
                   spelled by other tokens is ordinary text
    """

    before: str = "<think>"
    after: str = "</think>"
    opened: bool = False
    closed: bool = False
    control: Mapping[str, int] = field(default_factory=dict)

    def with_prompt(self, prompt: str) -> Thinking:
        """Return a copy for answers to this prompt, which may have opened or closed the thought."""
        end = prompt.rstrip()
        return replace(self, opened=end.endswith(self.opening), closed=end.endswith(self.closing))

    def with_start(self, text: str) -> Thinking | None:
        """Return a copy for an answer that begins with ``text``; None if its thought has ended."""
        _, opened, inside = text.rpartition(self.opening)
        if not opened or self.closing in inside:
            return None
        return replace(self, opened=True, closed=False)

    @property
    def opening(self) -> str:
        """The mark that a thought begins with."""
        return self.before.strip()

    @property
    def closing(self) -> str:
        """The mark that a thought ends with."""
        return self.after.strip()

    @property
    def empty(self) -> str:
        """An empty thought, as the template writes it."""
        return self.before + self.after

    @property
    def grammar(self) -> str:
        """The Lark rules of an optional thought before an answer; the caller adds ``answer``."""
        opening = "" if self.opened else self._literal(self.opening)
        first = next((name for name in self.control if self.closing.startswith(name)), "")
        if first:
            inside = f"THOUGHT {self._literal(self.closing)}"
            rules = [f"SPELLED: ANY {lark_string(first)} ANY", "THOUGHT: ANY & ~SPELLED"]
        else:
            inside, rules = "closed", [f"closed[lazy]: ANY {lark_string(self.closing)}"]
        return "\n".join(
            [
                "start: thought answer" + ("" if self.opened else " | answer"),
                f"thought: {opening} {inside} BLANK?",
                *rules,
                "ANY: /(?s:.*)/",
                r"BLANK: /[ \n]{1,4}/",
            ]
        )

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """The bytes that ``ThinkingParser`` reads for marks that are one token."""
        return {token_id: _WHOLE + name.encode() for name, token_id in self.control.items()}

    def to_parser_bytes(self, mark: str) -> bytes:
        """Return a mark as ``ThinkingParser`` reads it."""
        pieces = self._split(mark)
        return b"".join(_WHOLE * (piece in self.control) + piece.encode() for piece in pieces)

    def parser(self) -> ThinkingParser | None:
        """Return a parser of one text."""
        return ThinkingParser(self)

    def count(self, pieces: Sequence[bytes]) -> int:
        """Count the tokens of the thought, without the tokens of its marks.

        pieces: the bytes of each token of the text as a parser reads them
        """
        data, opening = b"".join(pieces), b"" if self.opened else self.to_parser_bytes(self.opening)
        if not data.startswith(opening):
            return 0
        start, end = len(opening), data.find(self.to_parser_bytes(self.closing), len(opening))
        return count_pieces(pieces, start, len(data) if end < 0 else end)

    def token_ids(self, mark: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the token ids of a mark within a text; no space is added after a control token."""
        control, parts = self.control, self._split(mark)
        ids = ([control[p]] if p in control else tokenizer.encode(p, goes_on=True) for p in parts)
        return tuple(chain.from_iterable(ids))

    def _literal(self, text: str) -> str:
        """Write a text in Lark: strings, and control tokens by id."""
        return " ".join(
            f"<[{self.control[piece]}]>" if piece in self.control else lark_string(piece)
            for piece in self._split(text)
        )

    def _split(self, text: str) -> list[str]:
        """Split a text into names of control tokens and the texts between them."""
        names = "|".join(map(re.escape, sorted(self.control, key=len, reverse=True)))
        return [piece for piece in re.split(f"({names})", text) if piece] if names else [text]


def lark_string(text: str) -> str:
    """Return a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def escape_piece(data: bytes) -> bytes:
    """Return the bytes of a token that is no mark; replace the byte that is put before marks."""
    return data.replace(_WHOLE, b"\xfe")


def count_pieces(pieces: Sequence[bytes], start: int, end: int) -> int:
    """Count the pieces that have bytes between the positions ``start`` and ``end``."""
    places = [*accumulate(map(len, pieces), initial=0)]
    return sum(at < end and behind > start for at, behind in pairwise(places))


@dataclass(frozen=True)
class Thought:
    """A part of the thought that precedes the answer."""

    text: str


class ThinkingParser:
    """Separates the thought of one text from its answer, while it is written.

    Both lack the white space that the template itself writes around a thought.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._opening, self._closing = map(
            thinking.to_parser_bytes, (thinking.opening, thinking.closing)
        )
        before, after = thinking.before.lstrip(), thinking.after.rstrip()
        self._indent = thinking.to_parser_bytes(before)[len(self._opening) :]
        self._ending = thinking.to_parser_bytes(after)  # with the white space before the mark
        self._state = "indent" if thinking.opened else "beginning"
        self._pending = b""

    def push(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (thought, answer): the bytes that are now certain to belong to each."""
        self._pending += data
        reasoning = b""
        if self._state == "beginning":
            self._begin()
        if self._state == "indent":
            self._skip()
        if self._state == "thought":
            reasoning = self._think()
        if self._state == "blank":
            self._pending = self._pending.lstrip(_BLANK)
            self._state = "answer" if self._pending else "blank"
        if self._state != "answer":
            return reasoning, b""
        answer, self._pending = self._pending, b""
        return reasoning, _without_marks(answer)

    def finish(self) -> tuple[bytes, bytes]:
        """Return the bytes that were held back, as (thought, answer)."""
        pending, self._pending = _without_marks(self._pending), b""
        return (pending, b"") if self._state in ("indent", "thought") else (b"", pending)

    def _begin(self) -> None:
        if self._pending.startswith(self._opening):
            self._pending, self._state = self._pending[len(self._opening) :], "indent"
        elif not self._opening.startswith(self._pending):
            self._state = "answer"

    def _skip(self) -> None:
        if self._pending.startswith(self._indent):
            self._pending, self._state = self._pending[len(self._indent) :], "thought"
        elif not self._indent.startswith(self._pending):
            self._state = "thought"

    def _think(self) -> bytes:
        """Return the thought up to its closing mark, or to what may be the start of that mark."""
        reasoning, closing, rest = self._pending.partition(self._closing)
        if closing:
            self._pending, self._state = rest, "blank"
            return _without_marks(reasoning.removesuffix(self._ending.removesuffix(self._closing)))
        sizes = range(min(len(self._ending) - 1, len(reasoning)), 0, -1)
        ends = (self._ending, self._closing)
        pending_size = next(
            (n for n in sizes if any(e.startswith(reasoning[-n:]) for e in ends)), 0
        )
        self._pending = reasoning[len(reasoning) - pending_size :]
        return _without_marks(reasoning[: len(reasoning) - pending_size])


def _without_marks(data: bytes) -> bytes:
    """Return the text of pushed bytes: a mark that neither opens nor closes is text."""
    return data.replace(_WHOLE, b"")
