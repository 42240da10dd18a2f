"""A large body is read beside the event loop, and its first fault ends the reading."""

import asyncio
import json
from threading import Event

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel

from cutaway.errors import InputError
from cutaway.requests import tools
from cutaway.server import body as bodies_read
from cutaway.server.app import ROUTERS
from cutaway.server.body import StrictRoute, bodies
from cutaway.server.http.refusals import install
from cutaway.server.shared import fields
from support.asgi_client import async_call, post, request, scope_of

ROUTES = [
    route
    for router in ROUTERS
    for route in router.routes
    if getattr(route, "body_field", None) is not None
]
_NOT_OF_VALUES = ("metadata", "serialization", "function", "cls", "json_schema_input_schema")


def unending(node, place, *, checked=False):
    """The lists and objects of a core schema whose every wrong item would be an error.

    checked: by a validator of ours before
    """
    if isinstance(node, (list, tuple)):
        for each in node:
            yield from unending(each, place, checked=checked)
    if not isinstance(node, dict):
        return
    kind, items = node.get("type"), node.get("items_schema") or node.get("values_schema") or {}
    counted = kind != "dict" and node.get("max_length")  # of an object after its last name
    ends = checked or node.get("fail_fast") or counted
    if kind in ("list", "set", "dict") and items.get("type", "any") != "any" and not ends:
        yield place
    if kind == "model":
        place, checked = node["cls"].__name__, False
    if kind == "model-fields":
        for name, inner in node["fields"].items():
            yield from unending(inner["schema"], f"{place}.{name}")
        return
    for key, inner in node.items():
        if key not in _NOT_OF_VALUES:
            yield from unending(inner, place, checked=checked or kind == "function-before")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_the_first_wrong_item_ends_the_reading_of_its_list(route):
    """Pydantic takes microseconds for each error, and the interpreter is held meanwhile."""
    assert not {*unending(route.body_field._type_adapter.core_schema, route.path)}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_of_many_unknown_fields_the_first_is_refused(route):
    value = {"unknown1": 1, **{f"unknown{i}": 1 for i in range(2, 1000)}}
    _, errors = route.body_field.validate(value, {}, loc=("body",))
    unknown = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    assert unknown == [("body", "unknown1")]


class Asked(BaseModel):
    a: str


@pytest.fixture
def app():
    app, router = FastAPI(), APIRouter(route_class=StrictRoute)

    @router.post("/")
    async def ask(asked: Asked) -> int:
        return len(asked.a)

    app.include_router(router)
    app.state.bodies = bodies()
    install(app, retry_after=lambda: 1.0)
    return app


def ask(app, value):
    headers = {"content-type": "application/json"}
    scope = scope_of("POST", "/", headers) | {"client": ("127.0.0.1", 1)}
    return async_call(app, scope, request(json.dumps(value).encode()))


LARGE = {"a": "a" * (1 << 20)}


@pytest.fixture
def held(monkeypatch):
    """Whether a large body is being read: it is not read to its end before ``over`` is set."""
    began, over = Event(), Event()

    def parse(body):
        if len(body) > 1 << 19:
            began.set()
            assert over.wait(300)
        return json.loads(body)

    monkeypatch.setattr(bodies_read, "parse", parse)
    return began, over


def test_others_are_answered_while_it_is_read(app, held):
    began, over = held

    async def main():
        large = asyncio.create_task(ask(app, LARGE))
        await asyncio.to_thread(began.wait, 20)
        small = await ask(app, {"a": "b"})
        assert (small.status, large.done()) == (200, False)
        over.set()
        assert (await large).body == b"1048576"

    asyncio.run(main())


def test_too_many_that_wait_are_refused(app, held):
    app.state.bodies._limit_of_client = 0
    _, over = held

    async def main():
        asked = [asyncio.create_task(ask(app, LARGE)) for _ in range(2)]
        refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        over.set()
        answers = [await one for one in asked]
        assert len(refused) == 1 and sorted(one.status for one in answers) == [200, 429]

    asyncio.run(main())


def test_a_large_body_of_a_wrong_field_is_refused_by_name(app):
    answer = post(app, {**LARGE, "a": [0] * 100_000})
    assert answer.status == 400 and answer.error()["param"] == "a"


SAID = {"messages": [{"role": "user", "content": "Hello"}]}
TOOL = {"name": "a", "input_schema": {}}


TOOLS, BIASES = (tools, "parse_tools"), (fields, "bias_of")
BIAS = {"logit_bias": {"1": 1}}


@pytest.mark.elsewhere
@pytest.mark.parametrize(
    ("reader", "path", "body"),
    [
        (TOOLS, "/v1/chat/completions", {**SAID, "tools": [{}]}),
        (TOOLS, "/v1/responses", {"input": "Hello", "tools": [{}]}),
        (TOOLS, "/v1/messages", {**SAID, "max_tokens": 1, "tools": [TOOL]}),
        (TOOLS, "/v1/messages/count_tokens", {**SAID, "tools": [TOOL]}),
        (TOOLS, "/api/chat", {**SAID, "tools": [{}]}),
        (TOOLS, "/apply-template", {**SAID, "tools": [{}]}),
        (BIASES, "/v1/chat/completions", {**SAID, **BIAS}),
        (BIASES, "/v1/completions", {"prompt": "Hello", **BIAS}),
    ],
)
def test_what_has_any_names_is_read_beside_the_event_loop(client, monkeypatch, reader, path, body):
    """The body's model leaves it as it is."""
    beside = []

    def read(_):
        beside.append(asyncio._get_running_loop() is None)
        raise InputError("so many")

    monkeypatch.setattr(*reader, read)
    assert "so many" in client.post(path, json=body).text
    assert beside == [True]
