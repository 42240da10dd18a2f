"""Thinking by request in every published family that thinks, through all four protocols.

Random models with the families' templates, whose thought is begun where the prompt does not begin
it: as of a model that would always think.
"""

import json
import re
from functools import cache
from itertools import product

import httpx
import pytest

from cutaway import LLM, InputError
from cutaway.rerun import replay
from cutaway.server.http.settings import ServerSettings
from cutaway.text import ChatTemplate
from cutaway.text.chat_probe import thinking_of
from cutaway.text.harmony import MARKS
from cutaway.text.message_form import MessageForm
from cutaway.trace import Trace
from support.chat_templates import FOLDER
from support.message_texts import marked_ids, write_marked_llama
from support.random_llama import WORDS, write_tiny_llama
from support.served import serve
from support.thoughts import ASK, FORMS, NONE, OFF_NAMES, TWENTY, thought_and_count

TAG = re.compile(r"<[^<>]+>|\[/?[A-Z]+\]")


def families() -> list[str]:
    """Those whose templates have words for thoughts."""
    paths = sorted((FOLDER / "families").glob("*.jinja"))
    return [path.stem for path in paths if thinking_of(template_of(path.stem), Marks())]


class Marks:
    """A tokenizer to which all that looks like a mark is one token."""

    @staticmethod
    def control_tokens(text):
        return {name: index for index, name in enumerate(re.findall(r"<\|\w+\|>", text))}

    @staticmethod
    def encode(text, **_):
        return [text]


@cache
def template_of(name):
    source = (FOLDER / "families" / f"{name}.jinja").read_text("utf-8")
    return ChatTemplate(source, "<s>", "</s>")


def written(name, folder):
    """A file of a model with the family's template and its marks."""
    template = template_of(name)
    thinking = thinking_of(template, Marks())
    marks = [*thinking.marks] if isinstance(thinking, MessageForm) else TAG.findall(thinking.empty)
    tokens, kinds = ["<unk>", "<s>", "</s>", *WORDS], [2, 3, 3, *[6] * 256, *[1] * 5]
    free = [i for i, token in enumerate(tokens) if kinds[i] == 1 or (token > "<0xF4>" and i > 2)]
    for place, mark in zip(free, marks, strict=False):
        tokens[place], kinds[place] = mark, 3
    metadata = {
        "tokenizer.chat_template": template.source,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
    }
    return write_tiny_llama(folder / "t.gguf", metadata=metadata, context=8192)


@pytest.fixture(scope="module")
def family(request, tmp_path_factory):
    """(a model with the template and its marks, a server of it)"""
    path = written(request.param, tmp_path_factory.mktemp("family"))
    with (
        LLM(path, threads=1, progress=False) as llm,
        serve(llm, ServerSettings(names=["t"])) as served,
    ):
        yield llm, served


