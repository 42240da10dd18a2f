"""What a model thinks before it answers, where it has words for where that begins and ends.

Knows the marks around a thought. From one description come the grammar of a text that may begin
with a thought, and what takes the thought apart from the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutaway.text.tokenizer import Tokenizer

_BLANK = b" \n"
_WHOLE = b"\xff"  # before what one token wrote, which UTF-8 has no use for


@dataclass(frozen=True)
class Thinking:
    """How a model's thoughts are written.

    before, after: around a thought, as the template writes them: marks and white space
    begun:         whether the prompt has opened the first of them
    closed:        whether the prompt has written a whole one, which may be empty
    control:       name -> id of the marks that are one token, mostly control tokens: a text that
                   spells such a mark by other tokens has none
    """

    before: str = "<think>"
    after: str = "</think>"
    begun: bool = False
    closed: bool = False
    control: Mapping[str, int] = field(default_factory=dict)

    def behind(self, prompt: str) -> Thinking:
        """The same behind a prompt, which may have opened the thought, or closed it."""
        end = prompt.rstrip()
        return replace(self, begun=end.endswith(self.opening), closed=end.endswith(self.closing))

    def within(self, said: str) -> Thinking | None:
        """The same in an answer that begins with a given text; None where that is past thoughts."""
        _, opened, inside = said.rpartition(self.opening)
        if not opened or self.closing in inside:
            return None
        return replace(self, begun=True, closed=False)

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
        """No thought, as the template writes it."""
        return self.before + self.after

    @property
    def grammar(self) -> str:
        """Lark of a text that is ``answer``, which is not defined here, perhaps after a thought."""
        opening = "" if self.begun else self._literal(self.opening)
        first = next((name for name in self.control if self.closing.startswith(name)), "")
        if first:
            inside = f"THOUGHT {self._literal(self.closing)}"
            rules = [f"SPELLED: ANY {quoted(first)} ANY", "THOUGHT: ANY & ~SPELLED"]
        else:
            inside, rules = "closed", [f"closed[lazy]: ANY {quoted(self.closing)}"]
        return "\n".join(
            [
                "start: thought answer" + ("" if self.begun else " | answer"),
                f"thought: {opening} {inside} BLANK?",
                *rules,
                "ANY: /(?s:.*)/",
                r"BLANK: /[ \n]{1,4}/",
            ]
        )

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """What ``ThinkingParser`` must be fed for marks that are one token."""
        return {token_id: _WHOLE + name.encode() for name, token_id in self.control.items()}

    def fed(self, mark: str) -> bytes:
        """A mark as ``ThinkingParser`` is fed it."""
        pieces = self._split(mark)
        return b"".join(_WHOLE * (piece in self.control) + piece.encode() for piece in pieces)

    def parser(self) -> ThinkingParser | None:
        """What takes one text apart; None where the parser of the answer does."""
        return ThinkingParser(self)

    def count(self, pieces: Sequence[bytes]) -> int:
        """How many tokens the thought has, without those of its marks.

        pieces: what each token of the text adds to what a parser is fed
        """
        data, opening = b"".join(pieces), b"" if self.begun else self.fed(self.opening)
        if not data.startswith(opening):
            return 0
        start, end = len(opening), data.find(self.fed(self.closing), len(opening))
        return spanned(pieces, start, len(data) if end < 0 else end)

    def token_ids(self, mark: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The tokens of a mark within a text, where no space is put behind a control token."""
        control, parts = self.control, self._split(mark)
        found = ([control[p]] if p in control else tokenizer.encode(p, goes_on=True) for p in parts)
        return tuple(chain.from_iterable(found))

    def _literal(self, text: str) -> str:
        """Texts as strings, control tokens by id."""
        return " ".join(
            f"<[{self.control[piece]}]>" if piece in self.control else quoted(piece)
            for piece in self._split(text)
        )

    def _split(self, text: str) -> list[str]:
        """The names of control tokens, and the texts between them."""
        names = "|".join(map(re.escape, sorted(self.control, key=len, reverse=True)))
        return [piece for piece in re.split(f"({names})", text) if piece] if names else [text]


def quoted(text: str) -> str:
    """A literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def spanned(pieces: Sequence[bytes], start: int, end: int) -> int:
    """How many of the pieces have bytes from ``start`` to ``end`` of them all."""
    places = [*accumulate(map(len, pieces), initial=0)]
    return sum(at < end and behind > start for at, behind in pairwise(places))


@dataclass(frozen=True)
class Thought:
    """Part of the thought that precedes the answer."""

    text: str


class ThinkingParser:
    """Takes the thought of one text apart from its answer, while it is written.

    Neither gets the white space that the template itself writes around a thought.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._opening, self._closing = map(thinking.fed, (thinking.opening, thinking.closing))
        before, after = thinking.before.lstrip(), thinking.after.rstrip()
        self._indent = thinking.fed(before)[len(self._opening) :]
        self._ending = thinking.fed(after)  # with the white space before the mark
        self._state = "indent" if thinking.begun else "beginning"
        self._held = b""

    def push(self, data: bytes) -> tuple[bytes, bytes]:
        """(thought, answer): what is certain after these bytes."""
        self._held += data
        thought = b""
        if self._state == "beginning":
            self._begin()
        if self._state == "indent":
            self._skip()
        if self._state == "thought":
            thought = self._think()
        if self._state == "blank":
            self._held = self._held.lstrip(_BLANK)
            self._state = "answer" if self._held else "blank"
        if self._state != "answer":
            return thought, b""
        answer, self._held = self._held, b""
        return thought, _shown(answer)

    def finish(self) -> tuple[bytes, bytes]:
        """What was held back."""
        held, self._held = _shown(self._held), b""
        return (held, b"") if self._state in ("indent", "thought") else (b"", held)

    def _begin(self) -> None:
        if self._held.startswith(self._opening):
            self._held, self._state = self._held[len(self._opening) :], "indent"
        elif not self._opening.startswith(self._held):
            self._state = "answer"

    def _skip(self) -> None:
        if self._held.startswith(self._indent):
            self._held, self._state = self._held[len(self._indent) :], "thought"
        elif not self._indent.startswith(self._held):
            self._state = "thought"

    def _think(self) -> bytes:
        """The thought up to its end, or to what may be the beginning of its end."""
        thought, closing, rest = self._held.partition(self._closing)
        if closing:
            self._held, self._state = rest, "blank"
            return _shown(thought.removesuffix(self._ending.removesuffix(self._closing)))
        sizes = range(min(len(self._ending) - 1, len(thought)), 0, -1)
        ends = (self._ending, self._closing)
        kept = next((n for n in sizes if any(e.startswith(thought[-n:]) for e in ends)), 0)
        self._held = thought[len(thought) - kept :]
        return _shown(thought[: len(thought) - kept])


def _shown(data: bytes) -> bytes:
    """What was fed, as it is read: a mark in a place where it is none, too."""
    return data.replace(_WHOLE, b"")
