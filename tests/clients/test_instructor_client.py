"""instructor: pydantic objects by calls, by a schema, and by asking the model kindly."""

from typing import Literal

import pytest

instructor = pytest.importorskip("instructor", reason="pip install instructor, to try it")

from openai import OpenAI
from pydantic import BaseModel, Field

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.filterwarnings("default")]
ASK = [{"role": "user", "content": "Three days in Paris, please."}]
DRAWN = {"model": "smollm2", "messages": ASK, "seed": 3, "max_tokens": 300, "max_retries": 0}

ONE = {"parallel_tool_calls": False}


class Visit(BaseModel):
    """A visit to a city."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


@pytest.fixture(scope="module")
def openai(url):
    with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_an_answer_that_is_held_to_the_schema(openai, mode):
    client = instructor.from_openai(openai, mode=instructor.Mode[mode])
    assert isinstance(client.chat.completions.create(response_model=Visit, **DRAWN), Visit)


def test_a_call_in_a_response_with_the_schema_beside_it(openai):
    """instructor asks for a call of the one tool, and for a text of its schema."""
    client = instructor.from_openai(openai, mode=instructor.Mode.RESPONSES_TOOLS)
    asked = {"model": "smollm2", "response_model": Visit, "max_retries": 0, **ONE}
    made = client.responses.create(input=ASK, extra_body={"seed": 3}, **asked)
    assert isinstance(made, Visit)
    *parts, last = client.responses.create_partial(input=ASK, extra_body={"seed": 3}, **asked)
    assert parts and (last.city, last.days) == (made.city, made.days)


@pytest.mark.parametrize("mode", ["JSON", "MD_JSON"])
def test_an_answer_that_only_the_model_makes_so(openai, mode):
    """Any object is one of a class that wants nothing: what is tried is the way there and back."""

    class Anything(BaseModel):
        city: object = None

    client = instructor.from_openai(openai, mode=instructor.Mode[mode])
    made = client.chat.completions.create(response_model=Anything, **DRAWN)
    assert isinstance(made, Anything)


def test_an_object_that_grows(openai):
    client = instructor.from_openai(openai, mode=instructor.Mode.TOOLS)
    *parts, last = client.chat.completions.create_partial(response_model=Visit, **DRAWN)
    assert parts and last.city in ("Paris", "Rome") and 1 <= last.days <= 9


def test_the_examples_of_the_page(run_section):
    known = run_section("instructor")
    assert isinstance(known["called"], known["Visit"])
    assert isinstance(known["written"], known["Visit"])
