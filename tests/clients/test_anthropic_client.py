"""/v1/messages through Anthropic's own client, which checks the types of all that it is told."""

import asyncio

import pytest

anthropic = pytest.importorskip("anthropic", reason="pip install anthropic: its own client")
pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]

SAID = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASK = {"model": "smollm2", "messages": SAID, "max_tokens": 24, "extra_body": {"seed": 3}}


def client_of(url, make=anthropic.Anthropic):
    return make(base_url=url, api_key="x", max_retries=0, _strict_response_validation=True)


@pytest.fixture(scope="module")
def client(url):
    with client_of(url) as client:
        yield client


def test_whole_streamed_and_async_are_one_answer(client, url, llm):
    whole = client.messages.create(**ASK, system="Be short.")
    with client.messages.stream(**ASK, system="Be short.") as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    raw = client.messages.create(**ASK, system="Be short.", stream=True)
    deltas = [event.delta.text for event in raw if event.type == "content_block_delta"]

    async def ask():
        async with client_of(url, anthropic.AsyncAnthropic) as other:
            return await other.messages.create(**ASK, system="Be short.")

    other = asyncio.run(ask())
    said = [{"role": "system", "content": "Be short."}, *SAID]
    alone = llm.chat(said, max_tokens=24, seed=3).text
    texts = [text, "".join(deltas), *(m.content[0].text for m in (whole, last, other))]
    assert texts == [alone] * 5 and alone
    assert len({(m.stop_reason, m.usage.output_tokens) for m in (whole, last, other)}) == 1
    asked = {"model": "smollm2", "messages": SAID, "system": "Be short."}
    counted = client.messages.count_tokens(**asked).input_tokens
    for usage in (whole.usage, last.usage, other.usage):
        assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_tools_there_and_back(client):
    tools = {"tools": [WEATHER], "max_tokens": 100}
    forced = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(**{**ASK, **tools}, tool_choice=forced) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        called = stream.get_final_message()
    assert called.stop_reason == "tool_use" and len(pieces) > 1
    [call] = called.content
    assert call.name == "get_weather" and [*call.input] == ["city"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    said = [
        *SAID,
        {"role": "assistant", "content": [block.to_dict() for block in called.content]},
        {"role": "user", "content": [result]},
    ]
    done = client.messages.create(**{**ASK, **tools, "messages": said})
    assert done.stop_reason in ("end_turn", "max_tokens", "tool_use")


def test_what_cannot_be_raises_the_clients_own_errors(client):
    with pytest.raises(anthropic.NotFoundError, match="is not here"):
        client.messages.create(**{**ASK, "model": "nope"})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        long = [{"role": "user", "content": "a " * 20_000}]
        client.messages.create(**{**ASK, "messages": long})


def test_the_examples_of_the_page(run_section):
    known = run_section("Anthropic")
    [call] = known["called"].content
    assert call.name == "get_weather" and call.input["city"] in ("Paris", "Rome")
    assert known["text"] and known["counted"].input_tokens > 50
