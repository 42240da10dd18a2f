"""How a serving process begins and ends: real processes, signals and sockets; its connections."""

import asyncio
import signal
import sys
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
import uvicorn
from starlette.applications import Starlette

from cutaway.errors import CutawayError
from cutaway.server.http import process
from cutaway.server.http.process import IdleConnections, run
from cutaway.server.http.sockets import bind
from support.serving_child import LAST_CHUNK, NEVER, SOON, serving

ENDS = [
    (signal.SIGTERM, 0),
    (signal.SIGINT, 130),
    *([(signal.SIGHUP, 0)] if hasattr(signal, "SIGHUP") else []),
]

# -- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_an_answer_that_runs_is_finished(number, code):
    with serving() as child, closing(child.ask("/at-stop")) as answer:
        child.signal(number)
        assert answer.read_until(None).endswith(b"finished\r\n" + LAST_CHUNK)
        assert child.end() == (["stop", "lifespan ended", "run returned"], code)


def test_after_grace_the_application_ends_its_answers():
    with serving(grace=SOON) as child, closing(child.ask("/at-grace-over")) as answer:
        child.signal(signal.SIGTERM)
        assert answer.read_until(None).endswith(LAST_CHUNK)
        said = ["stop", "grace over", "lifespan ended", "run returned"]
        assert child.end() == (said, 0)


def test_what_does_not_end_then_is_cut():
    with serving(grace=SOON, cut=SOON) as child, closing(child.ask("/never")) as answer:
        child.signal(signal.SIGTERM)
        assert not answer.read_until(None).endswith(LAST_CHUNK)
        said = ["stop", "grace over", "cut", "lifespan ended", "run returned"]
        assert child.end() == (said, 0)


def test_a_client_that_does_not_read_is_cut():
    with serving(grace=SOON, cut=SOON) as child, closing(child.ask("/much")):
        child.signal(signal.SIGTERM)
        said = ["stop", "grace over", "lifespan ended", "run returned"]
        assert child.end() == (said, 0)


def test_a_second_signal_ends_grace_and_a_third_cuts():
    with serving() as child, closing(child.ask("/never")) as answer:
        child.signal(signal.SIGTERM)
        assert child.line() == "stop"
        child.signal(signal.SIGINT)
        assert child.line() == "grace over"
        child.signal(signal.SIGTERM)
        assert not answer.read_until(None).endswith(LAST_CHUNK)
        assert child.end() == (["cut", "lifespan ended", "run returned"], 0)


def test_of_one_more_signal_it_dies():
    with serving(mode="never-ends") as child, closing(child.ask("/never")):
        for said in (["stop"], ["grace over"], ["cut", "ending"]):
            child.signal(signal.SIGTERM)
            assert [child.line() for _ in said] == said
        child.signal(signal.SIGTERM)
        assert child.end() == ([], -signal.SIGTERM)


async def test_a_stage_that_a_signal_began_has_its_whole_time():
    server = process._Server(uvicorn.Config(willing), NEVER, int, int, int)
    server.started, server.servers = True, []
    server._next_stage()
    first = server._timer
    server._next_stage()
    second = server._timer
    second.cancel()
    assert first.cancelled() and second is not first


def test_nobody_is_let_in_after_the_signal():
    with serving() as child, closing(child.ask("/at-grace-over")):
        child.signal(signal.SIGTERM)
        assert child.line() == "stop"
        with pytest.raises(ConnectionRefusedError):
            child.connect()


def test_a_callback_that_raises_does_not_keep_the_process():
    with serving(mode="broken-on-stop") as child:
        child.signal(signal.SIGTERM)
        assert child.end() == (["stop", "lifespan ended", "run returned"], 0)


