"""Ollama's own client, as its users write it. Slow: it is not among what the tests install."""

import asyncio

import pytest

ollama = pytest.importorskip("ollama", reason="pip install ollama, to try Ollama's own client")
pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
DRAWN = {"seed": 3, "temperature": 0.7, "num_predict": 60, "num_ctx": 2048}


@pytest.fixture
def client(url):
    with ollama.Client(url) as client:
        yield client


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: which one
    """
    return f"rain in {city}"


def test_a_chat_whole_and_streamed(client, llm):
    whole = client.chat("smollm2", ASK, options=DRAWN)
    parts = [*client.chat("smollm2", ASK, options=DRAWN, stream=True)]
    alone = llm.chat(ASK, seed=3, temperature=0.7, max_tokens=60).text
    assert "".join(part.message.content for part in parts) == whole.message.content == alone
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count > 0
    assert whole.done_reason in ("stop", "length")
    logged = client.chat("smollm2", ASK, options=DRAWN, logprobs=True, top_logprobs=2)
    assert "".join(one.token for one in logged.logprobs) == whole.message.content


def test_a_prompt_and_what_follows_it(client):
    first = client.generate("smollm2", "Say hello.", options=DRAWN)
    streamed = [*client.generate("smollm2", "Say hello.", options=DRAWN, stream=True)]
    assert "".join(part.response for part in streamed) == first.response
    more = client.generate("smollm2", "Again.", context=first.context, options=DRAWN)
    assert more.context[: len(first.context)] == first.context
    assert client.generate("smollm2").done_reason == "load"


def test_a_call_of_a_function_that_is_answered(client):
    """Whether one is made the model decides: an answered one is what the client makes of it."""
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    asked = ollama.Message(role="assistant", tool_calls=[call])
    result = get_weather(**asked.tool_calls[0].function.arguments)
    told = [*ASK, asked, {"role": "tool", "tool_name": "get_weather", "content": result}]
    done = client.chat("smollm2", told, tools=[get_weather], options=DRAWN)
    assert done.done and done.prompt_eval_count > 50


def test_json_that_a_schema_describes(client):
    from pydantic import BaseModel

    class Weather(BaseModel):
        rain: bool
        degrees: int

    schema = Weather.model_json_schema()
    done = client.chat("smollm2", ASK, format=schema, options=DRAWN)
    assert Weather.model_validate_json(done.message.content)


def test_vectors(client):
    done = client.embed("smollm2", ["one", "two"])
    assert len(done.embeddings) == 2
    assert client.embeddings("smollm2", "one").embedding == done.embeddings[0]


def test_which_model_there_is(client):
    name = client.list().models[0].model
    assert name == "smollm2:latest"
    shown = client.show(name)
    assert shown.modelinfo["general.architecture"] == shown.details.family
    assert "completion" in shown.capabilities
    assert client.ps().models[0].context_length > 0


def test_errors_are_raised_as_the_client_has_them(client):
    with pytest.raises(ollama.ResponseError, match="not here") as raised:
        client.chat("nothing", ASK)
    assert raised.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="mirostat") as raised:
        [*client.chat("smollm2", ASK, options={"mirostat": 2}, stream=True)]
    assert raised.value.status_code == 400


def test_many_at_once(url):
    async def ask():
        async with ollama.AsyncClient(url) as client:
            each = (client.chat("smollm2", ASK, options=DRAWN) for _ in range(3))
            return await asyncio.gather(*each)

    first, *others = [done.message.content for done in asyncio.run(ask())]
    assert first and all(other == first for other in others)


def test_the_examples_of_the_page(run_section):
    known = run_section("Ollama")
    assert known["part"].done and len(known["vectors"]) == 2
