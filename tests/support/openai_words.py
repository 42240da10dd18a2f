"""Answers of OpenAI's client: streams joined to whole answers, and parts without times."""

import json
from types import SimpleNamespace
from typing import Any

from cutaway.trace import Trace

_CHANGES = (
    "id", "created", "timing", "ms", "prompt_tokens_details", "cached_tokens", "object", "chunks"
)  # fmt: skip


def clean(answer: Any) -> Any:
    """Return an answer without nulls and without parts that depend on time or the cache."""
    data = json.loads(answer.model_dump_json()) if hasattr(answer, "model_dump_json") else answer
    if isinstance(data, dict):
        return {k: clean(v) for k, v in data.items() if k not in _CHANGES and v is not None}
    return [clean(element) for element in data] if isinstance(data, list) else data


def join(chunks: Any) -> Any:
    """Join a stream to the whole answer, with attributes as the client's answers have."""
    chunks = list(chunks)
    head = json.loads(chunks[0].model_dump_json())
    whole: dict[str, Any] = {**head, "choices": [], "chunks": len(chunks)}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        data = json.loads(chunk.model_dump_json())
        assert data["id"] == head["id"] and data["model"] == head["model"]
        whole["usage"] = data.get("usage")
        for part in data["choices"]:
            _add(choices.setdefault(part["index"], {"index": part["index"]}), part)
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return Joined(whole)


class Joined(SimpleNamespace):
    """A joined stream."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(**data, data=data)
        self.choices = [SimpleNamespace(**choice) for choice in data["choices"]]

    def model_dump_json(self) -> str:
        return json.dumps(self.data)


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Add one event's part of a choice; no part may follow the choice's end."""
    assert not choice.get("finish_reason")
    if "delta" in part:
        message = choice.setdefault("message", {"content": "", "role": "assistant"})
        _add_delta(message, part["delta"])
    else:
        choice["text"] = choice.get("text", "") + part["text"]
    if part.get("logprobs"):
        logprobs = choice.setdefault("logprobs", {})
        for name, values in part["logprobs"].items():
            logprobs[name] = None if values is None else [*(logprobs.get(name) or []), *values]
    if "token_ids" in part:
        choice["token_ids"] = [*choice.get("token_ids", []), *part["token_ids"]]
    if "prompt_token_ids" in part:
        choice["prompt_token_ids"] = part["prompt_token_ids"]
    extension = part.get("cutaway") or {}
    records = [*choice.get("cutaway", {}).get("trace", []), *extension.get("trace", [])]
    choice["cutaway"] = (
        choice.get("cutaway", {}) | extension | ({"trace": records} if records else {})
    )
    choice["finish_reason"] = part["finish_reason"]


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    assert delta.get("role") in (None, "assistant")
    message["content"] = (message["content"] or "") + (delta.get("content") or "")
    for piece in delta.get("tool_calls") or []:
        _add_call(message.setdefault("tool_calls", []), piece)
    if message.get("tool_calls") and not message["content"]:
        message["content"] = None


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Add a piece of a call: the first names the tool, the others have more of the arguments."""
    if piece.get("id"):
        assert piece["index"] == len(calls)
        calls.append({name: value for name, value in piece.items() if name != "index"})
        return
    call = calls[piece["index"]]
    kind, field = {"function": ("function", "arguments"), "custom": ("custom", "input")}[
        call["type"]
    ]
    call[kind][field] += piece[kind][field]


def trace_of(choice: Any) -> Trace:
    """Return the trace of a choice's records."""
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in choice.cutaway["trace"]]
    return Trace.parse("".join(lines).encode())
