"""How a serving process begins and ends: real processes, real signals, real sockets."""

import asyncio
import errno
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from threading import Timer
from types import SimpleNamespace

import pytest
import uvicorn
from starlette.applications import Starlette

from cutaway.errors import CutawayError, InputError
from cutaway.server.http import process
from cutaway.server.http.idle import Idle
from cutaway.server.http.process import bind, run

CHILD = """
import asyncio, sys
from cutaway.server.http import process

grace, process.CUT_AFTER_S, mode = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
process.HEAD_WITHIN_S = 0.2 if mode == "impatient" else process.HEAD_WITHIN_S
stop, over = asyncio.Event(), asyncio.Event()
ends = {"/now": None, "/much": None, "/never": asyncio.Event(),
        "/at-stop": stop, "/at-grace-over": over}

def say(*words):
    print(*words, flush=True)

async def lifespan(receive, send):
    await receive()
    if mode == "never-starts":
        say("starting")
        try:
            await asyncio.Event().wait()
        finally:
            say("start ended")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    if mode == "never-ends":
        say("ending")
        await asyncio.Event().wait()
    say("lifespan ended")
    await send({"type": "lifespan.shutdown.complete"})

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    if wait := ends[scope["path"]]:
        try:
            await wait.wait()
        except asyncio.CancelledError:
            say("cut")
            raise
    much = bytes(1 << 26) if scope["path"] == "/much" else b""
    await send({"type": "http.response.body", "body": b"finished" + much})

def on_stop():
    say("stop")
    stop.set()
    if mode == "broken-on-stop":
        raise KeyError("on_stop is broken")

def on_grace_over():
    say("grace over")
    over.set()

sockets = process.bind("127.0.0.1", 0)
port = sockets[0].getsockname()[1]
code = process.run(app, sockets, grace=grace, on_ready=lambda: say("ready", port),
                   on_stop=on_stop, on_grace_over=on_grace_over)
say("run returned")
sys.exit(code)
"""

SOON = 0.05
NEVER = 3600  # of grace: a test that waits for it fails, as the child is killed long before
LIMIT_S = 60


class Child:
    """A serving process, and what it says."""

    def __init__(self, popen: subprocess.Popen) -> None:
        self.popen, self.port = popen, 0

    def line(self) -> str:
        """The next line that it writes; empty at its end."""
        return self.popen.stdout.readline().rstrip("\n")

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self) -> tuple[list[str], int]:
        """The lines to come, and the exit code."""
        return self.popen.stdout.read().splitlines(), self.popen.wait()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def ask(self, path: str) -> "Answer":
        return Answer(self.connect(), path)


class Answer:
    """An HTTP answer that has begun."""

    def __init__(self, connection: socket.socket, path: str) -> None:
        self._connection, self.received = connection, b""
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        self.until(b"begun ")

    def until(self, marker: bytes | None) -> bytes:
        """All so far, up to a marker or the connection's end."""
        while marker is None or marker not in self.received:
            try:
                part = self._connection.recv(4096)
            except ConnectionResetError:
                part = b""
            if not part:
                assert marker is None, self.received
                break
            self.received += part
        return self.received

    def close(self) -> None:
        self._connection.close()


