"""Every failure in OpenAI's form, in one sentence that names the field."""

import json
import logging
import time
from typing import Annotated, Literal

import pytest
from fastapi import APIRouter, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.exceptions import HTTPException

from cutaway.errors import CutawayError, FetchError, InputError, QueueFullError
from cutaway.server.http.errors import ApiError
from cutaway.server.http.guard import Guard
from cutaway.server.http.refusals import install
from cutaway.server.http.strict_json import StrictRoute
from support.asgi_client import call, post, scope_of


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


FIRST = Field(fail_fast=True)  # of a list's errors, or a hostile one has a million


class Text(Strict):
    type: Literal["text"]
    text: str


class Image(Strict):
    type: Literal["image"]
    url: str


class Message(Strict):
    role: Literal["system", "user"]
    content: str | Annotated[list[Text], FIRST] | None


class Chat(Strict):
    messages: list[Message] = Field(min_length=1, fail_fast=True)
    temperature: float | None = Field(None, ge=0, le=2)
    n: int = 1
    stop: str | list[str] | None = None
    stream: bool = False
    logit_bias: dict[Annotated[int, Field(strict=False)], float] | None = None
    parts: list[Annotated[Text | Image, Field(discriminator="type")]] | None = None
    top_k: int | None = None
    max_tokens: int | None = Field(None, alias="max-tokens")

    @field_validator("top_k")
    @classmethod
    def _check(cls, value):
        if value == 3:
            raise InputError("top_k must not be 3")
        if value == 4:
            raise InputError("bad luck")
        return value


GOOD = {"messages": [{"role": "user", "content": "hello"}]}


def make(failing=None):
    app = FastAPI()
    router = APIRouter(route_class=StrictRoute)

    @router.post("/v1/chat/completions")
    async def complete(chat: Chat) -> str:
        if failing:
            raise failing
        return "done"

    @router.get("/v1/models/{name}")
    async def model(name: str, limit: int = 3) -> str:
        raise HTTPException(404, f"there is no model {name!r}")

    app.include_router(router)
    install(app, retry_after=lambda: 2.2)
    return Guard(app)


@pytest.fixture(scope="module")
def app():
    return make()


def refused(app, value, status=400):
    answer = post(app, value, path="/v1/chat/completions")
    assert answer.status == status
    return answer.error()


def chat(**more):
    return {**GOOD, **more}


def message(**more):
    return {"messages": [{"role": "user", "content": "hello", **more}]}


def test_what_is_right_passes(app):
    assert post(app, GOOD, path="/v1/chat/completions").body == b'"done"'


@pytest.mark.parametrize(
    ("asked", "param", "told"),
    [
        (
            chat(temperatur=1),
            "temperatur",
            "unknown field 'temperatur'; did you mean 'temperature'?",
        ),
        (chat(zzz=1), "zzz", "unknown field 'zzz'; leave it out"),
        ({"mesages": []}, "mesages", "unknown field 'mesages'; did you mean 'messages'?"),
        (
            chat(max_tokens=1),
            "max_tokens",
            "unknown field 'max_tokens'; did you mean 'max-tokens'?",
        ),
        (
            message(contnt=""),
            "messages[0].contnt",
            "unknown field 'messages[0].contnt'; did you mean 'content'?",
        ),
        ({}, "messages", "messages is missing; add it"),
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content",
            "messages[0].content is missing; add it",
        ),
        (chat(temperature="a"), "temperature", "temperature must be a number, not a string"),
        (
            chat(temperature=-1),
            "temperature",
            "temperature must be greater than or equal to 0, not -1",
        ),
        (chat(n=1.5), "n", "n must be a whole number, not 1.5"),
        (chat(n=None), "n", "n must be a whole number, not null"),
        (chat(stream=1), "stream", "stream must be true or false, not 1"),
        ({"messages": []}, "messages", "messages must have at least 1 item, not 0"),
        ({"messages": {}}, "messages", "messages must be a list, not an object"),
        ({"messages": ["hi"]}, "messages[0]", "messages[0] must be an object, not a string"),
        (
            message(role="User"),
            "messages[0].role",
            "messages[0].role must be 'system' or 'user', not 'User'",
        ),
        (chat(stop=5), "stop", "stop must be a string or a list, not 5"),
        (chat(stop=["a", 5]), "stop[1]", "stop[1] must be a string, not 5"),
        (
            message(content=[{"type": "text"}]),
            "messages[0].content[0].text",
            "messages[0].content[0].text is missing; add it",
        ),
        (
            chat(parts=[{"type": "image", "url": 1}]),
            "parts[0].url",
            "parts[0].url must be a string, not 1",
        ),
        (chat(parts=[{"url": 1}]), "parts[0].type", "parts[0].type is missing; add it"),
        (
            chat(parts=[{"type": "sound"}]),
            "parts[0].type",
            "parts[0].type must be one of 'text', 'image', not 'sound'",
        ),
        (
            chat(logit_bias={"5": "a"}),
            "logit_bias[5]",
            "logit_bias[5] must be a number, not a string",
        ),
        (
            chat(logit_bias={"a": 1}),
            "logit_bias",
            "each key of logit_bias must be a whole number, not 'a'",
        ),
        (chat(top_k=3), "top_k", "top_k must not be 3"),
        (chat(top_k=4), "top_k", "top_k: bad luck"),
        ([], None, "the body must be an object, not a list"),
        (5, None, "the body must be an object, not 5"),
    ],
)
def test_the_first_problem_is_told_in_one_sentence(app, asked, param, told):
    error = refused(app, asked)
    assert (error["message"], error["param"]) == (told, param)
    assert error["type"] == "invalid_request_error"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | st.sampled_from(["user", "text", "image"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.text(max_size=3) | st.sampled_from(["role", "content", "type", "text", "url", "[key]"]),
        inner,
        max_size=3,
    ),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([*Chat.model_fields, "max-tokens", "other"]), values))
