"""A model that thinks before it answers, held to a grammar: thought and answer stand apart."""

import json

import httpx
import pytest

from cutaway import LLM
from cutaway.rerun import replay
from cutaway.server.http.settings import ServerSettings
from cutaway.trace import Trace
from support.messages_client import Asker, build_message, lasting
from support.random_llama import WORDS, write_tiny_llama
from support.served import serve

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if false %}<think></think>{% endif %}{{ bos_token }}"
)
TOKENS = ["<unk>", "<s>", "</s>", *WORDS[:-2], "<think>", "</think>"]
OPENING, CLOSING = len(TOKENS) - 2, len(TOKENS) - 1
ASK = [{"role": "user", "content": "a"}]
SCHEMA = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}


@pytest.fixture(scope="module", params=["control", "text"])
def path(request, tmp_path_factory):
    """The tags are control tokens, or text that is one token."""
    kind = {"control": 3, "text": 4}[request.param]
    metadata = {
        "tokenizer.chat_template": TEMPLATE,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, kind, kind],
    }
    folder = tmp_path_factory.mktemp("thinking")
    return write_tiny_llama(folder / "t.gguf", metadata=metadata, context=1024)


def post(served, path, **fields):
    return httpx.post(served.url + path, json={"model": "t", **fields}, timeout=60)


def thinking(llm: LLM) -> list[int]:
    return [OPENING, *llm.tokenize("ab", add_bos=False), CLOSING, *llm.tokenize("\n")[-1:]]


def text_of(llm: LLM, token_ids: list[int]) -> str:
    return b"".join(map(llm.tokenizer.token_bytes, token_ids)).decode()


def test_in_python(path):
    with LLM(path, threads=1, progress=False) as llm:
        forced = thinking(llm)
        thought = text_of(llm, forced[1:-2])
        done = llm.chat(ASK, json_schema=SCHEMA, forced=forced, max_tokens=200, seed=3)
        assert json.loads(done.new_messages[-1]["content"])
        assert done.new_messages[-1]["reasoning_content"] == thought
        plain = llm.chat(ASK, json_schema=SCHEMA, choice=(), max_tokens=200, seed=3)
        assert plain.params["thought"]
        assert done.reasoning_tokens == len(forced) - 3
        free = llm.chat(ASK, max_tokens=5)
        assert free.params["thought"] == "" and "reasoning_content" not in free.new_messages[-1]
        cut = llm.chat(ASK, forced=forced[:-2], max_tokens=len(forced) - 2)
        assert cut.new_messages[-1]["reasoning_content"] == thought
        assert cut.reasoning_tokens == len(forced) - 3 and not cut.new_messages[-1]["content"]


@pytest.mark.parametrize("thought", ["", "<think>ab", "<think>ab</think>\n"])
def test_an_answer_that_goes_on_thinks_only_within_a_thought(path, thought):
    begun = [*ASK, {"role": "assistant", "content": thought + "a" if thought else "a"}]
    with LLM(path, threads=1, progress=False) as llm:
        inside = thought.endswith("b")
        forced = [*llm.tokenize("b", add_bos=False), CLOSING] if inside else []
        fields = {"continue_final_message": True, "max_tokens": 200, "seed": 3}
        done = llm.chat(begun, json_schema=SCHEMA, forced=forced, **fields)
        [message] = done.new_messages
        assert done.reasoning_tokens == len(forced[:-1])
        assert ("reasoning_content" in message) == inside
        assert json.loads(message["content"].removeprefix(begun[-1]["content"]))


@pytest.mark.parametrize("begun", ["[", "<"])
def test_before_a_text_of_a_schema_or_calls(path, begun):
    arguments = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": arguments}}
    with LLM(path, threads=1, progress=False) as llm:
        forced = thinking(llm)
        thought = text_of(llm, forced[1:-2])
        forced += [TOKENS.index(f"<0x{ord(begun):02X}>")]
        fields = {"forced": forced, "max_tokens": 200, "seed": 3, "parallel_tool_calls": False}
        done = llm.chat(ASK, tools=[tool], json_schema=SCHEMA, **fields)
        [message] = done.new_messages
        assert message["reasoning_content"] == thought
        assert [call.values() for call in done.tool_calls] == ([{}] if begun == "<" else [])
        assert message["content"] is None if begun == "<" else json.loads(message["content"])


def test_its_trace_is_replayed(path, tmp_path):
    with LLM(path, threads=1, progress=False) as llm:
        file = tmp_path / "thought.jsonl"
        llm.chat(ASK, json_schema=SCHEMA, forced=thinking(llm), max_tokens=200, seed=3, trace=file)
        trace = Trace.read(file)
        assert trace.head.params["thought"] and replay(llm, trace).same


