"""The content blocks of an answer in Anthropic's form, and the events that stream them."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from cutaway.features.anthropic.schemas import CallContent
from cutaway.features.anthropic.schemas import Content as Block
from cutaway.requests.answer import AnswerPart
from cutaway.server.shared.tools import arguments_of
from cutaway.text.thinking import Thought
from cutaway.text.tools import Arguments, CallStart, Content

Said = tuple[str, dict[str, Any]]
"""An event's kind and its fields."""


class Blocks:
    """Blocks of one answer, the last of which may be open."""

    def __init__(self) -> None:
        self.each: list[Block] = []
        self._is_open, self._arguments = False, ""

    def take(self, deltas: Iterable[AnswerPart]) -> Iterator[Said]:
        """What these add."""
        for delta in deltas:
            if isinstance(delta, Thought):
                yield from self._say("thinking", delta.text)
            elif isinstance(delta, Content):
                yield from self._say("text", delta.text)
            elif isinstance(delta, CallStart):
                who: CallContent = {
                    "type": "tool_use", "id": delta.id, "name": delta.tool.name, "input": {},
                }  # fmt: skip
                yield from self._open(who)
            elif isinstance(delta, Arguments):
                self._arguments += delta.text
                yield self._grown("input_json_delta", partial_json=delta.text)
            else:
                yield from self.close()

    def close(self) -> Iterator[Said]:
        """The end of what is open."""
        if not self._is_open:
            return
        block, self._is_open = self.each[-1], False
        if block["type"] == "tool_use":
            block["input"] = arguments_of(self._arguments)
        yield "content_block_stop", {"index": len(self.each) - 1}

    def _say(self, kind: str, text: str) -> Iterator[Said]:
        if not (self._is_open and self.each[-1]["type"] == kind):
            yield from self._open(_empty(kind))
        block = cast(dict[str, str], self.each[-1])
        block[kind] += text
        yield self._grown(f"{kind}_delta", **{kind: text})

    def _open(self, block: Block) -> Iterator[Said]:
        yield from self.close()
        self.each.append(block)
        self._is_open, self._arguments = True, ""
        yield "content_block_start", {"index": len(self.each) - 1, "content_block": {**block}}

    def _grown(self, kind: str, **more: str) -> Said:
        return "content_block_delta", {
            "index": len(self.each) - 1,
            "delta": {"type": kind, **more},
        }


def _empty(kind: str) -> Block:
    if kind == "text":
        return {"type": "text", "text": "", "citations": None}
    return {"type": "thinking", "thinking": "", "signature": ""}
