"""A model that writes Muse's messages: thoughts, text and calls apart, in Python and over HTTP."""

import json

import pytest

from cutaway import LLM
from cutaway.rerun import replay
from cutaway.text.muse import Muse
from cutaway.trace import Trace
from support.message_endpoints import ASK, SCHEMA, TOOL, check_over_http
from support.message_texts import marked_ids, write_marked_llama

NEXT = "<|eom|><|start|>assistant"
THOUGHT = f" to=self<|message|>hm{NEXT}"
FINAL = " to=user<|message|>"
CALL = (
    ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
    '<atem:parameter name="days">22</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("muse")
    path = write_marked_llama(folder, "families/muse-glimmer", Muse.marks, "<|eot|>")
    with LLM(path, threads=1, progress=False) as made:
        yield made


def token_ids(llm: LLM, text: str) -> list[int]:
    return marked_ids(llm.tokenizer, text)


def test_a_call_is_read_answered_and_in_the_next_prompt(llm: LLM) -> None:
    text = f"{THOUGHT}{FINAL}I look.{NEXT}{CALL}{NEXT}{CALL}"
    done = llm.chat(ASK, tools=[TOOL], forced=token_ids(llm, text + "<|eot|>"), max_tokens=600)
    assert [(call.name, call.values()) for call in done.tool_calls] == [("f", {"days": 22})] * 2
    [message] = done.new_messages
    assert (message["reasoning_content"], message["content"]) == ("hm", "I look.")
    assert (done.finish_reason, done.reasoning_tokens) == ("end_token", 2)
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "R"} for call in done.tool_calls
    ]
    again = [*ASK, message, *results]
    prompt = llm.tokenizer.decode(llm.chat_prompt(again, [TOOL]), special=True)
    assert f"<|start|>assistant{text}<|eot|><|start|>tool f<|message|>" in prompt


def test_a_required_call_comes_and_its_record_is_replayed(llm: LLM, tmp_path) -> None:
    file, forced = tmp_path / "t.jsonl", token_ids(llm, THOUGHT + CALL.partition("22")[0])
    done = llm.chat(
        ASK, tools=[TOOL], tool_choice="required", forced=forced, max_tokens=600, trace=file
    )
    assert done.tool_calls[0].values()["days"] in (1, 22)
    assert replay(llm, Trace.read(file)).same


def test_off_is_an_empty_thought(llm: LLM) -> None:
    done = llm.chat(ASK, think=False, forced=[], max_tokens=60, seed=1)
    assert "reasoning_content" not in done.new_messages[0] and done.reasoning_tokens == 0
    text = llm.tokenizer.decode([step.token_id for step in done.steps], special=True)
    assert text.replace(" ", "").startswith("to=self<|message|><|eom|><|start|>assistant")


def test_a_schema_holds_in_the_message_to_the_user(llm: LLM) -> None:
    done = llm.chat(
        ASK, json_schema=SCHEMA, forced=token_ids(llm, THOUGHT + FINAL), max_tokens=300, seed=1
    )
    assert json.loads(done.new_messages[-1]["content"])["days"] in (1, 22)
    begun = [*ASK, {"role": "assistant", "content": "It is <|eom|>: "}]
    prompt = llm.tokenizer.decode(llm.chat_prompt(begun, continue_final_message=True), special=True)
    assert prompt.endswith(f"{FINAL}It is <|eom|>: ")


def test_over_http(llm: LLM) -> None:
    text, calls = f"{THOUGHT}{FINAL}yes<|eot|>", f"{THOUGHT}{CALL}<|eot|>"
    answer = check_over_http(llm, text, calls, effort="xhigh")
    assert answer["stop_reason"] == "tool_use" and answer["usage"]["reasoning_tokens"] == 2