def asked(family, path, wish=None, **fields):
    """(whether a thought was begun, what was thought, how many tokens of it were counted)"""
    llm, served = family
    prompt = llm.detokenize(llm.chat_prompt(ASK, think=wish), special=True)
    thinking = llm.model.thinking.with_prompt(prompt)
    body = {"model": "t", **FORMS[path], **fields}
    begins = path != "/api/chat" and not thinking.opened  # Ollama's form cannot begin one
    if begins:
        body |= {"forced": thinking.token_ids(thinking.opening, llm.tokenizer), "seed": 1}
    answer = httpx.post(served.url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return begins or thinking.opened, *thought_and_count(path, answer.json())


def asked_by(index: int) -> str:
    """The protocol in which a family is asked in the usual run, each in turn: what a protocol says
    of a thought does not depend on the family."""
    return [*FORMS][index % len(FORMS)]


every_family = pytest.mark.parametrize(
    ("family", "path"),
    [
        pytest.param(name, path, marks=[] if path == asked_by(i) else pytest.mark.slow)
        for i, name in enumerate(families())
        for path in FORMS
    ],
    indirect=["family"],
)


@every_family
def test_none_gives_no_thought(family, path):
    begun, _, count = asked(family, path)
    assert count > 0 or not begun
    assert asked(family, path, wish=False, **NONE[path])[1:] == ("", 0)


@pytest.mark.parametrize("family", families(), indirect=True)
def test_every_name_that_chats_have_for_it_gives_no_thought(family):
    """Also that of another template's variable."""
    for fields in OFF_NAMES:
        path = "/v1/chat/completions"
        assert asked(family, path, wish=False, **fields)[1:] == ("", 0), fields


@every_family
def test_a_budget_of_20_gives_20_at_most(family, path):
    begun, _, count = asked(family, path, **TWENTY[path])
    assert count <= 20 and (count > 0 or not begun)


CALL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASKED_FOR = [
    {"json_schema": {"type": "integer"}},
    {"tools": [CALL], "tool_choice": "required"},
]
SLASH = [{"role": "system", "content": "/no_think"}, *ASK]


def told_not_to_think(llm):
    """(messages, keywords) of requests that are to have no thought: by the flag of the template,
    by ours, and those whose prompt has a closed one, as some templates write by themselves or
    behind a word of the system's."""
    if flag := llm.model.thinking_switch.flag:
        yield ASK, {"think": False}
        yield ASK, {"chat_template_kwargs": {flag: False}}
    for said in (ASK, SLASH):
        prompt = llm.detokenize(llm.chat_prompt(said), special=True)
        if prompt.rstrip().endswith(llm.model.thinking.closing):
            yield said, {}


@pytest.mark.parametrize("name", families())
def test_a_thought_that_was_closed_does_not_begin_again(name, tmp_path):
    """Under a schema or required calls, though the model would."""
    with LLM(written(name, tmp_path), threads=1, progress=False) as llm:
        thinking = llm.model.thinking
        if isinstance(thinking, MessageForm):
            pytest.skip("its messages have headers, which a schema or a call requires")
        opening = thinking.token_ids(thinking.opening, llm.tokenizer)[0]
        eager = {"logit_bias": {opening: 100}, "max_tokens": 4}
        for (said, given), wanted in product(told_not_to_think(llm), ASKED_FOR):
            done = llm.chat(said, **given, **wanted, **eager)
            assert done.steps[0].token_id != opening, (said, given, wanted)
            assert "reasoning_content" not in done.new_messages[0]


def test_some_prompts_close_a_thought_because_of_what_the_system_says():
    """So what a thought is depends on the messages, and not on variables alone."""
    for name in ("smollm3", "nemotron-nano-v2"):
        assert template_of(name).render(SLASH).rstrip().endswith("</think>")
        assert not template_of(name).render(ASK).rstrip().endswith("</think>")


def test_what_a_closed_thought_lets_pass_is_all_answer(tmp_path):
    """Also what looks like another thought, under a grammar that has it."""
    metadata = {"tokenizer.chat_template": template_of("qwen3").source}
    with LLM(write_tiny_llama(tmp_path / "t.gguf", metadata=metadata), progress=False) as llm:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        done = llm.chat(ASK, regex="<think>no</think>", max_tokens=40, **off)
    assert done.new_messages[0] == {"role": "assistant", "content": "<think>no</think>"}


# -- harmony ---------------------------------------------------------------------------------------

# A model that writes harmony, through every protocol: thoughts, text and calls apart.


HARMONY_ASK = [{"role": "user", "content": "a"}]
SCHEMA = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": EMPTY}}
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
HARMONY_CALL = " to=functions.f<|channel|>commentary json<|message|>{}<|call|>"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_marked_llama(
        tmp_path_factory.mktemp("harmony"), "families/gpt-oss", MARKS, "<|return|>"
    )


@pytest.fixture
def llm(path):
    with LLM(path, threads=1, progress=False) as made:
        yield made


def ids(llm, text):
    return marked_ids(llm.tokenizer, text)


def test_in_python(llm, tmp_path):
    said = ids(llm, THOUGHT + FINAL + "yes<|return|>")
    done = llm.chat(HARMONY_ASK, forced=said, max_tokens=200)
    assert done.finish_reason == "end_token" and done.reasoning_tokens == 2
    [message] = done.new_messages
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    file = tmp_path / "t.jsonl"
    done = llm.chat(
        HARMONY_ASK,
        json_schema=SCHEMA,
        forced=ids(llm, THOUGHT),
        max_tokens=300,
        seed=1,
        trace=file,
    )
    assert json.loads(done.new_messages[-1]["content"]) is not None
    assert done.new_messages[-1]["reasoning_content"].startswith("hm")
    assert replay(llm, Trace.read(file)).same


def test_calls_in_python(llm):
    done = llm.chat(
        HARMONY_ASK,
        tools=[TOOL],
        forced=ids(llm, THOUGHT + HARMONY_CALL),
        max_tokens=300,
    )
    assert [(call.name, call.values()) for call in done.tool_calls] == [("f", {})]
    assert done.finish_reason == "end_token" and done.reasoning_tokens == 2
    again = [*HARMONY_ASK, *done.new_messages]
    again.append({"role": "tool", "tool_call_id": done.tool_calls[0].id, "content": "R"})
    prompt = llm.tokenizer.decode(llm.chat_prompt(again, [TOOL]), special=True)
    assert f"{THOUGHT}{HARMONY_CALL}" in prompt.replace(" hm", "hm")
    forced = ids(llm, THOUGHT)
    done = llm.chat(
        HARMONY_ASK, tools=[TOOL], tool_choice="required", forced=forced, max_tokens=600, seed=2
    )
    assert done.finish_reason == "max_tokens" or done.tool_calls[-1].name == "f"
    done = llm.chat(
        HARMONY_ASK,
        tools=[TOOL],
        json_schema=SCHEMA,
        forced=ids(llm, FINAL),
        max_tokens=99,
    )
    assert json.loads(done.new_messages[-1]["content"]) and not done.tool_calls


def test_an_answer_that_goes_on_is_of_the_final_channel(llm):
    begun = [*HARMONY_ASK, {"role": "assistant", "content": "It is <|end|>: ", "thinking": "hm"}]
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


@pytest.fixture
def served(path):
    with serve(LLM(path, threads=1, progress=False), ServerSettings(names=["t"])) as served:
        yield served


@pytest.fixture
def answer_ids(served):
    return ids(served.llm, THOUGHT + FINAL + "yes<|return|>")


@pytest.fixture
def call_ids(served):
    return ids(served.llm, THOUGHT + HARMONY_CALL)


def test_chat_completions_have_thought_text_and_call(served, answer_ids, call_ids):
    path, fields = "/v1/chat/completions", {"messages": HARMONY_ASK}
    answer = post(served, path, forced=answer_ids, **fields).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["content"] == "yes"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    [choice] = post(served, path, tools=[TOOL], forced=call_ids, **fields).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}
    lines = post(served, path, forced=answer_ids, stream=True, **fields).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [c["delta"] for event in events for c in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "yes"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"


def test_responses_have_thought_text_and_call(served, answer_ids, call_ids):
    answer = post(served, "/v1/responses", input="a", forced=answer_ids).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert answer["output"][1]["content"][0]["text"] == "yes"
    tool = {"type": "function", **TOOL["function"]}
    answer = post(served, "/v1/responses", input="a", tools=[tool], forced=call_ids).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "function_call"]


def test_messages_have_thought_and_call(served, call_ids):
    fields = {"messages": HARMONY_ASK, "tools": [{"name": "f", "input_schema": EMPTY}]}
    answer = post(served, "/v1/messages", forced=call_ids, max_tokens=300, **fields).json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
    assert answer["stop_reason"] == "tool_use" and answer["usage"]["reasoning_tokens"] == 2
