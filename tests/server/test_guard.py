"""The middleware: who may send requests, their names; and clients that send too much, or leave."""

import asyncio
import re
import time
from http.client import HTTPResponse
from queue import Queue
from socket import gethostname

import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from cutaway.errors import InputError
from cutaway.server.http.guard import OPEN_PATHS, Guard
from support.asgi_client import Done, Echo, call, connect, scope_of, serve_app

BEARER = {"authorization": "Bearer sesame"}


# -- the name of a request ---------------------------------------------------------------------


@pytest.mark.parametrize("id", ["a", "A.b_c-9", "x" * 128])
def test_the_clients_name_for_a_request_is_kept(id):
    app = Echo()
    answer = call(Guard(app), scope_of(headers={"x-request-id": id}))
    assert answer.header("x-request-id") == id == app.seen[0]["state"]["request_id"]
    assert answer.header("x-kept") == "1"


@pytest.mark.parametrize("id", ["", "a b", "x" * 129, "a\n", "ä", "a/b"])
def test_any_other_name_is_replaced(id):
    app = Echo()
    answers = [call(Guard(app), scope_of(headers={"x-request-id": id})) for _ in range(2)]
    ids = [answer.header("x-request-id") for answer in answers]
    assert all(re.fullmatch("[0-9a-f]{32}", made) for made in ids)
    assert len({*ids}) == 2
    assert ids == [scope["state"]["request_id"] for scope in app.seen]


def test_the_states_of_the_server_are_kept():
    app = Echo()
    call(Guard(app), scope_of() | {"state": {"engine": 1}})
    assert app.seen[0]["state"].keys() == {"engine", "request_id"}


# -- host names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000", "box.lan:1",
        "192.168.1.5:8000", "[fe80::1%25eth0]:8000", "10.0.0.1", f"{gethostname()}:8000",
    ],
)  # fmt: skip
def test_local_and_allowed_names_pass(host):
    guard = Guard(Echo(), allow_hosts=["Box.lan:8000"])
    assert call(guard, scope_of(headers={"host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "[::1",
        "localhost:x",
        "",
        "1.2.3",
        "0x7f.0.0.1",
        "[evil.example]",
        "::1",
        "[127.0.0.1]",
        "127.0.0.1.",
        "host.local",
    ],
)
def test_another_name_is_refused(host):
    app = Echo()
    answer = call(Guard(app, allow_hosts=()), scope_of(headers={"host": host}))
    assert (answer.status, app.seen) == (403, [])
    assert answer.error()["code"] == "host_not_allowed"
    assert "--allow-host" in answer.error()["message"]
    assert answer.header("x-request-id")
    assert call(Guard(app), scope_of(headers={"host": host})).status == 200


def test_a_request_without_a_host_is_refused():
    assert call(Guard(Echo(), allow_hosts=()), scope_of()).status == 403


# -- the key -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["Bearer sesame", "bearer sesame", "BEARER  sesame "])
def test_who_has_the_key_passes(given):
    guard = Guard(Echo(), api_key="sesame")
    assert call(guard, scope_of(path="/v1", headers={"authorization": given})).status == 200


@pytest.mark.parametrize(
    "given",
    [None, "", "sesame", "Bearer", "Bearer sesam", "Bearer sesame2", "Basic sesame", "Bearer é"],
)
def test_who_has_not_is_refused_and_the_key_is_not_told(given):
    app, done = Echo(), Done()
    headers = {} if given is None else {"authorization": given}
    guard = Guard(app, api_key="sesame", done=done)
    answer = call(guard, scope_of(path="/v1", headers=headers))
    assert (answer.status, app.seen, done) == (401, [], [401])
    assert answer.header("www-authenticate") == "Bearer"
    assert answer.error()["code"] == "invalid_api_key"
    assert answer.error()["type"] == "authentication_error"
    assert b"sesam" not in answer.body
    assert answer.header("x-request-id")
    assert answer.header("connection") is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "sesame"}, 200),
        ({"x-api-key": "sesame", "authorization": "Bearer other"}, 200),
        ({"x-api-key": "other", "authorization": "Bearer sesame"}, 200),
        ({"x-api-key": "Bearer sesame"}, 401),
        ({"x-api-key": "sesam"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_the_key_may_come_as_anthropics_clients_send_it(headers, status):
    guard = Guard(Echo(), api_key="sesame")
    assert call(guard, scope_of(path="/v1", headers=headers)).status == status


def test_a_key_may_have_any_characters():
    guard = Guard(Echo(), api_key="schlüssel-日本")
    given = "Bearer schlüssel-日本".encode().decode("latin-1")
    assert call(guard, scope_of(path="/v1", headers={"authorization": given})).status == 200
    assert call(guard, scope_of(path="/v1", headers=BEARER)).status == 401


@pytest.mark.parametrize("key", ["", " ", "two words", "sesame\n"])
def test_a_key_that_no_client_could_send_is_refused(key):
    with pytest.raises(InputError, match="one word"):
        Guard(Echo(), api_key=key)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/health", 200),
        ("/ready", 200),
        ("/static/a.js", 200),
        ("/static/", 200),
        ("/static", 401),
        ("/healthy", 401),
        ("/health/", 401),
        ("//", 401),
        ("/v1/models", 401),
        ("/metrics", 401),
    ],
)
def test_open_paths_need_no_key(path, status):
    guard = Guard(Echo(), api_key="sesame", open_paths=(*OPEN_PATHS, "/static/"))
    assert call(guard, scope_of(path=path)).status == status


