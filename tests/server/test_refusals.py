"""Every failure in OpenAI's form, in one sentence that names the real request's field."""

import json
import logging
import time

import pytest
from fastapi import APIRouter, FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from cutaway.errors import (
    ClosedError,
    CutawayError,
    FetchError,
    FileChangedError,
    InputError,
    Name,
    QueueFullError,
)
from cutaway.server.body import StrictRoute, bodies
from cutaway.server.http.errors import ApiError, to_api_error
from cutaway.server.http.guard import Guard
from cutaway.server.http.refusals import install
from cutaway.server.openai.chat import ChatRequest
from cutaway.server.openai.responses_request import ResponsesRequest
from support.asgi_client import call, post, request, scope_of

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
GOOD = {"messages": [{"role": "user", "content": "hello"}]}


def make(failing=None):
    app = FastAPI()
    router = APIRouter(route_class=StrictRoute)

    @router.post(CHAT)
    async def complete(chat: ChatRequest) -> str:
        chat.keywords()
        if failing:
            raise failing
        return "done"

    @router.post(RESPONSES)
    async def respond(body: ResponsesRequest) -> str:
        body.keywords()
        return "done"

    @router.get("/v1/models/{name}")
    async def model(name: str, limit: int = 3) -> str:
        raise HTTPException(404, f"there is no model {name!r}")

    app.include_router(router)
    app.state.bodies = bodies()
    install(app, retry_after=lambda: 2.2)
    return Guard(app)


@pytest.fixture(scope="module")
def app():
    return make()


def refused(app, value, status=400, path=CHAT):
    answer = post(app, value, path=path)
    assert answer.status == status
    return answer.error()


def chat(**more):
    return CHAT, {**GOOD, **more}


def message(**more):
    return CHAT, {"messages": [{"role": "user", "content": "hello", **more}]}


def responses(**more):
    return RESPONSES, {"input": "hello", **more}


@pytest.mark.parametrize(
    ("path", "body"), [chat(), responses(), responses(reasoning={"summary": "auto"})]
)
def test_what_is_right_passes(app, path, body):
    assert post(app, body, path=path).body == b'"done"'


@pytest.mark.parametrize(
    ("asked", "param", "sentence"),
    [
        (chat(temperatur=1), "temperatur",
         "unknown field 'temperatur'; did you mean 'temperature'?"),
        (chat(zzz=1), "zzz", "unknown field 'zzz'; leave it out"),
        ((CHAT, {"mesages": []}), "mesages", "unknown field 'mesages'; did you mean 'messages'?"),
        (message(contnt=""), "messages[0].contnt",
         "unknown field 'messages[0].contnt'; did you mean 'content'?"),
        (chat(stream_options={"include_usages": True}), "stream_options.include_usages",
         "unknown field 'stream_options.include_usages'; did you mean 'include_usage'?"),
        ((CHAT, {}), "messages", "messages is missing; add it"),
        ((CHAT, {"messages": [{"role": "user"}]}), "messages[0].content",
         "messages[0].content is missing; add it"),
        (chat(temperature="a"), "temperature", "temperature must be a number, not a string"),
        (chat(n=1.5), "n", "n must be a whole number, not 1.5"),
        (chat(stream=1), "stream", "stream must be true or false, not 1"),
        (chat(stream_options=3), "stream_options", "stream_options must be an object, not 3"),
        (chat(forced=[1, "a"]), "forced[1]", "forced[1] must be a whole number, not a string"),
        ((CHAT, {"messages": []}), "messages", "messages must have at least 1 item, not 0"),
        ((CHAT, {"messages": {}}), "messages", "messages must be a list, not an object"),
        ((CHAT, {"messages": ["hi"]}), "messages[0]",
         "messages[0] must be an object, not a string"),
        (message(role="User"), "messages[0].role",
         "messages[0].role must be 'system', 'developer', 'user', 'assistant' or 'tool', "
         "not 'User'"),
        (message(content=5), "messages[0].content",
         "messages[0].content must be a string or a list, not 5"),
        (message(content=[{"type": "text"}]), "messages[0].content[0].text",
         "messages[0].content[0].text is missing; add it"),
        (message(content=[{"type": "text", "text": 5}]), "messages[0].content[0].text",
         "messages[0].content[0].text must be a string, not 5"),
        (chat(stop=["a", 5]), "stop", "stop must be a string or a list of strings"),
        (chat(speculate="maybe"), "speculate",
         "speculate must be 'off', 'ngram', 'jacobi', 'draft', 'mtp', 'eagle', 'dflash', 'dspark' "
         "or 'assistant', not 'maybe'"),
        (chat(logit_bias={"5": "a"}), "logit_bias[5]",
         "logit_bias[5] must be a number, not a string"),
        (responses(top_logprobs=2000), "top_logprobs",
         "top_logprobs must be less than or equal to 1000, not 2000"),
        (responses(include=["x"]), "include[0]",
         "include[0] must be 'message.output_text.logprobs' or 'reasoning.encrypted_content', "
         "not 'x'"),
        (responses(metadata={"a": 1}), "metadata.a", "metadata.a must be a string, not 1"),
        (responses(metadata={"a" * 70: ""}), "metadata",
         f"each key of metadata must have at most 64 characters, not '{'a' * 39}…"),
        (responses(user="a", safety_identifier="b"), "safety_identifier",
         "safety_identifier is the newer name of user: give one"),
        (responses(input=[{"role": "user", "content": [{"type": "input_text"}]}]),
         "input[0].content[0].text", "input[0].content[0].text is missing; add it"),
        (message(audio={"id": "a"}), "messages[0].audio",
         "messages[0].audio: only text is read and written here; leave it out"),
        (message(content=[{"type": "text", "text": "a"}, {"type": "image_url"}]),
         "messages[0].content[1]",
         "messages[0].content[1]: type 'image_url' cannot be read here; text, input_text, "
         "output_text can"),
        (responses(input=[{"role": "user", "content": "a"}, {"type": "web_search_call"}]),
         "input[1]", "input[1]: type 'web_search_call' cannot be read here; messages, thoughts, "
         "calls and their results can"),
        ((CHAT, []), None, "the body must be an object, not a list"),
        ((CHAT, 5), None, "the body must be an object, not 5"),
    ],
)  # fmt: skip
def test_the_first_problem_is_told_in_one_sentence(app, asked, param, sentence):
    path, body = asked
    error = refused(app, body, path=path)
    assert (error["message"], error["param"]) == (sentence, param)
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


