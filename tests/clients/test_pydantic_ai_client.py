"""pydantic-ai: agents with a tool and with an output of a class, whole and streamed."""

import asyncio
from typing import Literal

import pytest

pytest.importorskip("pydantic_ai", reason="pip install 'pydantic-ai-slim[openai]', to try it")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]
DRAWN = {"seed": 3, "max_tokens": 200}
PROMPT = "Name a city."


class Visit(BaseModel):
    """A visit to a city."""

    city: Literal["Paris", "Rome"]
    days: int


@pytest.fixture
def model(url):
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="any")
    return OpenAIChatModel("smollm2", provider=provider)


def test_texts_whole_and_streamed_are_what_the_model_alone_says(model, llm):
    agent = Agent(model, model_settings=DRAWN)

    async def ask():
        whole = await agent.run(PROMPT)
        async with agent.run_stream(PROMPT) as done:
            return whole.output, "".join([part async for part in done.stream_text(delta=True)])

    alone = llm.chat([{"role": "user", "content": PROMPT}], seed=3, max_tokens=200).text
    assert asyncio.run(ask()) == (alone, alone) and alone


def test_a_tool_is_called_and_its_results_are_read(model):
    """An output that is a tool, too, makes calls required: the model may not just talk."""
    agent = Agent(
        model, output_type=ToolOutput(Visit), instructions="Ask for the weather first.",
        model_settings={**DRAWN, "parallel_tool_calls": False},
    )  # fmt: skip
    asked = []

    async def once(context, tool):
        return None if asked else tool

    @agent.tool_plain(prepare=once)
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return f"rain in {city}"

    done = asyncio.run(agent.run("What is the weather in Paris?"))
    assert isinstance(done.output, Visit) and len(asked) == 1
    parts = [part for message in done.all_messages() for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    results = {part.tool_call_id: part for part in parts if isinstance(part, ToolReturnPart)}
    assert [call.tool_name for call in calls] == ["get_weather", "final_result"]
    assert all(results[call.tool_call_id].tool_name == call.tool_name for call in calls)


def test_an_output_that_is_held_to_the_schema(model, url):
    agent = Agent(model, output_type=NativeOutput(Visit), model_settings=DRAWN)
    assert isinstance(asyncio.run(agent.run(PROMPT)).output, Visit)
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="any")
    responses = OpenAIResponsesModel("smollm2", provider=provider)
    agent = Agent(responses, output_type=Visit, model_settings={"max_tokens": 200})
    assert isinstance(asyncio.run(agent.run(PROMPT)).output, Visit)


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_an_output_that_is_held_to_the_schema_beside_a_tool(url, kind):
    """The model chooses; with one of these seeds it calls first."""
    asked, made = [], []

    async def once(context, tool):
        return None if asked else tool

    for seed in range(4):
        asked.clear()
        body = {"seed": seed, "parallel_tool_calls": False}
        agent = Agent(
            kind("smollm2", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="any")),
            output_type=NativeOutput(Visit), instructions="Ask for the weather first.",
            model_settings={"max_tokens": 200, "extra_body": body},
        )  # fmt: skip

        @agent.tool_plain(prepare=once)
        def get_weather(city: Literal["Paris", "Rome"]) -> str:
            """The weather of a city."""
            asked.append(city)
            return f"rain in {city}"

        done = asyncio.run(agent.run("What is the weather in Paris?"))
        assert isinstance(done.output, Visit)
        made.append(len(asked))
    assert {*made} <= {0, 1} and 1 in made


def test_errors_name_their_code(model):
    with pytest.raises(ModelHTTPError, match="context_length_exceeded") as raised:
        asyncio.run(Agent(model).run("a " * 20_000))
    assert raised.value.status_code == 400


def test_the_examples_of_the_page(run_section):
    known = run_section("pydantic-ai")
    assert known["asked"] and isinstance(known["done"].output, known["Visit"])
