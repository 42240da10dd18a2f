"""What a model thinks before it answers, where it has words for where that begins and ends.

Knows the two tags. From one description come the grammar of a text that may begin with a thought,
and what takes the thought apart from the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
_BLANK = b" \n"


@dataclass(frozen=True)
class Thinking:
    """How a model's thoughts are written.

    begun:   whether the prompt has opened the first of them
    control: name -> id of the tags that are control tokens
    """

    begun: bool = False
    control: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
        """Of a model whose template and tokens have both tags; None for others."""
        if OPEN not in template.source or CLOSE not in template.source:
            return None
        if any(len(tokenizer.encode(t, special=True, add_bos=False)) != 1 for t in (OPEN, CLOSE)):
            return None
        prompt = template.render([{"role": "user", "content": "a"}])
        return cls(prompt.rstrip().endswith(OPEN), tokenizer.control_tokens(OPEN + CLOSE))

    @property
    def grammar(self) -> str:
        """Lark of a text that is ``answer``, which is not defined here, perhaps after a thought."""
        opening = "" if self.begun else self._tag(OPEN)
        close = json.dumps(CLOSE)
        if CLOSE in self.control:
            inside = f"THOUGHT {self._tag(CLOSE)}"
            rules = [f"SPELLED: ANY {close} ANY", "THOUGHT: ANY & ~SPELLED"]
        else:
            inside, rules = "closed", [f"closed[lazy]: ANY {close}"]
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

    def _tag(self, name: str) -> str:
        return f"<[{self.control[name]}]>" if name in self.control else json.dumps(name)


class ThinkingParser:
    """Takes the thought of one text apart from its answer, while it is written."""

    def __init__(self, thinking: Thinking) -> None:
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
        opening = OPEN.encode()
        if self._held.startswith(opening):
            self._held, self._state = self._held[len(opening) :], "thought"
        elif not opening.startswith(self._held):
            self._state = "answer"

    def _think(self) -> bytes:
        """The thought up to its end, or to what may be the beginning of its end."""
        close = CLOSE.encode()
        thought, closing, rest = self._held.partition(close)
        if closing:
            self._held, self._state = rest, "blank"
            return thought
        sizes = range(min(len(close) - 1, len(thought)), 0, -1)
        kept = next((n for n in sizes if close.startswith(thought[-n:])), 0)
        self._held = thought[len(thought) - kept :]
        return thought[: len(thought) - kept]
