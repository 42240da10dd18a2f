"""A schema beside tools, in each protocol: calls, or a text of the schema, whole and streamed."""

import json
from threading import Event

import httpx
import openai
import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.chat_templates import template
from support.messages_client import Asker, build_message, lasting
from support.openai_words import clean, join
from support.random_llama import write_tiny_llama
from support.responses_client import client_of
from support.served import TEMPLATE, serve

ASK = [{"role": "user", "content": "a"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["f", "h"]}, "parameters": {"enum": [{"x": 1}, {"x": 2}]}},
    "required": ["name", "parameters"],
    "additionalProperties": False,
}
ARGUMENTS = {
    "type": "object", "properties": {"x": {"enum": [1, 12]}}, "required": ["x"],
    "additionalProperties": False,
}  # fmt: skip
FUNCTION = {"name": "f", "description": "f", "parameters": ARGUMENTS}
CHAT = {
    "model": "tiny", "messages": ASK, "tools": [{"type": "function", "function": FUNCTION}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    "temperature": 1, "max_completion_tokens": 150, "parallel_tool_calls": False,
}  # fmt: skip
SEEDS = range(4)
BEGUN = {"tags": "<tool_call>", "bare": '{"name": "f", "parameters": {"x": 1}}'}


@pytest.fixture(
    scope="module",
    params=[("ours", False), ("ours", True), ("llama3", False)],
    ids=["tags", "tags, without weights", "bare JSON"],
)
def served(request, tmp_path_factory):
    """Calls in tags, which no JSON begins with, or as bare JSON, which is of the schema, too."""
    form, piped = request.param
    source = TEMPLATE if form == "ours" else template(form).source
    path = tmp_path_factory.mktemp("beside") / "t.gguf"
    write_tiny_llama(path, context=2048, metadata={"tokenizer.chat_template": source})
    with serve(LLM(path, threads=1), ServerSettings(names=["tiny"]), piped=piped) as served:
        yield served


@pytest.fixture(scope="module")
def client(served):
    with client_of(served) as client:
        yield client


def chat(client, seed, **fields):
    ids = {"return_token_ids": True}
    return client.chat.completions.create(**{**CHAT, "seed": seed, "extra_body": ids, **fields})


def is_call(text):
    """By definition."""
    if text.startswith("<tool_call>"):
        return True
    arguments = json.loads(text)["parameters"]
    shaped = text.startswith('{"name": "f", "parameters": {') and text.endswith("}}")
    return shaped and arguments == {"x": 1}


def said(message):
    """(content, calls) of a chat's message."""
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
    return message.content or "", calls


def test_a_chat_calls_or_keeps_to_the_schema(served, client, request):
    begun = next(text for form, text in BEGUN.items() if form in request.node.name)
    forced = [3 + byte for byte in begun.encode()]  # the tokens of bytes
    seen = set()
    for seed in [*SEEDS, None]:
        ours = {"return_token_ids": True, "forced": [] if seed is not None else forced}
        asked = {"seed": seed or 0, "extra_body": ours}
        [choice] = (whole := chat(client, **asked)).choices
        text = served.llm.detokenize(choice.token_ids)
        content, calls = said(choice.message)
        assert bool(calls) == is_call(text)
        if calls:
            assert choice.finish_reason == "tool_calls" and content == ""
            assert calls[0][0] == "f" and calls[0][1]["x"] in (1, 12)
        else:
            assert choice.finish_reason == "stop" and content == text
            made = json.loads(text)
            assert made["name"] in ("f", "h") and made["parameters"]["x"] in (1, 2)
        seen.add(bool(calls))
        streamed = chat(client, **asked, stream=True, stream_options={"include_usage": True})
        assert clean(join(streamed)) == clean(whole)
        assert choice.cutaway["grammar"]["kind"] == "json_schema"
        assert choice.cutaway["grammar"]["complete"]
    assert seen == {False, True}
    first, _ = chat(client, 0, n=2).choices
    assert said(first.message) == said(chat(client, 0).choices[0].message)


def test_what_was_compiled_before_waits_for_no_others(served, client):
    """The thread that compiles grammars is held for as long as the test takes."""
    before = said(chat(client, 0).choices[0].message)
    over = Event()
    served.service.llm._compiling._thread.submit(over.wait, 60)
    try:
        assert said(chat(client, 0, timeout=20).choices[0].message) == before
    finally:
        over.set()


@pytest.mark.parametrize("speculate", ["ngram", "jacobi"])
def test_draft_tokens_change_nothing(client, speculate):
    for seed in range(3):
        ours = {"return_token_ids": True, "speculate": speculate}
        drafted, plain = chat(client, seed, extra_body=ours), chat(client, seed)
        assert said(drafted.choices[0].message) == said(plain.choices[0].message)
        assert drafted.choices[0].token_ids == plain.choices[0].token_ids


def test_a_choice_of_calls_or_none_is_kept_to(client):
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        content, calls = said(chat(client, 1, tool_choice=choice).choices[0].message)
        assert calls and content == ""
    content, calls = said(chat(client, 1, tool_choice="none").choices[0].message)
    assert not calls and json.loads(content)
    alone = {**CHAT, "seed": 1}
    del alone["tools"], alone["parallel_tool_calls"]
    assert client.chat.completions.create(**alone).choices[0].message.content == content


def test_a_response_has_what_the_chat_has(client):
    tool, format = {"type": "function", **FUNCTION}, {"type": "json_schema", "name": "s",
                                                       "schema": SCHEMA}  # fmt: skip
    for seed in SEEDS:
        asked = {
            "model": "tiny", "input": "a", "tools": [tool], "text": {"format": format},
            "parallel_tool_calls": False, "max_output_tokens": 150, "temperature": 1,
            "include": ["message.output_text.logprobs"], "extra_body": {"seed": seed},
        }  # fmt: skip
        whole = client.responses.create(**asked)
        content, calls = said(chat(client, seed).choices[0].message)
        assert whole.output_text == content
        made = [
            (i.name, json.loads(i.arguments)) for i in whole.output if i.type == "function_call"
        ]
        assert made == calls and len(whole.output) == 1
        if content:
            [part] = whole.output[0].content
            assert "".join(one.token for one in part.logprobs) == content
        *_, last = client.responses.create(**asked, stream=True)
        assert last.type == "response.completed"
        assert lasting_items(last.response) == lasting_items(whole)


def lasting_items(response):
    """Without ids."""
    items = [item.to_dict() for item in response.output]
    return [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in items]


def test_a_message_has_what_the_chat_has(served, client):
    tool = {"name": "f", "description": "f", "input_schema": ARGUMENTS}
    with Asker(base_url=served.url) as ask:
        for seed in SEEDS:
            asked = {
                "messages": ASK, "tools": [tool], "max_tokens": 150, "seed": seed, "temperature": 1,
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            }  # fmt: skip
            whole, streamed = ask.whole(**asked), build_message(ask.stream_events(**asked))
            [block], [grown] = whole["content"], streamed["content"]
            content, calls = said(chat(client, seed).choices[0].message)
            if calls:
                assert (block["name"], block["input"]) == calls[0]
                assert whole["stop_reason"] == "tool_use"
                grown["input"] = json.loads(grown["input"])
                grown["id"] = block["id"]
            else:
                assert (block["type"], block["text"]) == ("text", content)
            assert lasting(streamed) == lasting(whole)
            counted = {name: asked[name] for name in ("messages", "tools", "output_config")}
            assert (
                ask.count_tokens(**counted)
                == whole["usage"]["input_tokens"] + (whole["usage"]["cache_read_input_tokens"])
            )


def test_ollamas_chat_has_what_the_chat_has(served, client):
    for seed in SEEDS:
        options = {"seed": seed, "temperature": 1, "num_predict": 150}
        body = {"messages": ASK, "tools": CHAT["tools"], "format": SCHEMA, "options": options}
        told = httpx.post(f"{served.url}/api/chat", json={**body, "stream": False}).json()
        several = chat(client, seed, parallel_tool_calls=True)
        content, calls = said(several.choices[0].message)
        message = told["message"]
        made = [c["function"] for c in message.get("tool_calls", ())]
        assert message["content"] == content
        assert [(c["name"], c["arguments"]) for c in made] == calls
        lines = httpx.post(f"{served.url}/api/chat", json=body).text.splitlines()
        parts = [json.loads(line)["message"] for line in lines]
        assert "".join(part["content"] for part in parts) == content
        grown = [c["function"] for part in parts for c in part.get("tool_calls", ())]
        assert grown == made


def test_the_prompt_says_that_a_call_may_stand_in_place_of_the_schema(served, client):
    def prompt(**fields):
        asked = chat(client, 0, max_completion_tokens=1, **fields)
        return served.llm.detokenize(asked.choices[0].prompt_token_ids)

    assert "Where you call no tool, answer in JSON of this schema:\n" in prompt()
    assert "a\n\nAnswer in JSON of this schema:\n" in prompt(tool_choice="none")
    hidden = {"return_token_ids": True, "schema_in_prompt": False}
    assert "of this schema:" not in prompt(extra_body=hidden)


def test_what_cannot_be_is_refused(client):
    unique = {"name": "s", "schema": {"type": "array", "uniqueItems": True}}
    asked = {"response_format": {"type": "json_schema", "json_schema": unique}}
    with pytest.raises(openai.BadRequestError, match=r"response_format: .*uniqueItems would have"):
        chat(client, 0, **asked)
    with pytest.raises(openai.BadRequestError, match="tools and regex exclude each other"):
        chat(client, 0, response_format=openai.omit, extra_body={"regex": "a"})
