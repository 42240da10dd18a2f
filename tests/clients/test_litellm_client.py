"""LiteLLM: by OpenAI's form, Anthropic's and Ollama's, with calls, streams and errors."""

import asyncio
import json
import os

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks a server of its own
litellm = pytest.importorskip("litellm", reason="pip install litellm mcp, to try it")
pytest.importorskip("mcp", reason="pip install mcp: LiteLLM imports it where there are tools")
pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]

ASK = [{"role": "user", "content": "Name a city."}]
LONG = [{"role": "user", "content": "a " * 20_000}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
DRAWN = {"max_tokens": 60, "temperature": 0, "max_retries": 0}  # Anthropic's form has no seed
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
FORMS = {"openai": "/v1", "hosted_vllm": "/v1", "anthropic": "", "ollama_chat": ""}
"""How LiteLLM names a form, and what follows the server's address."""


@pytest.fixture(params=FORMS)
def server(request, url):
    model, base = f"{request.param}/smollm2", url + FORMS[request.param]
    return {"model": model, "api_base": base, "api_key": "any", "messages": ASK, **DRAWN}


@pytest.fixture(scope="module")
def alone(llm):
    return llm.chat(ASK, temperature=0, max_tokens=60).text


def test_chats_of_all_ways_say_what_the_model_alone_says(server, alone):
    async def stream():
        parts = await litellm.acompletion(stream=True, **server)
        return [part.choices[0].delta.content or "" async for part in parts]

    whole = litellm.completion(**server)
    parts = litellm.completion(stream=True, **server)
    streamed = "".join(part.choices[0].delta.content or "" for part in parts)
    assert whole.choices[0].message.content == streamed == "".join(asyncio.run(stream())) == alone
    assert whole.usage.completion_tokens > 0


def test_a_prompt_that_is_too_long_is_known_to_be(server):
    known = litellm.ContextWindowExceededError
    if "ollama" in server["model"]:  # whose errors LiteLLM takes for bad requests, all of them
        known = litellm.BadRequestError
    asked = {**server, "messages": LONG}
    with pytest.raises(known, match="maximum context length"):
        litellm.completion(**asked)
    with pytest.raises(known, match="maximum context length"):
        [*litellm.completion(stream=True, **asked)]


@pytest.mark.parametrize("stream", [False, True])
def test_calls(server, stream):
    if "ollama" in server["model"]:
        pytest.skip("Ollama's form cannot require a call")
    asked = {"tools": TOOLS, "tool_choice": "required", **server}
    done = litellm.completion(stream=stream, **asked)
    if stream:
        done = litellm.stream_chunk_builder([*done])
    for call in done.choices[0].message.tool_calls:
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_json_of_a_schema(server):
    schema = {"name": "visit", "schema": PARAMETERS, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    done = litellm.completion(response_format=form, **server)
    assert [*json.loads(done.choices[0].message.content)] == ["city"]


def test_vectors_and_completions(url, llm):
    server = {"api_base": f"{url}/v1", "api_key": "any"}
    done = litellm.embedding(model="openai/smollm2", input=["one", "two"], **server)
    assert done.data[1]["embedding"] == llm.embed("two").vectors[0].tolist()
    done = litellm.text_completion(
        model="text-completion-openai/smollm2", prompt="The sky is", max_tokens=5, seed=3, **server
    )
    assert done.choices[0].text == llm.generate("The sky is", max_tokens=5, seed=3).text


def test_the_examples_of_the_page(run_section, llm):
    known = run_section("LiteLLM")
    assert known["answer"].choices[0].message.content == llm.chat(known["ask"], seed=3).text
