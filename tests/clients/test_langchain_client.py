"""LangChain by its OpenAI classes: chats, tools in a loop, structured output, streams, errors."""

import asyncio
from typing import Literal

import pytest

core = pytest.importorskip("langchain_core", reason="pip install langchain-openai, to try it")
langchain_openai = pytest.importorskip("langchain_openai", reason="pip install langchain-openai")

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]
ASK = [{"role": "user", "content": "Name a city."}]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


class Visit(BaseModel):
    """A visit to a city."""

    city: Literal["Paris", "Rome"]
    days: int


@pytest.fixture(scope="module")
def chat(url):
    return langchain_openai.ChatOpenAI(
        model="smollm2", base_url=f"{url}/v1", api_key="any", seed=3, max_tokens=100, max_retries=0
    )


def test_chats_of_all_ways_say_what_the_model_alone_says(chat, llm):
    async def stream():
        return [part.content async for part in chat.astream(ASK)]

    texts = [
        chat.invoke(ASK).content,
        "".join(part.content for part in chat.stream(ASK)),
        "".join(asyncio.run(stream())),
        *(one.content for one in chat.batch([ASK, ASK])),
    ]
    assert texts == [llm.chat(ASK, seed=3, max_tokens=100).text] * 5 and texts[0]


def test_a_loop_of_calls(chat):
    said = [HumanMessage("What is the weather in Paris?")]
    for choice in ("required", "none"):
        caller = chat.bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
        said.append(caller.invoke(said))
        said += [get_weather.invoke(call) for call in said[-1].tool_calls]
    assert [one.type for one in said] == ["human", "ai", "tool", "ai"]
    [call] = said[1].tool_calls
    assert said[2].content == f"rain in {call['args']['city']}"
    assert said[3].content and not said[3].tool_calls


def test_a_call_in_a_stream(chat):
    caller = chat.bind_tools(
        [get_weather], tool_choice="get_weather", strict=True, parallel_tool_calls=False
    )
    whole, *parts = caller.stream("What is the weather in Paris?")
    for part in parts:
        whole += part
    [call] = whole.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat, method):
    assert isinstance(chat.with_structured_output(Visit, method=method).invoke(ASK), Visit)


def test_structured_output_beside_a_tool(chat, llm):
    """What the answer begins with decides which it is."""
    for begun in "{<":
        either = chat.bind_tools(
            [get_weather], response_format=Visit, strict=True, parallel_tool_calls=False,
            extra_body={"forced": llm.tokenize(begun, add_bos=False)},
        )  # fmt: skip
        done = either.invoke(ASK)
        if begun == "{":
            assert isinstance(done.additional_kwargs["parsed"], Visit) and not done.tool_calls
        else:
            [call] = done.tool_calls
            assert call["name"] == "get_weather" and not done.content


def test_log_probabilities_and_usage(chat):
    done = chat.bind(logprobs=True, top_logprobs=2).invoke(ASK)
    told = done.response_metadata["logprobs"]["content"]
    assert "".join(one["token"] for one in told) == done.content
    assert len(told) + 1 == done.usage_metadata["output_tokens"]  # and the end token


def test_the_responses_api(url, llm):
    chat = langchain_openai.ChatOpenAI(
        model="smollm2", base_url=f"{url}/v1", api_key="any", use_responses_api=True,
        max_tokens=100, extra_body={"seed": 3},
    )  # fmt: skip
    assert chat.invoke(ASK).text == llm.chat(ASK, seed=3, max_tokens=100).text
    called = chat.bind_tools([get_weather], tool_choice="required").invoke(ASK)
    assert {call["name"] for call in called.tool_calls} == {"get_weather"}


def test_a_prompt_that_is_too_long_is_known_to_be(chat):
    with pytest.raises(ContextOverflowError):
        chat.invoke("a " * 20_000)
    with pytest.raises(ContextOverflowError):
        [*chat.stream("a " * 20_000)]


def test_the_examples_of_the_page(run_section):
    known = run_section("LangChain")
    assert isinstance(known["visit"], known["Visit"])
    assert [one.type for one in known["said"]] == ["human", "ai", "tool"]
    assert known["answer"].type == "ai" and len(known["vector"]) == 576
