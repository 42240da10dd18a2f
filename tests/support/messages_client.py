"""Answers of /v1/messages, whole and streamed, as tests compare them."""

import json

import httpx

MESSAGES = [{"role": "user", "content": "ab\nb"}]
ASK = {"messages": MESSAGES, "max_tokens": 40, "temperature": 1.0, "seed": 118}


def events_of(stream):
    """Return the events of a stream; each must have its name, and no comment may occur."""
    *blocks, end = stream.split("\n\n")
    assert end == ""
    bodies = []
    for block in blocks:
        name, data = block.split("\n")
        bodies.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {bodies[-1]['type']}"
    return bodies


def build_message(events):
    """Build the message of a stream's events, and check their order."""
    first, *middle, last, stop = [e for e in events if set(e) - {"type"} or e["type"] != "ping"]
    assert (first["type"], last["type"]) == ("message_start", "message_delta")
    assert stop == {"type": "message_stop"}
    message, is_open = first["message"], False
    assert message["content"] == [] and message["stop_reason"] is None
    for event in middle:
        if event["type"] == "ping":
            continue
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append({**event["content_block"]})
            is_open, arguments = True, ""
            continue
        block = message["content"][-1]
        assert is_open and event["index"] == len(message["content"]) - 1
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = arguments
            continue
        delta = event["delta"]
        kind = delta["type"].removesuffix("_delta")
        assert event["type"] == "content_block_delta" and len(delta) == 2
        if kind == "input_json":
            assert block["type"] == "tool_use"
            arguments += delta["partial_json"]
        else:
            assert block["type"] == kind
            block[kind] += delta[kind]
    assert not is_open
    extension = message["cutaway"] | last["cutaway"]
    return {**message, **last["delta"], "usage": last["usage"], "cutaway": extension}


def lasting(message):
    """Return the parts of a message that do not depend on the time of the request."""
    rest = {k: v for k, v in message.items() if k not in ("id", "usage", "cutaway")}
    rest["output_tokens"] = message["usage"]["output_tokens"]
    read = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    rest["read"] = sum(message["usage"][name] for name in read)
    lasts = {
        k: v for k, v in message["cutaway"].items() if k not in ("timing", "replica", "replicas")
    }
    return rest | {"cutaway": lasts}


class Asker(httpx.Client):
    """A client of /v1/messages."""

    def whole(self, **fields):
        """Return the whole answer."""
        answer = self.post("/v1/messages", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream_events(self, **fields):
        """Return the events of a streamed answer."""
        answer = self.post("/v1/messages", json={**fields, "stream": True})
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    def count_tokens(self, **fields):
        """Return the number of the prompt's tokens."""
        answer = self.post("/v1/messages/count_tokens", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["input_tokens"]

    def refusal(self, status=400, path="/v1/messages", **fields):
        """Return the sentence of a refusal, which must have Anthropic's form."""
        answer = self.post(path, json=fields)
        assert answer.status_code == status, answer.text
        refusal = answer.json()
        assert set(refusal) == {"type", "error"} and refusal["type"] == "error"
        assert set(refusal["error"]) == {"type", "message"}
        return refusal["error"]["message"]
