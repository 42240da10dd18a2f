"""A model that writes harmony, through every protocol: thoughts, text and calls apart."""

import json

import httpx
import pytest

from cutaway import LLM, InputError
from cutaway.rerun import replay
from cutaway.server.http.settings import ServerSettings
from cutaway.text.harmony import MARKS
from cutaway.trace import Trace
from support.chat_templates import template
from support.random_llama import WORDS, write_tiny_llama
from support.served import serve

TOKENS = ["<unk>", "<s>", "</s>", *WORDS[:254], *MARKS]  # in place of bytes that no text has
ASK = [{"role": "user", "content": "a"}]
SCHEMA = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": EMPTY}}
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = " to=functions.f<|channel|>commentary json<|message|>{}<|call|>"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    metadata = {
        "tokenizer.chat_template": template("families/gpt-oss").source,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 254, *[3] * len(MARKS)],
        "tokenizer.ggml.eos_token_id": TOKENS.index("<|return|>"),
    }
    folder = tmp_path_factory.mktemp("harmony")
    return write_tiny_llama(folder / "t.gguf", metadata=metadata, context=4096)


@pytest.fixture
def llm(path):
    with LLM(path, threads=1, progress=False) as made:
        yield made


def ids(llm: LLM, text: str) -> list[int]:
    """As the model writes it: no space in front of a text behind a mark."""
    found = []
    for part in llm.tokenizer._all_specials.split(text):
        if isinstance(part, int):
            found.append(part)
        else:
            found += [TOKENS.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return found


def test_in_python(llm, tmp_path):
    said = ids(llm, THOUGHT + FINAL + "yes<|return|>")
    done = llm.chat(ASK, forced=said, max_tokens=200)
    assert done.finish_reason == "end_token" and done.reasoning_tokens == 2
    [message] = done.new_messages
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    file = tmp_path / "t.jsonl"
    done = llm.chat(
        ASK, json_schema=SCHEMA, forced=ids(llm, THOUGHT), max_tokens=300, seed=1, trace=file
    )
    assert json.loads(done.new_messages[-1]["content"]) is not None
    assert done.new_messages[-1]["reasoning_content"].startswith("hm")
    assert replay(llm, Trace.read(file)).same


def test_calls_in_python(llm):
    done = llm.chat(ASK, tools=[TOOL], forced=ids(llm, THOUGHT + CALL), max_tokens=300)
    assert [(call.name, call.values()) for call in done.tool_calls] == [("f", {})]
    assert done.finish_reason == "end_token" and done.reasoning_tokens == 2
    again = [*ASK, *done.new_messages]
    again.append({"role": "tool", "tool_call_id": done.tool_calls[0].id, "content": "R"})
    prompt = llm.tokenizer.decode(llm.chat_prompt(again, [TOOL]), special=True)
    assert f"{THOUGHT}{CALL}" in prompt.replace(" hm", "hm")
    forced = ids(llm, THOUGHT)
    done = llm.chat(
        ASK, tools=[TOOL], tool_choice="required", forced=forced, max_tokens=600, seed=2
    )
    assert done.finish_reason == "max_tokens" or done.tool_calls[-1].name == "f"
    done = llm.chat(ASK, tools=[TOOL], json_schema=SCHEMA, forced=ids(llm, FINAL), max_tokens=99)
    assert json.loads(done.new_messages[-1]["content"]) and not done.tool_calls


def test_an_answer_that_goes_on_is_of_the_final_channel(llm):
    begun = [*ASK, {"role": "assistant", "content": "It is <|end|>: ", "thinking": "hm"}]
    prompt = llm.tokenizer.decode(llm.chat_prompt(begun, continue_final_message=True), special=True)
    assert prompt.endswith(f"{FINAL}It is <|end|>: ")
    fields = {"continue_final_message": True, "max_tokens": 200, "seed": 1}
    done = llm.chat(begun, forced=ids(llm, "yes<|return|>"), **fields)
    assert done.new_messages[-1]["content"] == "It is <|end|>: yes" and not done.reasoning_tokens
    for tools in ((), [TOOL]):
        done = llm.chat(begun, tools=tools, json_schema=SCHEMA, **fields)
        said = done.new_messages[-1]["content"].removeprefix("It is <|end|>: ")
        assert done.text == said and json.loads(said)
    with pytest.raises(InputError, match="calls no tool within an answer that has begun"):
        llm.chat(begun, tools=[TOOL], tool_choice="required", **fields)


def post(served, path, **fields):
    return httpx.post(served.url + path, json={"model": "t", **fields}, timeout=60)


def test_over_http(path):
    llm = LLM(path, threads=1, progress=False)
    said, calls = ids(llm, THOUGHT + FINAL + "yes<|return|>"), ids(llm, THOUGHT + CALL)
    with serve(llm, ServerSettings(names=["t"])) as served:
        answer = post(served, "/v1/chat/completions", messages=ASK, forced=said).json()
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["reasoning_content"] == "hm"
        assert choice["message"]["content"] == "yes"
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
        answer = post(
            served, "/v1/chat/completions", messages=ASK, tools=[TOOL], forced=calls
        ).json()
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": "{}"}
        answer = post(served, "/v1/responses", input="a", forced=said).json()
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][1]["content"][0]["text"] == "yes"
        answer = post(
            served, "/v1/responses", input="a", tools=[{"type": "function", **TOOL["function"]}],
            forced=calls,
        ).json()  # fmt: skip
        assert [item["type"] for item in answer["output"]] == ["reasoning", "function_call"]
        tool = {"name": "f", "input_schema": EMPTY}
        answer = post(
            served, "/v1/messages", messages=ASK, tools=[tool], forced=calls, max_tokens=300
        ).json()
        assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
        assert answer["stop_reason"] == "tool_use" and answer["usage"]["reasoning_tokens"] == 2
        lines = httpx.post(
            served.url + "/v1/chat/completions", timeout=60,
            json={"model": "t", "messages": ASK, "forced": said, "stream": True},
        ).text.splitlines()  # fmt: skip
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        deltas = [c["delta"] for event in events for c in event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "yes"
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