def test_threads_take_turns_sooner_while_it_serves(monkeypatch):
    """Or the event loop waits for whoever writes a large answer, after each read and write."""
    before, meanwhile = sys.getswitchinterval(), []

    def serve(coroutine):
        coroutine.close()
        meanwhile.append(sys.getswitchinterval())

    monkeypatch.setattr(asyncio, "run", serve)
    nothing = dict.fromkeys(("on_ready", "on_stop", "on_grace_over"), lambda: None)
    assert run(Starlette(), [], grace=0, **nothing) == 0
    assert meanwhile == [pytest.approx(0.002)]
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_during_the_start_ends_it(number, code):
    with serving(mode="never-starts", ready=False) as child:
        assert child.line() == "starting"
        child.signal(number)
        assert child.end() == (["start ended", "run returned"], code)


# -- the start, in this process ----------------------------------------------------------------


async def willing(scope, receive, send):
    """A lifespan, and nothing else."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


def run_until_ready(app, number: int = signal.SIGTERM) -> int:
    """Run it, with a signal as soon as it is ready."""

    def never() -> None:
        raise AssertionError("there was nothing to wait for")

    return run(
        app,
        bind("127.0.0.1", 0),
        grace=NEVER,
        on_ready=lambda: signal.raise_signal(number),
        on_stop=lambda: None,
        on_grace_over=never,
    )


def test_handlers_of_signals_are_as_before():
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, print) for number in numbers]
    try:
        assert run_until_ready(willing) == 0
        assert run_until_ready(willing, signal.SIGINT) == 130
        assert [signal.getsignal(number) for number in numbers] == [print, print]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_nohup_is_heard():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ignored = _heard_while_serving()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ignored == signal.SIG_IGN


def _heard_while_serving():
    """What SIGHUP does while the server runs."""
    found = []

    def look() -> None:
        found.append(signal.getsignal(signal.SIGHUP))
        signal.raise_signal(signal.SIGTERM)

    run(
        willing, bind("127.0.0.1", 0), grace=NEVER, on_ready=look, on_stop=lambda: None,
        on_grace_over=lambda: None,
    )  # fmt: skip
    return found[0]


def fails(stage: str, error: BaseException | None):
    """An application whose lifespan raises an error, or only says that it failed."""

    async def app(scope, receive, send):
        await receive()
        if stage == "shutdown":
            await send({"type": "lifespan.startup.complete"})
            await receive()
        if error:
            raise error
        await send({"type": f"lifespan.{stage}.failed", "message": "no model here"})

    return app


def starlette_that_fails(stage: str, error: BaseException):
    class Lifespan:
        def __init__(self, app) -> None: ...

        async def __aenter__(self) -> None:
            if stage == "startup":
                raise error

        async def __aexit__(self, *_: object) -> None:
            raise error

    return Starlette(lifespan=Lifespan)


@pytest.mark.parametrize("stage", ["startup", "shutdown"])
@pytest.mark.parametrize("make", [fails, starlette_that_fails])
@pytest.mark.parametrize("error", [CutawayError("no"), KeyError("bug"), SystemExit(3)])
def test_what_the_lifespan_raises_is_raised(stage, make, error, caplog):
    with pytest.raises(type(error)) as caught:
        run_until_ready(make(stage, error))
    assert caught.value is error
    assert "Traceback" not in caplog.text, "it is told once, by whoever catches it"


@pytest.mark.parametrize("stage", ["startup", "shutdown"])
def test_a_lifespan_that_says_it_failed_is_an_error(stage):
    with pytest.raises(CutawayError, match=rf"lifespan\.{stage}\.failed: no model here"):
        run_until_ready(fails(stage, None))


def test_the_sockets_are_closed_however_it_ends():
    for app in (willing, fails("startup", KeyError("bug"))):
        sockets = bind("127.0.0.1", 0)
        try:
            run(app, sockets, grace=0, on_ready=lambda: signal.raise_signal(signal.SIGTERM),
                on_stop=int, on_grace_over=int)  # fmt: skip
        except KeyError:
            assert app is not willing
        assert all(each.fileno() == -1 for each in sockets)


# -- connections: idle ones, too many, and what is not a plain HTTP request --------------------


def test_idle_connections_delay_nothing():
    with serving() as child:
        silent, half = child.connect(), child.connect()
        half.sendall(b"GET /now HTTP/1.1\r\nHos")
        with closing(child.ask("/now")) as idle, silent, half:
            idle.read_until(LAST_CHUNK)
            child.signal(signal.SIGTERM)
            assert child.end() == (["stop", "lifespan ended", "run returned"], 0)
            assert silent.recv(1) == half.recv(1) == b""


def test_who_sends_no_request_is_hung_up_on():
    """Or a thousand silent connections would be all that this process can have."""
    with serving(mode="impatient") as child, closing(child.ask("/at-stop")) as running:
        silent, half, second = child.connect(), child.connect(), child.ask("/now")
        half.sendall(b"GET /now HTTP/1.1\r\nHos")
        second.read_until(LAST_CHUNK)
        second._connection.sendall(b"GET /n")
        with closing(second), silent, half:
            assert silent.recv(1) == half.recv(1) == b""
            assert second.read_until(None).endswith(LAST_CHUNK)
        child.signal(signal.SIGTERM)
        assert running.read_until(LAST_CHUNK).endswith(b"finished\r\n" + LAST_CHUNK)


def test_a_connection_may_be_seen_idle_between_all_its_requests():
    class Connection:
        closed, transport, cycle = False, None, None

        def close(self):
            self.closed = True

    idle, busy, silent = IdleConnections(), Connection(), Connection()
    for now in range(10):
        for each in (busy, silent):
            each.transport = each
        busy.cycle = SimpleNamespace(response_complete=True)
        idle.close([busy, silent], now, 5)
        assert silent.closed == (now >= 5)
    assert not busy.closed
    busy.cycle = running = SimpleNamespace(response_complete=False)
    for now in range(10, 30):
        idle.close([busy], now, 5)
    running.response_complete = True
    for now in range(30, 36):
        assert not busy.closed
        idle.close([busy], now, 5)
    assert busy.closed


def test_idle_connections_make_room_when_descriptors_run_out(capfd):
    """asyncio alone writes thousands of tracebacks a second, and nobody is answered."""
    with serving(mode="few-descriptors") as child, ExitStack() as stack:
        for _ in range(120):
            stack.enter_context(closing(child.connect()))
        with closing(child.ask("/now")) as answer:
            assert answer.read_until(LAST_CHUNK).endswith(b"finished\r\n" + LAST_CHUNK)
        child.signal(signal.SIGTERM)
        assert child.end() == (["stop", "lifespan ended", "run returned"], 0)
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 2
    assert all("accept_failed" in line and "raise `ulimit -n`" in line for line in lines)


def test_a_connection_too_many_is_closed_where_none_is_idle(capfd):
    with serving(mode="few-descriptors") as child, ExitStack() as stack:
        running = [stack.enter_context(closing(child.ask("/at-stop"))) for _ in range(40)]
        for _ in range(100):
            client = stack.enter_context(closing(child.connect()))
            try:
                client.sendall(b"GET /at-stop HTTP/1.1\r\nHost: h\r\n\r\n")
                refused = not client.recv(1)
            except ConnectionError:
                refused = True
            if refused:
                break
        assert refused
        child.signal(signal.SIGTERM)
        for answer in running:
            assert answer.read_until(None).endswith(b"finished\r\n" + LAST_CHUNK)
        assert child.end() == (["stop", "lifespan ended", "run returned"], 0)
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_an_upgrade_is_answered_as_plain_http(capfd):
    """uvicorn's log advised to install what would not have helped."""
    lines = ["GET /now HTTP/1.1", "Host: h", "Connection: Upgrade, close", "Upgrade: websocket"]
    with serving() as child, closing(child.connect()) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        received = b""
        while part := client.recv(4096):
            received += part
        assert received.startswith(b"HTTP/1.1 200") and b"finished" in received
    assert capfd.readouterr().err == ""