def test_over_http(path):
    from openai import OpenAI

    llm = LLM(path, threads=1, progress=False)
    forced, thought = thinking(llm), text_of(llm, thinking(llm)[1:-2])
    asked = {
        "model": "t", "messages": ASK, "max_completion_tokens": 200, "seed": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "extra_body": {"forced": forced, "schema_in_prompt": False},
    }  # fmt: skip
    with (
        serve(llm, ServerSettings(names=["t"])) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client,
    ):
        message = client.chat.completions.create(**asked).choices[0].message
        assert message.reasoning_content == thought
        assert json.loads(message.content)
        deltas = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True)]
        said = "".join(delta.content or "" for delta in deltas)
        assert said == message.content
        pieces = (delta.model_extra.get("reasoning_content", "") for delta in deltas)
        assert "".join(pieces) == thought
        answer = client.responses.create(
            model="t", input="a", max_output_tokens=200,
            text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
            extra_body=asked["extra_body"] | {"seed": 3},
        )  # fmt: skip
        assert [item.type for item in answer.output] == ["reasoning", "message"]
        assert answer.output[0].content[0].text == thought
        assert json.loads(answer.output_text)


def test_apart_without_a_grammar_in_every_protocol(path):
    """What was thought, what was said, and how many tokens the thought has."""
    llm = LLM(path, threads=1, progress=False)
    forced = [*thinking(llm), *llm.tokenize("ba", add_bos=False)[-2:]]
    told = (text_of(llm, thinking(llm)[1:-2]), text_of(llm, forced[-2:]), len(thinking(llm)) - 3)
    size = len(forced)
    with serve(llm, ServerSettings(names=["t"])) as served:

        def ask(path, size_name, **fields):
            return post(served, path, forced=forced, **{size_name: size}, **fields).json()

        chat = ask("/v1/chat/completions", "max_tokens", messages=ASK)
        message, usage = chat["choices"][0]["message"], chat["usage"]["completion_tokens_details"]
        assert (
            message["reasoning_content"], message["content"], usage["reasoning_tokens"]
        ) == told  # fmt: skip
        answer = ask("/v1/responses", "max_output_tokens", input="a")
        thought, said = (item["content"][0]["text"] for item in answer["output"])
        count = answer["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert (thought, said, count) == told
        answer = ask("/v1/messages", "max_tokens", messages=ASK)
        thought, said = answer["content"]
        usage = answer["usage"]["reasoning_tokens"]
        assert (thought["thinking"], said["text"], usage) == told


def test_a_prompt_that_has_opened_the_thought_and_ollamas_form(tmp_path):
    """All of the text is thought, as long as its closing mark has not come."""
    template = f"{TEMPLATE}{{% if add_generation_prompt %}}<think>\n{{% endif %}}"
    metadata = {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 3, 3],
    }
    model = write_tiny_llama(tmp_path / "t.gguf", metadata=metadata, context=1024)
    llm = LLM(model, threads=1, progress=False)
    options = {"options": {"num_predict": 9, "seed": 3}, "stream": False}
    with serve(llm, ServerSettings(names=["t"])) as served:
        answer = post(served, "/api/chat", messages=ASK, **options).json()
        assert answer["message"]["thinking"] and not answer["message"]["content"]
        assert answer["cutaway"]["reasoning_tokens"] == answer["eval_count"] == 9
        said = post(served, "/v1/chat/completions", messages=ASK, max_tokens=9, seed=3).json()
        message = said["choices"][0]["message"]
        assert message["reasoning_content"] == answer["message"]["thinking"]
        assert message["content"] == ""


def test_in_anthropics_form(path):
    """A thought is a block of its own, also where no grammar holds the answer."""
    llm = LLM(path, threads=1, progress=False)
    forced, thought = thinking(llm), text_of(llm, thinking(llm)[1:-2])
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    for more in ({"max_tokens": 20}, {"max_tokens": 200, "output_config": config}):
        fields = {"messages": ASK, "seed": 3, "forced": forced, "schema_in_prompt": False, **more}
        with serve(llm, ServerSettings(names=["t"])) as served, Asker(base_url=served.url) as ask:
            whole = ask.whole(**fields, thinking={"type": "adaptive"})
            assert lasting(
                build_message(ask.stream_events(**fields, thinking={"type": "adaptive"}))
            ) == lasting(whole)
        first, *others = whole["content"]
        assert first == {"type": "thinking", "thinking": thought, "signature": ""}
        assert [block["type"] for block in others] in ([], ["text"])
        if "output_config" in more:
            assert json.loads(others[0]["text"])
