"""JSON without liberties: what is refused, and that the rest is what json reads."""

import json
import time

import pytest
from fastapi import APIRouter, FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from asgi_client import call, post, request, scope_of
from cutaway.server.http.errors import Refusal
from cutaway.server.http.refusals import install
from cutaway.server.http.strict_json import MAX_DEPTH, MAX_VALUES, StrictRoute, parse

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip
# Fragments that make almost-JSON far more often than random bytes do.
almost = st.lists(
    st.sampled_from([
        b"{", b"}", b"[", b"]", b":", b",", b'"', b'"a"', b"1", b"-", b"e9", b".5", b"1e999",
        b"NaN", b"Infinity", b"null", b"true", b" ", b"\n", b"\\", b"\\ud83d", b"\\ude00",
        b"\\u0041", b"\\n", b"\xc3\xa9", b"\xff", b"\x00", b"\xed\xa0\x80",
    ])
).map(b"".join)  # fmt: skip


def refused(body: bytes) -> str:
    with pytest.raises(Refusal) as caught:
        parse(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    return str(caught.value)


@given(values, st.booleans())
def test_what_json_writes_is_read_again(value, ascii_only):
    assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary() | almost)
def test_any_bytes_are_read_as_json_does_or_refused(body):
    try:
        value = parse(body)
    except Refusal as refusal:
        assert "\n" not in refusal.message
        refusal.message.encode()
    else:
        assert value == json.loads(body)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@given(
    st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\u0041", "\\\\", "\\n", "u", "d83d", "x"]))
)
def test_a_string_is_refused_when_it_cannot_be_encoded(parts):
    body = f'"{"".join(parts)}"'.encode()
    try:
        json.loads(body).encode()
    except UnicodeEncodeError:
        assert "half of a surrogate pair" in refused(body)
    else:
        assert parse(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b" \n", "the body is empty; send a JSON object"),
        (b"\xef\xbb\xbf{}", "the body begins with a byte order mark; send it without"),
        (b'{\n"\xc3\xa9\xff"}', "the body is not UTF-8 at line 2, column 3"),
        ('{"a": 1}'.encode("utf-16"), "the body is not UTF-8 at line 1, column 1"),
        (b"[NaN]", "NaN is not JSON; send a finite number"),
        (b"[-Infinity]", "-Infinity is not JSON; send a finite number"),
        (b"1e999", "the number 1e999 is too large; its size must be below 1.8e308"),
        (b"[1,]", "the body is not JSON: "),
        (b'{"a": 1}\n x', "the body is not JSON: extra data at line 2, column 2"),
        (b'["a', "the body is not JSON: unterminated string starting at line 1, column 2"),
        (b'"a\nb"', "the body is not JSON: invalid control character at line 1, column 3"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' is given twice in one object"),
        (b'["a\\ud800"]', r"\ud800 at line 1, column 4 is half of a surrogate pair"),
    ],
)
def test_a_refusal_says_what_and_where(body, told):
    assert refused(body).startswith(told)


@pytest.mark.parametrize("sign", [b"", b"-"])
def test_integers_of_thousands_of_digits_are_refused(sign):
    assert "(5000 characters) is too large" in refused(b"9" * 5000)
    assert "is too large" in refused(sign + b"9" * 309)
    assert parse(sign + b"9" * 308) == int(sign + b"9" * 308)


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_depth_has_a_limit(opened, closed):
    def nested(levels):
        inner = "{}" if closed == "}" else "[]"
        return (opened * (levels - 1) + inner + closed * (levels - 1)).encode()

    assert parse(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    assert "deeper than 64 levels" in refused(nested(MAX_DEPTH + 1))
    assert "deeper than 64 levels" in refused(nested(100_000))


@pytest.mark.parametrize("item", [b"1", b"[]", b'{"a":1}'])
def test_the_number_of_values_has_a_limit(item):
    each = 2 if b"a" in item else 1
    most = (MAX_VALUES - 1) // each  # the list itself is one
    assert len(parse(b"[" + b",".join([item] * most) + b"]")) == most
    assert "more than 262144 values" in refused(b"[" + b",".join([item] * (most + 1)) + b"]")


def test_hostile_megabytes_take_no_time():
    for body in (b"[" * (4 << 20), b'{"a":' * (1 << 20), b"9" * (4 << 20), b"[[]," * (1 << 20)):
        began = time.process_time()
        refused(body)
        assert time.process_time() - began < 0.5  # a few milliseconds, on a shared machine


# -- as a route of FastAPI ---------------------------------------------------------------------


class Asked(BaseModel):
    a: int


@pytest.fixture
def app():
    app = FastAPI()
    router = APIRouter(route_class=StrictRoute)

    @router.post("/")
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
    assert post(app, b"").error()["message"] == "the body is empty; send a JSON object"
    assert post(app, b"[" * 100_000).error()["code"] == "invalid_json"


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "application/jsonx"]
)
def test_another_type_is_refused_with_the_header_to_send(app, kind):
    answer = post(app, {"a": 1}, {"content-type": kind})
    assert answer.status == 415
    told = f"the body must be JSON; send the header 'Content-Type: application/json', not '{kind}'"
    assert answer.error()["message"] == told


def test_no_type_is_refused_and_no_body_needs_none(app):
    answer = call(app, scope_of("POST"), request(b'{"a": 1}'))
    assert answer.status == 415
    assert answer.error()["message"].endswith("'Content-Type: application/json', which is missing")
    assert call(app, scope_of("POST")).error()["code"] == "invalid_json"
    assert call(app, scope_of("GET")).body == b'"nothing asked"'
