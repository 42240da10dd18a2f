"""Tools in responses, asked for by OpenAI's own client: items of calls, their events, results."""

import json

import pytest
from pydantic import BaseModel

from support.responses_client import client_of

pytestmark = pytest.mark.model
ASK = "What is the weather in Paris?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}
DIAL = {
    "type": "custom",
    "name": "dial",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"},
}
SAMPLED = {"model": "smollm2", "temperature": 0.7, "max_output_tokens": 200}


@pytest.fixture
def client(smollm2):
    with client_of(smollm2) as client:
        yield client


@pytest.fixture
def create(client):
    def make(input=ASK, **fields):
        fields = {"parallel_tool_calls": False, "extra_body": {"seed": 3}, **SAMPLED, **fields}
        return client.responses.create(input=input, **fields)

    return make


def built(events):
    """The output that the events make, held against what each part says when it is done."""
    output = []
    for event in events:
        match event.type:
            case "response.output_item.added":
                assert event.output_index == len(output)
                output.append(event.item.to_dict())
            case "response.output_text.delta":
                content = output[event.output_index]["content"]
                content[0]["text"] += event.delta
            case "response.content_part.added":
                output[event.output_index]["content"].append(event.part.to_dict())
            case "response.function_call_arguments.delta":
                assert event.item_id == output[event.output_index]["id"]
                output[event.output_index]["arguments"] += event.delta
            case "response.function_call_arguments.done":
                assert event.arguments == output[event.output_index]["arguments"]
            case "response.custom_tool_call_input.delta":
                output[event.output_index]["input"] += event.delta
            case "response.custom_tool_call_input.done":
                assert event.input == output[event.output_index]["input"]
            case "response.output_item.done":
                status = event.item.to_dict()["status"]
                assert event.item.to_dict() == output[event.output_index] | {"status": status}
    return output


def lasting(items):
    """Without ids and ends."""
    return [{k: v for k, v in i.items() if k not in ("id", "call_id", "status")} for i in items]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "parallel_tool_calls": True, "max_output_tokens": 90},
        {"tool_choice": "auto", "max_output_tokens": 30},
        {"tool_choice": {"type": "custom", "name": "dial"}},
        {"tool_choice": "required", "max_output_tokens": 20},
        {"tool_choice": "none", "max_output_tokens": 10},
    ],
    ids=str,
)
def test_a_stream_says_what_the_whole_answer_says(create, fields):
    whole = create(tools=[WEATHER, DIAL], **fields)
    events = list(create(tools=[WEATHER, DIAL], **fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert lasting(built(events)) == lasting(item.to_dict() for item in last.output)
    assert lasting(item.to_dict() for item in whole.output) == lasting(built(events))
    assert whole.status == last.status


def test_a_call_and_its_result(create):
    first = create(tools=[WEATHER], tool_choice="required")
    [call] = first.output
    assert call.type == "function_call" and call.status == "completed"
    arguments = json.loads(call.arguments)
    assert type(arguments["city"]) is str and type(arguments["days"]) is int
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    said = [{"role": "user", "content": ASK}, call.to_dict(), result]
    second = create(said, tools=[WEATHER], tool_choice="none", temperature=0)
    assert second.output_text
    assert first.tool_choice == "required" and first.tools[0].name == "get_weather"


def test_a_custom_tool_gets_a_text_of_its_grammar(create):
    [call] = create(tools=[DIAL], tool_choice={"type": "custom", "name": "dial"}).output
    assert call.type == "custom_tool_call"
    assert call.input.isdecimal() and len(call.input) == 3


def test_a_result_without_its_call_is_refused(create):
    import openai

    orphan = {"type": "function_call_output", "call_id": "x", "output": "rain"}
    with pytest.raises(
        openai.BadRequestError,
        match=r"input\[\d\].call_id must be the id of a call before it, not 'x'",
    ):
        create([{"role": "user", "content": ASK}, orphan], tools=[WEATHER])


def test_the_client_parses_a_call(client):
    import openai

    class Weather(BaseModel):
        city: str
        days: int

    done = client.responses.parse(
        input=ASK, tools=[openai.pydantic_function_tool(Weather, name="get_weather")],
        tool_choice="required", parallel_tool_calls=False, extra_body={"seed": 3}, **SAMPLED,
    )  # fmt: skip
    [call] = done.output
    assert isinstance(call.parsed_arguments, Weather)
