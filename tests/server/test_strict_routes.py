"""Routes that take strict JSON: what is refused, and in what form."""

import json

import pytest
from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel

from cutaway.server.body import StrictRoute, bodies
from cutaway.server.http.refusals import install
from support.asgi_client import call, post, request, scope_of


class Asked(BaseModel):
    a: int


@pytest.fixture
def app():
    app = FastAPI()
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

    app.include_router(router)
    app.state.bodies = bodies()
    install(app, retry_after=lambda: 1.0)
    return app


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"]
)
def test_json_reaches_the_endpoint(app, kind):
    answer = post(app, {"a": 1}, {"content-type": kind})
    assert answer.status == 200
    assert json.loads(answer.body) == {"a": 1, "again": {"a": 1}, "body": '{"a": 1}'}


def test_a_long_body_is_read_alike(app):
    assert post(app, {"a": 1, "b": "x" * (1 << 19)}).status == 200
    assert (
        post(app, b'{"a": 1, "a": "' + b"x" * (1 << 19) + b'"}').error()["code"] == "invalid_json"
    )


def test_what_is_not_json_is_refused_in_our_words(app):
    answer = post(app, b'{"a": 1, "a": 2}')
    assert answer.status == 400
    assert answer.error() == {
        "message": "the key 'a' is given twice in one object; give it once",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_json",
    }
    assert post(app, b"").error()["message"] == "the body is empty; give a JSON value"
    assert post(app, b"[" * 100_000).error()["code"] == "invalid_json"


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "application/jsonx"]
)
def test_another_type_is_refused_with_the_header_to_send(app, kind):
    answer = post(app, {"a": 1}, {"content-type": kind})
    assert answer.status == 415
    told = f"the body must be JSON; send the header 'Content-Type: application/json', not '{kind}'"
    assert answer.error()["message"] == told


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_ollamas_paths_take_json_of_any_type_but_not_from_a_web_page(app, kind):
    typed = {"content-type": kind} if kind else {}
    scope = scope_of("POST", path="/api/chat", headers=typed)
    assert call(app, scope, request(b'{"a": 1}')).status == 200
    scope = scope_of("POST", path="/api/chat", headers={**typed, "origin": "http://a.b"})
    assert call(app, scope, request(b'{"a": 1}')).status == 415
    assert call(app, scope_of("POST", path="/api/chat"), request(b"a=1")).status == 400


def test_no_type_is_refused_and_no_body_needs_none(app):
    answer = call(app, scope_of("POST"), request(b'{"a": 1}'))
    assert answer.status == 415
    assert answer.error()["message"].endswith("'Content-Type: application/json', which is missing")
    assert call(app, scope_of("POST")).error()["code"] == "invalid_json"
    assert call(app, scope_of("GET")).body == b'"nothing asked"'
