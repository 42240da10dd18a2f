"""The middleware: bodies, responses and failures, by ASGI's messages alone."""

import asyncio
import gzip
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.server.http.errors import ApiError
from cutaway.server.http.guard import Guard
from support.asgi_client import Done, Echo, call, request, scope_of
from support.cached_models import Clock, turns

# -- the body ----------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.integers(0, 60), st.booleans())
def test_a_body_arrives_whole_or_not_at_all(parts, limit, announced):
    body, app, done = b"".join(parts), Echo(), Done()
    headers = {"content-length": str(len(body))} if announced else {"transfer-encoding": "chunked"}
    guard = Guard(app, max_body=limit, done=done)
    answer = call(guard, scope_of("POST", headers=headers), request(*parts))
    if len(body) <= limit:
        assert (answer.status, answer.body, done) == (200, body, [200])
    else:
        assert (answer.status, app.seen, done) == (413, [], [413])
        assert f"longer than {limit} bytes" in answer.error()["message"]
        assert "--max-body" in answer.error()["message"]
    assert answer.complete


@pytest.mark.parametrize("length", ["11", "9" * 5000])
def test_an_announced_length_is_refused_before_the_body_is_read(length):
    messages = request(*[b"x"] * 11)
    reading = iter(messages)
    told = []

    async def receive():
        assert told, "the answer comes first"
        return next(reading)

    async def send(message):
        told.append(message)

    guard = Guard(Echo(), max_body=10)
    headers = {"content-length": length}
    asyncio.run(guard(scope_of("POST", headers=headers), receive, send))
    assert told[0]["status"] == 413
    assert (b"connection", b"close") in told[0]["headers"]
    assert [message.get("more_body") for message in told] == [None, True, False]
    assert next(reading, None) is None  # what came was read


class Slow:
    """A client that sends what it is told to, over one guard."""

    def __init__(self, guard, size):
        self._messages, self.status = asyncio.Queue(), None
        self.send(size)
        headers = {"transfer-encoding": "chunked"}
        scope = scope_of("POST", headers=headers)
        self.done = asyncio.create_task(guard(scope, self._messages.get, self._answer))

    def send(self, size, more=True):
        body = bytes(size)
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self):
        self._messages.put_nowait({"type": "http.disconnect"})

    async def _answer(self, message):
        self.status = message.get("status", self.status)


def test_large_bodies_that_arrive_at_once_have_one_budget():
    large, small = 1 << 20, 60_000

    async def clients(guard, sizes):
        made = [Slow(guard, size) for size in sizes]
        for _ in range(9):
            await asyncio.sleep(0)
        return made

    async def main():
        guard = Guard(Echo(), max_body=large)
        slow = await clients(guard, [large - 1] * 40)
        statuses = [client.status for client in slow]
        assert statuses.count(None) in (16, 17), "the others' memory is not the server's"
        assert {*statuses} == {None, 503}
        [chat] = await clients(guard, [small])
        chat.send(0, more=False)
        await chat.done
        assert chat.status == 200, "what is small has room beside them"
        for client in slow:
            client.hang_up()
        await asyncio.gather(*(client.done for client in slow))
        for client in await clients(guard, [large - 1] * 16):
            client.send(1, more=False)
            await client.done
            assert client.status == 200, "what hung up took up nothing"

    asyncio.run(main())


def packed(body, encoding="gzip", limit=100):
    app, length = Echo(), str(len(body))
    headers = {"content-encoding": encoding, "content-length": length}
    return call(Guard(app, max_body=limit), scope_of("POST", headers=headers), request(body)), app


def test_a_gzip_body_is_read_within_the_limit():
    for encoding in ("gzip", " GZIP "):
        answer, _ = packed(gzip.compress(b"hello"), encoding)
        assert (answer.status, answer.body) == (200, b"hello")
    answer, app = packed(gzip.compress(b"x" * 10_000))
    assert (answer.status, app.seen) == (413, []) and "longer than 100" in answer.error()["message"]


@pytest.mark.parametrize(
    ("body", "encoding", "status", "said"),
    [
        (gzip.compress(b"hello")[:-3], "gzip", 400, "not whole gzip"),
        (gzip.compress(b"a") * 2, "gzip", 400, "not whole gzip"),
        (b"hello", "gzip", 400, "not whole gzip"),
        (b"", "gzip", 400, "not whole gzip"),
        (b"hello", "br", 415, "Content-Encoding 'br' is not read here; send gzip"),
        (gzip.compress(b"a"), "gzip, gzip", 415, "'gzip, gzip'"),
    ],
)
def test_another_encoding_is_refused_by_name(body, encoding, status, said):
    answer, app = packed(body, encoding)
    assert (answer.status, app.seen) == (status, []) and said in answer.error()["message"]
    assert packed(b"hello", "identity")[0].body == b"hello"


def test_who_sends_for_ever_is_cut_off():
    """Of a body without end, a bounded amount is read after the answer."""
    read = 0

    async def receive():
        nonlocal read
        read += 1 << 20
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    async def send(message):
        pass

    scope = scope_of("POST", headers={"transfer-encoding": "chunked"})
    asyncio.run(Guard(Echo())(scope, receive, send))
    assert read == (4 + 1 + 16) << 20


