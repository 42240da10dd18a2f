"""A model that writes Inkling's messages: thoughts, text and calls, in Python and over HTTP."""

import json

import pytest

from cutaway import LLM
from cutaway.rerun import replay
from cutaway.text.inkling import InklingMessages
from cutaway.trace import Trace
from support.message_endpoints import ASK, SCHEMA, TOOL, check_over_http
from support.message_texts import marked_ids, write_marked_llama

END, NEXT = "<|content_model_end_sampling|>", "<|end_message|><|message_model|>"
THOUGHT = f"<|content_thinking|>hm{NEXT}"
FINAL = "<|content_text|>"
CALL = 'f<|content_invoke_tool_json|>{"name":"f","args":{"days":22}}<|end_message|>'


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inkling")
    path = write_marked_llama(folder, "written/inkling", InklingMessages.marks, END)
    with LLM(path, threads=1, progress=False) as made:
        yield made


def token_ids(llm: LLM, text: str) -> list[int]:
    return marked_ids(llm.tokenizer, text)


def test_a_call_is_read_answered_and_in_the_next_prompt(llm: LLM) -> None:
    text = f"{THOUGHT}{FINAL}I look.{NEXT}{CALL}<|message_model|>{CALL}"
    done = llm.chat(ASK, tools=[TOOL], forced=token_ids(llm, text + END), max_tokens=600)
    assert [(call.name, call.values()) for call in done.tool_calls] == [("f", {"days": 22})] * 2
    [message] = done.new_messages
    assert (message["reasoning_content"], message["content"]) == ("hm", "I look.")
    assert (done.finish_reason, done.reasoning_tokens) == ("end_token", 2)
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "R"} for call in done.tool_calls
    ]
    again = [*ASK, message, *results]
    prompt = llm.tokenizer.decode(llm.chat_prompt(again, [TOOL]), special=True)
    assert f"<|message_model|>{text}{END}<|message_tool|>f<|content_text|>R" in prompt


def test_a_required_call_comes_and_its_record_is_replayed(llm: LLM, tmp_path) -> None:
    file, forced = tmp_path / "t.jsonl", token_ids(llm, THOUGHT + CALL.partition("22")[0])
    done = llm.chat(
        ASK, tools=[TOOL], tool_choice="required", forced=forced, max_tokens=600, trace=file
    )
    assert done.tool_calls[0].values()["days"] in (1, 22)
    assert replay(llm, Trace.read(file)).same


def test_off_is_said_in_the_prompt_and_a_thought_is_closed(llm: LLM) -> None:
    prompt = llm.tokenizer.decode(llm.chat_prompt(ASK, think=False), special=True)
    assert "Thinking effort level: 0<" in prompt
    text = token_ids(llm, "<|content_thinking|>")
    done = llm.chat(ASK, think=False, forced=text, max_tokens=60, seed=1)
    assert "reasoning_content" not in done.new_messages[0] and done.reasoning_tokens == 0


def test_a_schema_holds_in_the_text(llm: LLM) -> None:
    done = llm.chat(
        ASK, json_schema=SCHEMA, forced=token_ids(llm, THOUGHT + FINAL), max_tokens=300, seed=1
    )
    assert json.loads(done.new_messages[-1]["content"])["days"] in (1, 22)
    begun = [*ASK, {"role": "assistant", "content": "It is <|end_message|>: "}]
    prompt = llm.tokenizer.decode(llm.chat_prompt(begun, continue_final_message=True), special=True)
    assert prompt.endswith(f"<|message_model|>{FINAL}It is <|end_message|>: ")


def test_over_http(llm: LLM) -> None:
    text, calls = f"{THOUGHT}{FINAL}yes<|end_message|>{END}", f"{THOUGHT}{CALL}{END}"
    check_over_http(llm, text, calls, effort="max")
