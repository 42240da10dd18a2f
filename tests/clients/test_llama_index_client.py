"""LlamaIndex by its class for servers like OpenAI's: chats, streams, calls, objects, vectors."""

import asyncio
from typing import Literal

import pytest

reason = "pip install llama-index-llms-openai-like llama-index-embeddings-openai-like, to try it"
pytest.importorskip("llama_index.llms.openai_like", reason=reason)
pytest.importorskip("llama_index.embeddings.openai_like", reason=reason)

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError
from pydantic import BaseModel

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]
SAID = [{"role": "user", "content": "Name a city."}]
ASK = [ChatMessage(**SAID[0])]
DRAWN = {"seed": 3, "max_tokens": 100, "temperature": 0.1}  # the latter is LlamaIndex's default


class Visit(BaseModel):
    """A visit to a city."""

    city: Literal["Paris", "Rome"]
    days: int


def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@pytest.fixture
def make(url):
    def make(**settings):
        return OpenAILike(
            model="smollm2", api_base=f"{url}/v1", api_key="any", max_tokens=100, max_retries=0,
            context_window=8192, additional_kwargs={"seed": 3}, **settings,
        )  # fmt: skip

    return make


def test_chats_of_all_ways_say_what_the_model_alone_says(make, llm):
    like = make(is_chat_model=True)

    async def ask():
        parts = await like.astream_chat(ASK)
        return (await like.achat(ASK)).message.content, [part.delta async for part in parts]

    whole, parts = asyncio.run(ask())
    texts = [whole, "".join(parts), like.chat(ASK).message.content]
    texts.append("".join(part.delta for part in like.stream_chat(ASK)))
    assert texts == [llm.chat(SAID, **DRAWN).text] * 4 and whole


def test_completions(make, llm):
    like = make(is_chat_model=False)
    alone = llm.generate("The sky is", **DRAWN).text
    assert like.complete("The sky is").text == alone
    assert "".join(part.delta for part in like.stream_complete("The sky is")) == alone


def test_calls_and_their_results(make):
    like = make(is_chat_model=True, is_function_calling_model=True)
    tool = FunctionTool.from_defaults(get_weather)
    asked = {"tool_required": True, "allow_parallel_tool_calls": False}
    called = like.chat_with_tools([tool], chat_history=ASK, **asked)
    *_, streamed = like.stream_chat_with_tools([tool], chat_history=ASK, **asked)
    [call], [other] = map(like.get_tool_calls_from_response, (called, streamed))
    assert call.tool_kwargs == other.tool_kwargs and call.tool_name == "get_weather"
    result = ChatMessage(
        role="tool",
        content=str(tool(**call.tool_kwargs)),
        additional_kwargs={"tool_call_id": call.tool_id},
    )
    answer = like.chat([*ASK, called.message, result])
    assert answer.message.content


def test_objects_of_a_class(make):
    by_calls = make(is_chat_model=True, is_function_calling_model=True)
    by_schema = make(is_chat_model=True, should_use_structured_outputs=True)
    for like in (by_calls, by_schema):
        assert isinstance(like.as_structured_llm(Visit).chat(ASK).raw, Visit)


def test_a_prompt_that_is_too_long(make):
    with pytest.raises(BadRequestError, match="maximum context length"):
        make(is_chat_model=True).chat([ChatMessage(role="user", content="a " * 20_000)])


def test_the_examples_of_the_page(run_section, llm):
    known = run_section("LlamaIndex")
    assert known["answer"].message.content == llm.chat(SAID, **DRAWN).text
    assert known["call"].tool_kwargs["city"] in ("Paris", "Rome")
    assert known["vector"] == llm.embed("one text").vectors[0].tolist()
