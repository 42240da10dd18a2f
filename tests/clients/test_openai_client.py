"""OpenAI's own client: sync, async, parsing, stream helpers, tools, vectors, errors."""

import asyncio

import pytest

openai = pytest.importorskip("openai", reason="pip install openai, to try OpenAI's own client")
pydantic = pytest.importorskip("pydantic", reason="pip install openai, to try OpenAI's own client")
pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]

ASK = [{"role": "user", "content": "Name a city."}]
DRAWN = {"model": "smollm2", "seed": 3, "max_tokens": 100}
RESPONSE = {"model": "smollm2", "max_output_tokens": 100, "extra_body": {"seed": 3}}
CITY = {"enum": ["Paris", "Rome"]}


class Visit(pydantic.BaseModel):
    """A visit to a city."""

    city: str = pydantic.Field(json_schema_extra=CITY)
    days: int = pydantic.Field(ge=1, le=9)


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def alone(llm):
    """What ``LLM`` itself answers."""
    return llm.chat(ASK, seed=3, max_tokens=100).text


def test_chats_of_all_ways_say_what_the_model_alone_says(client, url, alone):
    whole = client.chat.completions.create(messages=ASK, **DRAWN)
    events = client.chat.completions.create(messages=ASK, stream=True, **DRAWN)
    with client.chat.completions.stream(messages=ASK, **DRAWN) as stream:
        kinds = {event.type for event in stream}
        helped = stream.get_final_completion()

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as other:
            one = await other.chat.completions.create(messages=ASK, **DRAWN)
            several = await other.chat.completions.create(messages=ASK, stream=True, **DRAWN)
            return one, [event async for event in several]

    one, several = asyncio.run(ask())
    told = [choice.choices[0].message.content for choice in (whole, helped, one)]
    told += ["".join(e.choices[0].delta.content or "" for e in es) for es in ([*events], several)]
    assert told == [alone] * 5 and alone
    assert {"content.delta", "content.done"} <= kinds
    assert whole.system_fingerprint == helped.system_fingerprint


def test_responses_say_it_too(client, alone):
    whole = client.responses.create(input=ASK, **RESPONSE)
    with client.responses.stream(input=ASK, **RESPONSE) as stream:
        events = [event.type for event in stream]
        helped = stream.get_final_response()
    assert whole.output_text == helped.output_text == alone
    assert events[0] == "response.created" and events[-1] == "response.completed"


def test_pydantic_classes_are_parsed(client):
    chats, responses = client.chat.completions, client.responses
    one = chats.parse(messages=ASK, response_format=Visit, **DRAWN)
    with chats.stream(messages=ASK, response_format=Visit, **DRAWN) as stream:
        other = stream.until_done().get_final_completion()
    visits = [done.choices[0].message.parsed for done in (one, other)]
    visits.append(responses.parse(input=ASK, text_format=Visit, **RESPONSE).output_parsed)
    with responses.stream(input=ASK, text_format=Visit, **RESPONSE) as stream:
        visits.append(stream.until_done().get_final_response().output_parsed)
    assert visits == [visits[0]] * 4 and isinstance(visits[0], Visit)


def test_a_loop_of_calls(client):
    tools = [openai.pydantic_function_tool(Visit, name="plan")]
    asked = {"tools": tools, "parallel_tool_calls": False, **DRAWN}
    said = [*ASK]
    for choice in ("required", "none"):
        done = client.chat.completions.parse(messages=said, tool_choice=choice, **asked)
        message = done.choices[0].message
        said.append(message.to_dict())
        for call in message.tool_calls or ():
            assert isinstance(call.function.parsed_arguments, Visit)
            said.append({"role": "tool", "tool_call_id": call.id, "content": "planned"})
    assert [one["role"] for one in said] == ["user", "assistant", "tool", "assistant"]
    assert said[-1]["content"]
    with client.chat.completions.stream(messages=ASK, tool_choice="required", **asked) as stream:
        pieces = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert "".join(piece.arguments_delta for piece in pieces) == call.function.arguments
    assert len(pieces) > 1


def test_a_class_is_parsed_beside_tools(client, llm):
    """What the answer begins with decides which it is."""
    chat = [openai.pydantic_function_tool(Visit, name="plan")]
    [flat] = [{"type": "function", **one["function"]} for one in chat]
    for begun in "{<":
        forced = {"forced": llm.tokenize(begun, add_bos=False)}
        fields = {"tools": chat, "response_format": Visit, "parallel_tool_calls": False, **DRAWN}
        asked = {"messages": ASK, "extra_body": forced, **fields}
        message = client.chat.completions.parse(**asked).choices[0].message
        with client.chat.completions.stream(**asked) as stream:
            grown = stream.until_done().get_final_completion().choices[0].message
        response = client.responses.parse(
            input=ASK, tools=[flat], text_format=Visit, parallel_tool_calls=False,
            **RESPONSE | {"extra_body": forced | {"seed": 3}},
        )  # fmt: skip
        if begun == "{":
            visits = message.parsed, grown.parsed, response.output_parsed
            assert not message.tool_calls
        else:
            [[one], [other], [item]] = message.tool_calls, grown.tool_calls, response.output
            told = Visit.model_validate_json(item.arguments)
            visits = one.function.parsed_arguments, other.function.parsed_arguments, told
            assert message.parsed is None and response.output_parsed is None
        assert visits == (visits[0],) * 3 and isinstance(visits[0], Visit)


def test_completions_and_their_log_probabilities(client, llm):
    asked = {"model": "smollm2", "prompt": "The sky is", "seed": 3, "max_tokens": 6}
    done = client.completions.create(logprobs=2, **asked).choices[0]
    assert done.text == llm.generate("The sky is", seed=3, max_tokens=6).text
    assert "".join(done.logprobs.tokens) == done.text
    assert len(done.logprobs.token_logprobs) == 6 and max(done.logprobs.token_logprobs) <= 0
    chat = client.chat.completions.create(messages=ASK, logprobs=True, top_logprobs=2, **DRAWN)
    [choice] = chat.choices
    assert "".join(one.token for one in choice.logprobs.content) == choice.message.content


def test_vectors(client, llm):
    done = client.embeddings.create(model="smollm2", input=["one", "two"])
    plain = client.embeddings.create(model="smollm2", input="two", encoding_format="float")
    assert len(done.data) == 2 and done.data[1].embedding == plain.data[0].embedding
    assert plain.data[0].embedding == llm.embed("two").vectors[0].tolist()


def test_errors_are_the_clients_own(client):
    long = "a " * 20_000
    chats = [{"role": "user", "content": long}]
    for ask in (
        lambda: client.chat.completions.create(model="smollm2", messages=chats),
        lambda: client.chat.completions.create(model="smollm2", messages=chats, stream=True),
        lambda: client.responses.create(model="smollm2", input=long),
        lambda: client.completions.create(model="smollm2", prompt=long),
    ):
        with pytest.raises(openai.BadRequestError, match="maximum context length") as raised:
            ask()
        assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(messages=ASK, temperature=-1, **DRAWN)


def test_the_examples_of_the_page(run_section, llm):
    known = run_section("OpenAI")
    text = known["streamed"].choices[0].message.content
    assert text == known["response"].output_text == llm.chat(ASK, seed=3).text
    assert isinstance(known["visit"].choices[0].message.parsed, known["Visit"])
    assert len(known["vectors"].data) == 2