FIELDS = [*ChatRequest.model_fields, *ChatRequest.unsupported, "other"]


@given(st.dictionaries(st.sampled_from(FIELDS), values))
def test_any_request_passes_or_is_refused_in_one_sentence(app, asked):
    answer = post(app, asked, path=CHAT)
    if answer.status != 200:
        error = answer.error()
        assert answer.status == 400
        assert error["param"] is None or error["param"] in error["message"]
        assert len(error["message"]) < 700


FIVES = b"[%b]" % b",".join([b"5"] * 100_000)


@pytest.mark.parametrize("path, body", [
    (CHAT, b'{"messages": %b}' % FIVES),
    (CHAT, b'{"messages": [{"role": "user", "content": %b}]}' % FIVES),
    (CHAT, b"{%b}" % b",".join(b'"%d": 1' % i for i in range(10_000))),
    (RESPONSES, b'{"input": %b}' % FIVES),
    (RESPONSES, b'{"input": [{"role": "user", "content": %b}]}' % FIVES),
])  # fmt: skip
def test_a_hostile_request_is_refused_in_a_moment(app, path, body):
    began = time.process_time()
    assert post(app, body, path=path).status == 400
    assert time.process_time() - began < 2  # a tenth of it, on a shared machine


def test_a_query_is_told_by_its_name(app):
    error = call(app, scope_of(path="/v1/models/a") | {"query_string": b"limit=x"}).error()
    assert error["param"] == "limit"
    assert error["message"] == "limit must be a whole number, not a string"