def test_any_request_passes_or_is_refused_in_one_sentence(app, asked):
    answer = post(app, asked, path="/v1/chat/completions")
    if answer.status != 200:
        error = answer.error()
        assert answer.status == 400
        assert error["param"] is None or error["param"] in error["message"]
        assert len(error["message"]) < 700


def test_a_hostile_request_is_refused_in_a_moment(app):
    items = b"5," * 100_000 + b"5"
    for body in (
        b'{"messages": [%b]}' % items,
        b'{"messages": [{"role": "user", "content": [%b]}]}' % items,
        b"{%b}" % b",".join(b'"%d": 1' % i for i in range(10_000)),
    ):
        began = time.process_time()
        assert post(app, body, path="/v1/chat/completions").status == 400
        assert time.process_time() - began < 2  # a tenth of it, on a shared machine


def test_a_query_is_told_by_its_name(app):
    error = call(app, scope_of(path="/v1/models/a") | {"query_string": b"limit=x"}).error()
    assert error["param"] == "limit"
    assert error["message"] == "limit must be a whole number, not a string"


@pytest.mark.parametrize(
    ("failing", "param"),
    [
        (InputError("temperature must be 0 or at least 0.01"), "temperature"),
        (InputError("logit_bias[5] must be a number"), "logit_bias"),
        (InputError("max-tokens is too large"), None),
        (InputError("the prompt is too long; shorten it"), None),
        (InputError("'n' is odd"), None),
        (InputError(""), None),
    ],
)
def test_the_engines_refusals_name_the_field_they_begin_with(failing, param):
    error = refused(make(failing), GOOD)
    assert (error["message"], error["param"]) == (str(failing), param)


def test_a_refusal_is_answered_as_it_is():
    refusal = ApiError(
        418, "no tea; ask for coffee", param="n", code="tea", headers={"X-Tea": "no"}
    )
    answer = post(make(refusal), GOOD, path="/v1/chat/completions")
    assert (answer.status, json.loads(answer.body)) == (418, refusal.document())
    assert answer.header("x-tea") == "no"


def test_a_full_queue_says_when_to_come_again():
    answer = post(make(QueueFullError("64 requests wait")), GOOD, path="/v1/chat/completions")
    assert (answer.status, answer.header("retry-after")) == (429, "3")
    assert answer.error()["type"] == "rate_limit_error"


def test_a_closed_engine_is_503_and_other_failures_500(caplog):
    closed = CutawayError("the engine is closed and takes no more requests")
    assert refused(make(closed), GOOD, 503)["code"] == "shutting_down"
    assert refused(make(FetchError("no network")), GOOD, 500)["message"] == "no network"
    assert "no network" in caplog.text


def test_a_bug_is_logged_once_and_told_without_its_text(caplog):
    with caplog.at_level(logging.ERROR, "cutaway.server"):
        answer = post(
            make(KeyError("secret")), GOOD, {"x-request-id": "r1"}, "/v1/chat/completions"
        )
    assert answer.status == 500
    told = "the server failed; its log has the reason under request r1"
    assert answer.error()["message"] == told
    assert answer.header("x-request-id") == "r1"
    assert [record.getMessage() for record in caplog.records] == ["request r1 failed"]
    assert "KeyError: 'secret'" in caplog.text


def test_an_unknown_path_says_which_there_are(app):
    answer = call(app, scope_of(path="/v1/chat/completion"))
    assert answer.status == 404
    told = "there is no path '/v1/chat/completion'; did you mean /v1/chat/completions?"
    assert answer.error()["message"] == told
    assert answer.error()["type"] == "not_found_error"
    told = call(app, scope_of(path="/x")).error()["message"]
    assert told == (
        "there is no path '/x'; "
        "the paths are /, /openapi.json, /v1/chat/completions, /v1/models/{name}"
    )


def test_an_endpoints_own_404_keeps_its_words(app):
    answer = call(app, scope_of(path="/v1/models/gpt"))
    assert (answer.status, answer.error()["message"]) == (404, "there is no model 'gpt'")


def test_a_wrong_method_says_the_right_one(app):
    answer = call(app, scope_of("GET", "/v1/chat/completions"))
    assert (answer.status, answer.header("allow")) == (405, "POST")
    assert answer.error()["message"] == "/v1/chat/completions takes POST, not GET"


def test_without_a_guard_and_without_a_model_failures_are_told_too():
    app = FastAPI()

    @app.get("/{kind}")
    async def fail(kind: str):
        raise {
            "bug": KeyError("x"),
            "input": InputError("n is odd"),
            "other": CutawayError("no"),
        }[kind]

    install(app, retry_after=lambda: 0.0)
    with pytest.raises(KeyError):  # Starlette answers, then raises it for the server
        call(app, scope_of(path="/bug"))
    assert call(app, scope_of(path="/input")).error()["param"] is None
    assert call(app, scope_of(path="/other")).status == 500
