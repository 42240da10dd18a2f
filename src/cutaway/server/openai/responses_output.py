"""The output items of ``/v1/responses``, and the events that stream them."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from cutaway.requests.answer import AnswerPart, Thought
from cutaway.server.openai.response_schemas import (
    CallItem,
    CustomItem,
    FunctionItem,
    MessageStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
)
from cutaway.server.shared.chat_schemas import ChatToken
from cutaway.text.tools import Arguments, CallEnd, CallStart, Content

Event = tuple[str, dict[str, Any]]
"""Its kind, and its fields."""


class Output:
    """Items of one answer, the last of which may be open.

    id  of the answer, of which those of the items are made
    """

    def __init__(self, id: str) -> None:
        self._id = id
        self.items: list[OutputItem] = []
        self._is_open = False
        self._early: list[
            ChatToken
        ] = []  # of text that is delayed until it is known not to be a call

    def open_message(self) -> Iterator[Event]:
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

    def take(self, deltas: Iterable[AnswerPart], logprobs: list[ChatToken]) -> Iterator[Event]:
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
                yield from self._close("completed")
                yield from self._call(delta)
            elif isinstance(delta, Arguments):
                yield from self._argue(delta.text)
            elif isinstance(delta, CallEnd):
                yield from self._close("completed")
        if logprobs and self._is_open and self.items[-1]["type"] == "message":
            yield from self._say("", logprobs)
        elif not self.items:
            self._early = logprobs

    def finish(self, status: MessageStatus) -> Iterator[Event]:
        """The end of what is open."""
        yield from self._close(status)

    def nothing(self) -> Iterator[Event]:
        """An event that adds no text, for what else there is to say of a step."""
        if self._is_open and self.items[-1]["type"] == "message":
            yield from self._say("", [])

    # -- thoughts ------------------------------------------------------------------------------

    def _think(self, text: str) -> Iterator[Event]:
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

    def _say(self, text: str, logprobs: list[ChatToken]) -> Iterator[Event]:
        if not (self._is_open and self.items[-1]["type"] == "message"):
            yield from self._close("completed")
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

    def _close_message(self, message: OutputMessage) -> Iterator[Event]:
        place, part = self._place(message), message["content"][0]
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield "response.output_text.done", {**place, **done}
        yield "response.content_part.done", {**place, "part": part}

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, delta: CallStart) -> Iterator[Event]:
        name, number = delta.tool.name, len(self.items)
        if delta.tool.format is None:
            function: FunctionItem = {
                "id": f"fc_{self._id}_{number}", "type": "function_call", "call_id": delta.id,
                "name": name, "arguments": "", "status": "in_progress",
            }  # fmt: skip
            return self._open(function)
        custom: CustomItem = {
            "id": f"ctc_{self._id}_{number}", "type": "custom_tool_call", "call_id": delta.id,
            "name": name, "input": "", "status": "in_progress",
        }  # fmt: skip
        return self._open(custom)

    def _argue(self, text: str) -> Iterator[Event]:
        item = cast(CallItem, self.items[-1])
        if item["type"] == "function_call":
            item["arguments"] += text
        else:
            item["input"] += text
        fields = {"item_id": item["id"], "output_index": len(self.items) - 1, "delta": text}
        yield f"{_word(item)}.delta", fields

    def _close_call(self, item: CallItem) -> Iterator[Event]:
        fields: dict[str, Any] = {"item_id": item["id"], "output_index": len(self.items) - 1}
        if item["type"] == "function_call":
            fields |= {"name": item["name"], "arguments": item["arguments"]}
        else:
            fields["input"] = item["input"]
        yield f"{_word(item)}.done", fields

    # -- items ---------------------------------------------------------------------------------

    def _open(self, item: OutputItem) -> Iterator[Event]:
        self.items.append(item)
        self._is_open = True
        fields = {"output_index": len(self.items) - 1, "item": {**item}}
        yield "response.output_item.added", fields

    def _close(self, status: MessageStatus) -> Iterator[Event]:
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


def _word(item: CallItem) -> str:
    if item["type"] == "function_call":
        return "response.function_call_arguments"
    return "response.custom_tool_call_input"