@pytest.mark.parametrize(
    ("failing", "param"),
    [
        (InputError("temperature", " must be 0 or at least 0.01"), "temperature"),
        (InputError(Name("logit_bias", 5), " must be a number"), "logit_bias[5]"),
        (InputError(Name("tools", 0, "function", "nme"), " is odd"), "tools[0].function.nme"),
        (InputError(Name("tools", 0, prose=": a"), " is odd"), "tools[0]"),
        (InputError("not_a_field", " is too large"), None),
        (InputError("temperature must be 0 or at least 0.01"), None),
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
    answer = post(make(refusal), GOOD, path=CHAT)
    assert (answer.status, json.loads(answer.body)) == (418, refusal.document())
    assert answer.header("x-tea") == "no"


def test_a_full_queue_says_when_to_come_again():
    answer = post(make(QueueFullError("64 requests wait")), GOOD, path=CHAT)
    assert (answer.status, answer.header("retry-after")) == (429, "3")
    assert answer.error()["type"] == "rate_limit_error"


def test_a_closed_engine_is_503_and_other_failures_500(caplog):
    closed = ClosedError("whatever it says")
    assert refused(make(closed), GOOD, 503)["code"] == "shutting_down"
    assert refused(make(FetchError("no network")), GOOD, 500)["message"] == "no network"
    assert "no network" in caplog.text
    alike = CutawayError("the engine is closed to arguments")
    assert refused(make(alike), GOOD, 500)["code"] == "internal_error"


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
        "the paths are /, /openapi.json, /v1/chat/completions, /v1/models/{name}, /v1/responses"
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
            "input": InputError("n", " is odd"),
            "other": CutawayError("no"),
        }[kind]

    install(app, retry_after=lambda: 0.0)
    with pytest.raises(KeyError):  # Starlette answers, then raises it for the server
        call(app, scope_of(path="/bug"))
    assert call(app, scope_of(path="/input")).error()["param"] is None
    assert call(app, scope_of(path="/other")).status == 500


# -- routes that take strict JSON --------------------------------------------------------------


class Asked(BaseModel):
    a: int


@pytest.fixture
def strict_app():
    strict_app = FastAPI()
    router = APIRouter(route_class=StrictRoute)

    @router.post("/")
    @router.post("/api/chat")
    async def ask(asked: Asked, request: Request) -> dict:
        return {
            "a": asked.a,
            "again": await request.json(),
            "body": (await request.body()).decode(),
        }

    @router.get("/")
    async def bare() -> str:
        return "nothing asked"

    strict_app.include_router(router)
    strict_app.state.bodies = bodies()
    install(strict_app, retry_after=lambda: 1.0)
    return strict_app


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"]
)
def test_json_reaches_the_endpoint(strict_app, kind):
    answer = post(strict_app, {"a": 1}, {"content-type": kind})
    assert answer.status == 200
    assert json.loads(answer.body) == {"a": 1, "again": {"a": 1}, "body": '{"a": 1}'}


def test_a_long_body_is_read_alike(strict_app):
    assert post(strict_app, {"a": 1, "b": "x" * (1 << 19)}).status == 200
    assert (
        post(strict_app, b'{"a": 1, "a": "' + b"x" * (1 << 19) + b'"}').error()["code"]
        == "invalid_json"
    )


def test_what_is_not_json_is_refused_in_our_words(strict_app):
    answer = post(strict_app, b'{"a": 1, "a": 2}')
    assert answer.status == 400
    assert answer.error() == {
        "message": "the key 'a' is given twice in one object; give it once",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_json",
    }
    assert post(strict_app, b"").error()["message"] == "the body is empty; give a JSON value"
    assert post(strict_app, b"[" * 100_000).error()["code"] == "invalid_json"


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "application/jsonx"]
)
def test_another_type_is_refused_with_the_header_to_send(strict_app, kind):
    answer = post(strict_app, {"a": 1}, {"content-type": kind})
    assert answer.status == 415
    told = f"the body must be JSON; send the header 'Content-Type: application/json', not '{kind}'"
    assert answer.error()["message"] == told


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_ollamas_paths_take_json_of_any_type_but_not_from_a_web_page(strict_app, kind):
    typed = {"content-type": kind} if kind else {}
    scope = scope_of("POST", path="/api/chat", headers=typed)
    assert call(strict_app, scope, request(b'{"a": 1}')).status == 200
    scope = scope_of("POST", path="/api/chat", headers={**typed, "origin": "http://a.b"})
    assert call(strict_app, scope, request(b'{"a": 1}')).status == 415
    assert call(strict_app, scope_of("POST", path="/api/chat"), request(b"a=1")).status == 400


def test_no_type_is_refused_and_no_body_needs_none(strict_app):
    answer = call(strict_app, scope_of("POST"), request(b'{"a": 1}'))
    assert answer.status == 415
    assert answer.error()["message"].endswith("'Content-Type: application/json', which is missing")
    assert call(strict_app, scope_of("POST")).error()["code"] == "invalid_json"
    assert call(strict_app, scope_of("GET")).body == b'"nothing asked"'


def test_a_changed_file_is_told_by_its_name_alone():
    error = FileChangedError("/home/a/b: c/d.gguf", ": the file cannot be read: no: more")
    answer = to_api_error(error)
    assert (answer.status, answer.code) == (503, "file_changed")
    assert answer.message == "d.gguf: the file cannot be read: no: more"
