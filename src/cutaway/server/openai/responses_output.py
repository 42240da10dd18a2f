"""The output items of ``/v1/responses``, and the events that stream them."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from cutaway.requests.answer import AnswerPart
from cutaway.server.openai.response_schemas import (
    CallItem,
    MessageStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
)
from cutaway.server.shared.chat_schemas import ChatToken
from cutaway.text.thinking import Thought
from cutaway.text.tools import Arguments, CallEnd, CallStart, Content

Said = tuple[str, dict[str, Any]]
"""An event's kind and its fields."""

_CALLS = {
    "function_call": ("fc", "function_call_arguments", "arguments"),
    "custom_tool_call": ("ctc", "custom_tool_call_input", "input"),
}
"""A call's type -> how its id begins, what its events are called, and the field of its text."""


class Output:
    """Items of one answer, the last of which may be open.

    id  of the answer, of which those of the items are made
    """

    def __init__(self, id: str) -> None:
        self._id = id
        self.items: list[OutputItem] = []
        self._is_open = False
        # Log-probabilities of text that is delayed until it is known not to be a call.
        self._early: list[ChatToken] = []

    def open_message(self) -> Iterator[Said]:
        """A message that has no text yet."""
        number = f"_{len(self.items)}" if self.items else ""
        message: OutputMessage = {
            "id": f"msg_{self._id}{number}", "type": "message", "role": "assistant",
            "status": "in_progress", "content": [],
        }  # fmt: skip
        yield from self._open(message)
        part: OutputText = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        message["content"] = [part]
        yield "response.content_part.added", {**self._place(message), "part": {**part}}

    def take(self, deltas: Iterable[AnswerPart], logprobs: list[ChatToken]) -> Iterator[Said]:
        """What these add; log-probabilities are those of a message's text."""
        logprobs, self._early = [*self._early, *logprobs], []
        for delta in deltas:
            if isinstance(delta, Thought | CallStart):
                logprobs = []
            if isinstance(delta, Thought):
                yield from self._think(delta.text)
            elif isinstance(delta, Content):
                yield from self._say(delta.text, logprobs)
                logprobs = []
            elif isinstance(delta, CallStart):
                yield from self.close("completed")
                yield from self._call(delta)
            elif isinstance(delta, Arguments):
                yield from self._argue(delta.text)
            elif isinstance(delta, CallEnd):
                yield from self.close("completed")
        if logprobs and self._is_open and self.items[-1]["type"] == "message":
            yield from self._say("", logprobs)
        elif not self.items:
            self._early = logprobs

    def nothing(self) -> Iterator[Said]:
        """An event that adds no text, for what else there is to say of a step."""
        if self._is_open and self.items[-1]["type"] == "message":
            yield from self._say("", [])

    # -- thoughts ------------------------------------------------------------------------------

    def _think(self, text: str) -> Iterator[Said]:
        if not (self._is_open and self.items[-1]["type"] == "reasoning"):
            item: ReasoningItem = {
                "id": f"rs_{self._id}", "type": "reasoning", "summary": [], "content": [],
                "status": "in_progress",
            }  # fmt: skip
            yield from self._open(item)
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        thought = cast(ReasoningItem, self.items[-1])
        thought["content"][0]["text"] += text
        yield "response.reasoning_text.delta", {**self._place(thought), "delta": text}

    # -- messages ------------------------------------------------------------------------------

    def _say(self, text: str, logprobs: list[ChatToken]) -> Iterator[Said]:
        if not (self._is_open and self.items[-1]["type"] == "message"):
            yield from self.close("completed")
            yield from self.open_message()
        message = cast(OutputMessage, self.items[-1])
        part = message["content"][0]
        part["text"] += text
        part["logprobs"] = [*part["logprobs"], *logprobs]
        fields = {**self._place(message), "delta": text, "logprobs": logprobs}
        yield "response.output_text.delta", fields

    def _place(self, message: OutputMessage | ReasoningItem) -> dict[str, Any]:
        return {
            "item_id": message["id"],
            "output_index": len(self.items) - 1,
            "content_index": 0,
        }

    def _close_message(self, message: OutputMessage) -> Iterator[Said]:
        place, part = self._place(message), message["content"][0]
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield "response.output_text.done", {**place, **done}
        yield "response.content_part.done", {**place, "part": part}

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, delta: CallStart) -> Iterator[Said]:
        kind = "function_call" if delta.tool.format is None else "custom_tool_call"
        prefix, _, field = _CALLS[kind]
        item = {
            "id": f"{prefix}_{self._id}_{len(self.items)}", "type": kind, "call_id": delta.id,
            "name": delta.tool.name, field: "", "status": "in_progress",
        }  # fmt: skip
        return self._open(cast(CallItem, item))

    def _argue(self, text: str) -> Iterator[Said]:
        item = cast(dict[str, str], self.items[-1])
        _, word, field = _CALLS[item["type"]]
        item[field] += text
        fields = {"item_id": item["id"], "output_index": len(self.items) - 1, "delta": text}
        yield f"response.{word}.delta", fields

    def _close_call(self, item: CallItem) -> Iterator[Said]:
        _, word, field = _CALLS[item["type"]]
        told = {"name": item["name"]} if item["type"] == "function_call" else {}
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        yield f"response.{word}.done", {**place, **told, field: cast(Any, item)[field]}

    # -- items ---------------------------------------------------------------------------------

    def _open(self, item: OutputItem) -> Iterator[Said]:
        self.items.append(item)
        self._is_open = True
        fields = {"output_index": len(self.items) - 1, "item": {**item}}
        yield "response.output_item.added", fields

    def close(self, status: MessageStatus) -> Iterator[Said]:
        """The end of the open item, if there is one."""
        if not self._is_open:
            return
        item = self.items[-1]
        self._is_open, item["status"] = False, status
        if item["type"] == "message":
            yield from self._close_message(item)
        elif item["type"] == "reasoning":
            said = {"text": item["content"][0]["text"]}
            yield "response.reasoning_text.done", {**self._place(item), **said}
        else:
            yield from self._close_call(item)
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}