def test_a_preflight_needs_no_key_and_a_bare_options_does():
    guard = Guard(Echo(), api_key="sesame")
    asked = {"origin": "http://a", "access-control-request-method": "POST"}
    assert call(guard, scope_of("OPTIONS", "/v1", asked)).status == 200
    assert call(guard, scope_of("POST", "/v1", asked)).status == 401
    assert call(guard, scope_of("OPTIONS", "/v1", {"origin": "http://a"})).status == 401


# -- the door under uvicorn, with clients that send too much, too slowly, or leave -------------


class Told(Queue):
    """What happened in the server, in order."""

    def next(self):
        return self.get(timeout=300)

    def done(self, scope, status, seconds):
        self.put(status)


@pytest.fixture
def told():
    told = Told()
    yield told
    assert told.empty()


async def echo(scope, receive, send):
    body = (await receive())["body"]
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def never(scope, receive, send):
    raise AssertionError("the app must not be called")


def head(length=None, **headers):
    lines = ["POST / HTTP/1.1", "Host: localhost"]
    lines += [f"Content-Length: {length}"] if length is not None else ["Transfer-Encoding: chunked"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def response(client):
    answer = HTTPResponse(client, method="POST")
    answer.begin()
    return answer.status, answer.read(), answer.getheader("connection")


@pytest.mark.parametrize("announced", [True, False])
def test_who_sends_10_megabytes_reads_why_not(told, announced):
    """Blindly, as most clients do: everything is sent before anything is read."""
    body = bytes(10 << 20)
    if announced:
        sent = head(len(body)) + body
    else:
        sent = head() + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    with serve_app(Guard(never, done=told.done)) as port, connect(port, sent) as client:
        status, explained, connection = response(client)
        assert (status, connection) == (413, "close")
        assert b"longer than 4194304 bytes" in explained
        assert client.recv(1) == b""
        assert told.next() == 413


def test_who_asks_before_sending_is_answered_at_once(told):
    with serve_app(Guard(echo, done=told.done)) as port:
        with connect(port, head(10 << 20, Expect="100-continue")) as client:
            assert response(client)[0] == 413
        assert told.next() == 413
        with connect(port, head(5, Expect="100-continue")) as client:
            assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(b"hello")
            assert response(client) == (200, b"hello", None)
        assert told.next() == 200


def test_one_connection_serves_many_requests(told):
    guard = Guard(echo, api_key="sesame", open_paths=(), done=told.done)
    with serve_app(guard) as port, connect(port) as client:
        for body in (b"one", b"", b"three" * 50_000):
            client.sendall(head(len(body), Authorization="Bearer sesame") + body)
            assert response(client) == (200, body, None)
            client.sendall(head(0))
            assert response(client)[0] == 401
        assert [told.next() for _ in range(6)] == [200, 401] * 3


def test_a_refused_body_does_not_become_the_next_request(told):
    smuggled = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve_app(Guard(echo, api_key="sesame", open_paths=(), done=told.done)) as port:
        with connect(port, head(len(smuggled)) + smuggled) as client:
            assert response(client)[::2] == (401, "close")
            assert client.recv(1) == b""
        assert told.next() == 401


def test_who_sends_too_slowly_is_told(told):
    guard = Guard(never, read_timeout=0.2, done=told.done)
    with serve_app(guard) as port:
        with connect(port, head(10) + b"slow") as client:
            status, _, connection = response(client)
            assert (status, connection) == (408, "close")
        assert told.next() == 408


def test_who_hangs_up_while_sending_is_forgotten(told):
    with serve_app(Guard(never, done=told.done)) as port:
        with connect(port, head(10) + b"half"):
            pass
        assert told.next() == 499


def test_the_app_hears_of_a_hang_up_while_it_answers(told):
    async def app(scope, receive, send):
        assert (await receive())["body"] == b"hello"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        told.put((await receive())["type"])

    with serve_app(Guard(app, done=told.done)) as port:
        with connect(port, head(5) + b"hello") as client:
            assert client.recv(12) == b"HTTP/1.1 200"
        assert told.next() == "http.disconnect"
        assert told.next() == 200


def test_the_app_hears_of_a_hang_up_before_it_answers(told):
    async def app(scope, receive, send):
        await receive()
        told.put("asked")
        told.put((await receive())["type"])

    with serve_app(Guard(app, done=told.done)) as port:
        with connect(port, head(5) + b"hello"):
            assert told.next() == "asked"
        assert told.next() == "http.disconnect"
        assert told.next() == 499


def streaming():
    """An app of FastAPI that streams without end."""
    app = FastAPI()

    async def text():
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)  # as one that waits for tokens does

    @app.post("/")
    async def stream() -> StreamingResponse:
        return StreamingResponse(text())

    return app


def test_who_does_not_read_is_left(told, caplog):
    began = time.monotonic()
    guard = Guard(streaming(), write_timeout=0.3, done=told.done)
    with serve_app(guard) as port, connect(port, head(0), buffer=4096):
        assert told.next() == 200
        assert time.monotonic() - began >= 0.3
    assert not [record for record in caplog.records if record.name == "cutaway.server"]


def test_who_reads_on_is_served_on(told):
    """However long that takes is shown by a clock of the test's, in test_guard_exchange.py."""
    with serve_app(Guard(streaming(), done=told.done)) as port, connect(port, head(0)) as client:
        read = 0
        while read < 1 << 26:  # more than lies on the way: the server waits for the reader
            read += len(client.recv(1 << 16))
        assert told.empty()
        client.close()
        assert told.next() == 200
