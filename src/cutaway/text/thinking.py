"""What a model thinks before it answers, where it has words for where that begins and ends.

Knows the marks around a thought. From one description come the grammar of a text that may begin
with a thought, and what takes the thought apart from the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.tokenizer import Tokenizer

_BLANK = b" \n"


@dataclass(frozen=True)
class Thinking:
    """How a model's thoughts are written.

    before, after: around a thought, as the template writes them: marks and white space
    begun:         whether the prompt has opened the first of them
    control:       name -> id of the control tokens among the marks
    """

    before: str = "<think>"
    after: str = "</think>"
    begun: bool = False
    control: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
        """Of a model whose template writes thoughts, or has known marks that are tokens."""
        from cutaway.text.thinking_probe import find  # few texts need it

        marks = find(template, tokenizer)
        if marks is None:
            return None
        made = cls(*marks, control=tokenizer.control_tokens("".join(marks)))
        return made.behind(template.render([{"role": "user", "content": "a"}]))

    def behind(self, prompt: str) -> Thinking:
        """The same behind a prompt, which may have opened the thought."""
        return replace(self, begun=prompt.rstrip().endswith(self.opening))

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
            rules = [f"SPELLED: ANY {_quoted(first)} ANY", "THOUGHT: ANY & ~SPELLED"]
        else:
            inside, rules = "closed", [f"closed[lazy]: ANY {_quoted(self.closing)}"]
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
        """What ``ThinkingParser`` must be fed for control tokens: their names."""
        return {token_id: name.encode() for name, token_id in self.control.items()}

    def _literal(self, text: str) -> str:
        """Texts as strings, control tokens by id."""
        names = "|".join(map(re.escape, sorted(self.control, key=len, reverse=True)))
        pieces = re.split(f"({names})", text) if names else [text]
        return " ".join(
            f"<[{self.control[piece]}]>" if piece in self.control else _quoted(piece)
            for piece in pieces
            if piece
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class ThinkingParser:
    """Takes the thought of one text apart from its answer, while it is written."""

    def __init__(self, thinking: Thinking) -> None:
        self._opening, self._closing = thinking.opening.encode(), thinking.closing.encode()
        self._state = "thought" if thinking.begun else "beginning"
        self._held = b""

    def push(self, data: bytes) -> tuple[bytes, bytes]:
        """(thought, answer): what is certain after these bytes."""
        self._held += data
        thought = b""
        if self._state == "beginning":
            self._begin()
        if self._state == "thought":
            thought = self._think()
        if self._state == "blank":
            self._held = self._held.lstrip(_BLANK)
            self._state = "answer" if self._held else "blank"
        if self._state != "answer":
            return thought, b""
        answer, self._held = self._held, b""
        return thought, answer

    def finish(self) -> tuple[bytes, bytes]:
        """What was held back."""
        held, self._held = self._held, b""
        return (held, b"") if self._state == "thought" else (b"", held)

    def _begin(self) -> None:
        if self._held.startswith(self._opening):
            self._held, self._state = self._held[len(self._opening) :], "thought"
        elif not self._opening.startswith(self._held):
            self._state = "answer"

    def _think(self) -> bytes:
        """The thought up to its end, or to what may be the beginning of its end."""
        close = self._closing
        thought, closing, rest = self._held.partition(close)
        if closing:
            self._held, self._state = rest, "blank"
            return thought
        sizes = range(min(len(close) - 1, len(thought)), 0, -1)
        kept = next((n for n in sizes if close.startswith(thought[-n:])), 0)
        self._held = thought[len(thought) - kept :]
        return thought[: len(thought) - kept]