@contextmanager
def serving(grace: float = NEVER, cut: float = NEVER, mode: str = "", *, ready: bool = True):
    command = [sys.executable, "-c", CHILD, str(grace), str(cut), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as popen:
        killer = Timer(LIMIT_S, popen.kill)  # its end fails the test, which would wait for ever
        killer.start()
        try:
            child = Child(popen)
            if ready:
                word, port = child.line().split()
                assert word == "ready"
                child.port = int(port)
            yield child
        finally:
            killer.cancel()
            popen.kill()


LAST_CHUNK = b"0\r\n\r\n"


# -- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_an_answer_that_runs_is_finished(number, code):
    with serving() as child, closing(child.ask("/at-stop")) as answer:
        child.signal(number)
        assert answer.until(None).endswith(b"finished\r\n" + LAST_CHUNK)
        assert child.end() == (["stop", "lifespan ended", "run returned"], code)


def test_after_grace_the_application_ends_its_answers():
    with serving(grace=SOON) as child, closing(child.ask("/at-grace-over")) as answer:
        child.signal(signal.SIGTERM)
        assert answer.until(None).endswith(LAST_CHUNK)
        said = ["stop", "grace over", "lifespan ended", "run returned"]
        assert child.end() == (said, 0)


def test_what_does_not_end_then_is_cut():
    with serving(grace=SOON, cut=SOON) as child, closing(child.ask("/never")) as answer:
        child.signal(signal.SIGTERM)
        assert not answer.until(None).endswith(LAST_CHUNK)
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
        assert not answer.until(None).endswith(LAST_CHUNK)
        assert child.end() == (["cut", "lifespan ended", "run returned"], 0)


def test_of_one_more_signal_it_dies():
    with serving(mode="never-ends") as child, closing(child.ask("/never")):
        for said in (["stop"], ["grace over"], ["cut", "ending"]):
            child.signal(signal.SIGTERM)
            assert [child.line() for _ in said] == said
        child.signal(signal.SIGTERM)
        assert child.end() == ([], -signal.SIGTERM)


def test_a_stage_that_a_signal_began_has_its_whole_time():
    async def second_signal() -> tuple[bool, bool]:
        server = process._Server(uvicorn.Config(willing), NEVER, int, int, int)
        server.started, server.servers = True, []
        server._next_stage()
        first = server._timer
        server._next_stage()
        second = server._timer
        second.cancel()
        return first.cancelled(), second is not first

    assert asyncio.run(second_signal()) == (True, True)


def test_nobody_is_let_in_after_the_signal():
    with serving() as child, closing(child.ask("/at-grace-over")):
        child.signal(signal.SIGTERM)
        assert child.line() == "stop"
        with pytest.raises(ConnectionRefusedError):
            child.connect()


def test_idle_connections_delay_nothing():
    with serving() as child:
        silent, half = child.connect(), child.connect()
        half.sendall(b"GET /now HTTP/1.1\r\nHos")
        with closing(child.ask("/now")) as idle, silent, half:
            idle.until(LAST_CHUNK)
            child.signal(signal.SIGTERM)
            assert child.end() == (["stop", "lifespan ended", "run returned"], 0)
            assert silent.recv(1) == half.recv(1) == b""


def test_who_sends_no_request_is_hung_up_on():
    """Or a thousand silent connections would be all that this process can have."""
    with serving(mode="impatient") as child, closing(child.ask("/at-stop")) as running:
        silent, half, second = child.connect(), child.connect(), child.ask("/now")
        half.sendall(b"GET /now HTTP/1.1\r\nHos")
        second.until(LAST_CHUNK)
        second._connection.sendall(b"GET /n")
        with closing(second), silent, half:
            assert silent.recv(1) == half.recv(1) == b""
            assert second.until(None).endswith(LAST_CHUNK)
        child.signal(signal.SIGTERM)
        assert running.until(LAST_CHUNK).endswith(b"finished\r\n" + LAST_CHUNK)


def test_a_connection_may_be_seen_idle_between_all_its_requests():
    class Connection:
        closed, transport, cycle = False, None, None

        def close(self):
            self.closed = True

    idle, busy, silent = Idle(), Connection(), Connection()
    for now in range(10):
        for each in (busy, silent):
            each.transport = each
        busy.cycle = SimpleNamespace(response_complete=True)
        idle.hang_up([busy, silent], now, 5)
        assert silent.closed == (now >= 5)
    assert not busy.closed
    busy.cycle = running = SimpleNamespace(response_complete=False)
    for now in range(10, 30):
        idle.hang_up([busy], now, 5)
    running.response_complete = True
    for now in range(30, 36):
        assert not busy.closed
        idle.hang_up([busy], now, 5)
    assert busy.closed


def test_a_callback_that_raises_does_not_keep_the_process():
    with serving(mode="broken-on-stop") as child:
        child.signal(signal.SIGTERM)
        assert child.end() == (["stop", "lifespan ended", "run returned"], 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
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


# -- sockets -----------------------------------------------------------------------------------


@contextmanager
def bound(host: str, port: int = 0):
    sockets = bind(host, port)
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def addresses(monkeypatch, *names: str) -> None:
    """Whatever host is asked for has these."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 0)) for name in names]
    monkeypatch.setattr(process.socket, "getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_that_was_chosen_can_be_read_and_takes_connections(host):
    with bound(host) as sockets:
        port = sockets[0].getsockname()[1]
        assert port > 0
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with bound("::1") as (only,):
        socket.create_connection(only.getsockname()[:2]).close()
        with bound("::", 0) as (every,), bound("0.0.0.0", every.getsockname()[1]):
            pass


def test_every_address_of_a_host_has_the_same_port(monkeypatch):
    addresses(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.1")
    with bound("two") as sockets:
        names = [each.getsockname() for each in sockets]
        assert [name for name, _ in names] == ["127.0.0.1", "127.0.0.2"]
        assert len({port for _, port in names}) == 1


def test_a_chosen_port_that_is_taken_on_another_address_is_chosen_anew(monkeypatch):
    addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
    whole, tries = process._bind_one, []

    def taken_once(address, port, patience):
        tries.append(port)
        if len(tries) == 2:
            raise OSError(errno.EADDRINUSE, "taken")
        return whole(address, port, patience)

    monkeypatch.setattr(process, "_bind_one", taken_once)
    with bound("two") as sockets:
        assert len(sockets) == 2
        assert [bool(port) for port in tries] == [False, True, False, True]


def test_an_address_that_the_machine_lacks_is_left_out_of_several(monkeypatch):
    addresses(monkeypatch, "192.0.2.1", "127.0.0.1")
    with bound("several") as (only,):
        assert only.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_told_at_once_and_nothing_stays_bound(monkeypatch):
    with bound("127.0.0.2") as (first,):
        port = first.getsockname()[1]
        with pytest.raises(CutawayError, match=f"^--port {port} of 127.0.0.2 is in use"):
            bind("127.0.0.2", port)
        addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
        with pytest.raises(CutawayError, match=f"^--port {port} of two is in use"):
            bind("two", port)
        monkeypatch.undo()
        with bound("127.0.0.1", port):
            pass


def test_a_port_without_permission(monkeypatch):
    def refuse(self, address):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(CutawayError, match=r"^--port 80 is not for this user"):
        bind("127.0.0.1", 80)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70, "", "\0", "1.2.3.4.5"])
def test_a_host_that_is_none(host):
    with pytest.raises(InputError, match=r"^--host .* no address and no known name"):
        bind(host, 0)


def test_a_host_that_is_another_machine():
    with pytest.raises(CutawayError, match=r"^--host 192\.0\.2\.1 is no address of this machine"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none(port):
    with pytest.raises(InputError, match=rf"^--port must be from 0 to 65535, not {port}"):
        bind("127.0.0.1", port)
