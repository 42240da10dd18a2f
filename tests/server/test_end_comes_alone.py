"""A text's end that is read after its last step: what was held back until then is still shown.

So it comes where a replica dies between the two, and another one finds the end.
"""

import json
from collections import deque

import httpx
import pytest

from cutaway import LLM
from cutaway.requests.generation import Generations
from cutaway.server.http.settings import ServerSettings
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE, serve

SAID = "a <tool_c"
ASK = [{"role": "user", "content": "a"}]
SHAPE = {"type": "object", "properties": {}}
FUNCTION = {"name": "f", "description": "f", "parameters": SHAPE}
CHAT = {"messages": ASK, "tools": [{"type": "function", "function": FUNCTION}]}
RESPONSE = {"input": "a", "tools": [{"type": "function", **FUNCTION}]}
MESSAGE = {"messages": ASK, "tools": [{"name": "f", "input_schema": SHAPE}]}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("alone") / "t.gguf"
    write_tiny_llama(path, context=2048, metadata={"tokenizer.chat_template": TEMPLATE})
    with serve(LLM(path, threads=1), ServerSettings(names=["tiny"])) as served:
        yield served


class OneByOne:
    """A reader that gives one event at a time, however many came together."""

    def __init__(self, reader):
        self._reader, self._waiting = reader, deque()

    def __getattr__(self, name):
        return getattr(self._reader, name)

    async def read(self):
        self._waiting.extend([] if self._waiting else await self._reader.read())
        return [self._waiting.popleft()] if self._waiting else []


@pytest.fixture(autouse=True)
def one_event_a_read(monkeypatch):
    make = Generations.__init__
    monkeypatch.setattr(
        Generations, "__init__", lambda self, reader, each: make(self, OneByOne(reader), each)
    )


def chat_text(event):
    return "".join(one["delta"].get("content") or "" for one in event.get("choices", ()))


def response_text(event):
    return event["delta"] if event["type"] == "response.output_text.delta" else ""


def message_text(event):
    return event.get("delta", {}).get("text", "")


@pytest.mark.parametrize(
    ("path", "body", "limit", "text_of"),
    [
        ("/v1/chat/completions", CHAT, "max_completion_tokens", chat_text),
        ("/v1/responses", RESPONSE, "max_output_tokens", response_text),
        ("/v1/messages", MESSAGE, "max_tokens", message_text),
    ],
)
def test_text_that_was_held_back_is_shown(served, path, body, limit, text_of):
    ids = served.llm.tokenizer.encode(SAID, add_bos=False)
    fields = {"model": "tiny", **body, "forced": ids, limit: len(ids), "stream": True}
    with httpx.Client(base_url=served.url, timeout=60) as client:
        lines = client.post(path, json=fields).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(map(text_of, events)) == f" {SAID}"