def test_a_body_that_does_not_come_is_408():
    app, done = Echo(), Done()
    guard = Guard(app, read_timeout=0.01, done=done)
    messages = [*request(b"x", b"y")[:1], {"type": "http.disconnect"}]

    async def receive():
        if len(messages) == 1 and not told:
            await asyncio.Event().wait()
        return messages.pop(0)

    told = []

    async def send(message):
        told.append(message)

    asyncio.run(guard(scope_of("POST", headers={"content-length": "2"}), receive, send))
    assert (told[0]["status"], app.seen, done) == (408, [], [408])
    error = json.loads(told[1]["body"])["error"]
    assert error["message"] == "the body did not arrive within 0.01 seconds; send it again, faster"


def test_who_hangs_up_while_sending_never_reaches_the_app():
    app, done = Echo(), Done()
    scope = scope_of("POST", headers={"content-length": "10"})
    answer = call(Guard(app, done=done), scope, request(b"half", hangs_up=True))
    assert (app.seen, answer.status, done) == ([], 0, [499])


def test_the_app_hears_of_a_hang_up_after_its_body():
    async def app(scope, receive, send):
        assert await receive() == {"type": "http.request", "body": b"all", "more_body": False}
        assert await receive() == {"type": "http.disconnect"}

    done = Done()
    messages = [*request(b"al", b"l"), {"type": "http.disconnect"}]
    assert call(Guard(app, done=done), scope_of("POST"), messages).status == 0
    assert done == [499]


# -- the answer --------------------------------------------------------------------------------


def stream(guard, send, loop=None):
    async def receive():
        return request(b"")[0]

    with asyncio.Runner(loop_factory=lambda: loop or asyncio.new_event_loop()) as runner:
        runner.run(guard(scope_of(), receive, send))


async def endless(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x", "more_body": True})


def test_who_does_not_read_is_left(caplog):
    sent, done, raised = [], Done(), []

    async def send(message):
        sent.append(message)
        if len(sent) == 3:
            await asyncio.Event().wait()

    async def app(scope, receive, send):
        for _ in range(2):  # it tries once more: that does not wait
            try:
                await endless(scope, receive, send)
            except OSError as error:
                raised.append(str(error))
        raise OSError

    stream(Guard(app, write_timeout=0.01, done=done), send)
    assert raised == ["the client did not read for 0.01 seconds"] * 2
    assert (len(sent), done, caplog.records) == (3, [200], [])


def test_who_reads_slowly_is_not_left():
    """The clock begins again with each message."""
    sent, raised, loop = [], [], Clock()

    async def send(message):
        sent.append(message)
        loop.now += 0.3
        await turns()
        if len(sent) == 10:
            raise ConnectionResetError

    async def app(*given):
        try:
            await endless(*given)
        except OSError as error:
            raised.append(type(error))
            raise

    stream(Guard(app, write_timeout=0.4), send, loop)
    assert (len(sent), raised) == (10, [ConnectionResetError])


# -- failures ----------------------------------------------------------------------------------


def test_a_failure_before_the_answer_is_500_in_the_usual_form(caplog):
    done = Done()
    guard = Guard(Echo(KeyError("secret")), done=done)
    answer = call(guard, scope_of(headers={"x-request-id": "r1"}))
    assert (answer.status, done) == (500, [500])
    told = "the server failed; its log has the reason under request r1"
    assert answer.error()["message"] == told
    assert answer.error()["type"] == "server_error"
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cutaway.server", logging.ERROR)
    assert "KeyError: 'secret'" in caplog.text


@pytest.mark.parametrize("failing", [KeyError("secret"), ApiError(409, "secret")])
def test_a_failure_within_the_answer_leaves_it_incomplete(caplog, failing):
    done = Done()
    answer = call(Guard(Echo(failing, late=True), done=done), scope_of())
    assert (answer.status, answer.complete, done) == (200, False, [200])
    assert "secret" in caplog.text


def test_a_failure_after_the_client_left_is_logged_unless_that_is_all_it_is(caplog):
    def leave(error):
        async def app(scope, receive, send):
            await receive()
            await receive()
            raise error

        done = Done()
        messages = [*request(b""), {"type": "http.disconnect"}]
        call(Guard(app, done=done), scope_of(), messages)
        assert done == [499]

    leave(OSError())
    leave(ExceptionGroup("", [ConnectionResetError()]))
    assert not caplog.records
    leave(ExceptionGroup("", [ConnectionResetError(), KeyError("secret")]))
    assert "KeyError: 'secret'" in caplog.text


def test_a_refusal_of_the_app_is_answered():
    answer = call(Guard(Echo(ApiError(409, "not now; later"))), scope_of())
    assert (answer.status, answer.error()["message"]) == (409, "not now; later")


def test_an_app_without_an_answer_has_failed(caplog):
    async def app(scope, receive, send):
        pass

    assert call(Guard(app), scope_of()).status == 500
    assert "without an answer" in caplog.text


async def test_a_cancelled_request_is_counted_once_and_stays_cancelled():
    done, started = Done(), asyncio.Event()

    async def app(scope, receive, send):
        started.set()
        await asyncio.Event().wait()

    async def receive():
        return request(b"")[0]

    task = asyncio.create_task(Guard(app, done=done)(scope_of(), receive, None))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [500]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_not_http_passes_untouched(kind):
    passed = []

    async def app(*given):
        passed.append(given)

    scope, receive, send = {"type": kind}, object(), object()
    asyncio.run(Guard(app, api_key="sesame", allow_hosts=())(scope, receive, send))
    assert passed == [(scope, receive, send)]
    assert scope == {"type": kind}
