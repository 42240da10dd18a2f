"""The door under uvicorn, with clients that send too much, too slowly, or leave."""

import asyncio
import time
from http.client import HTTPResponse
from queue import Queue

import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from cutaway.server.http.guard import Guard
from support.asgi_client import connect, served


class Told(Queue):
    """What happened in the server, in order."""

    def next(self):
        return self.get(timeout=20)

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
    with served(Guard(never, done=told.done)) as port, connect(port, sent) as client:
        status, explained, connection = response(client)
        assert (status, connection) == (413, "close")
        assert b"longer than 4194304 bytes" in explained
        assert client.recv(1) == b""
        assert told.next() == 413


def test_who_asks_before_sending_is_answered_at_once(told):
    with served(Guard(echo, done=told.done)) as port:
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
    with served(guard) as port, connect(port) as client:
        for body in (b"one", b"", b"three" * 50_000):
            client.sendall(head(len(body), Authorization="Bearer sesame") + body)
            assert response(client) == (200, body, None)
            client.sendall(head(0))
            assert response(client)[0] == 401
        assert [told.next() for _ in range(6)] == [200, 401] * 3


def test_a_refused_body_does_not_become_the_next_request(told):
    smuggled = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(Guard(echo, api_key="sesame", open_paths=(), done=told.done)) as port:
        with connect(port, head(len(smuggled)) + smuggled) as client:
            assert response(client)[::2] == (401, "close")
            assert client.recv(1) == b""
        assert told.next() == 401


def test_who_sends_too_slowly_is_told(told):
    guard = Guard(never, read_timeout=0.2, done=told.done)
    with served(guard) as port:
        with connect(port, head(10) + b"slow") as client:
            status, _, connection = response(client)
            assert (status, connection) == (408, "close")
        assert told.next() == 408


def test_who_hangs_up_while_sending_is_forgotten(told):
    with served(Guard(never, done=told.done)) as port:
        with connect(port, head(10) + b"half"):
            pass
        assert told.next() == 499


def test_the_app_hears_of_a_hang_up_while_it_answers(told):
    async def app(scope, receive, send):
        assert (await receive())["body"] == b"hello"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        told.put((await receive())["type"])

    with served(Guard(app, done=told.done)) as port:
        with connect(port, head(5) + b"hello") as client:
            assert client.recv(12) == b"HTTP/1.1 200"
        assert told.next() == "http.disconnect"
        assert told.next() == 200


def test_the_app_hears_of_a_hang_up_before_it_answers(told):
    async def app(scope, receive, send):
        await receive()
        told.put("asked")
        told.put((await receive())["type"])

    with served(Guard(app, done=told.done)) as port:
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
    with served(guard) as port, connect(port, head(0), buffer=4096):
        assert told.next() == 200
        assert 0.3 <= time.monotonic() - began < 10
    assert not [record for record in caplog.records if record.name == "cutaway.server"]


def test_who_reads_on_is_served_on(told):
    guard = Guard(streaming(), write_timeout=0.3, done=told.done)
    with served(guard) as port, connect(port, head(0)) as client:
        began, read = time.monotonic(), 0
        while time.monotonic() - began < 0.6:
            read += len(client.recv(1 << 16))
        assert read > 1 << 20
        assert told.empty()
        client.close()
        assert told.next() == 200
