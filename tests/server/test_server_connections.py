"""Connections: idle ones, too many, and what is not a plain HTTP request."""

import signal
from contextlib import ExitStack, closing
from types import SimpleNamespace

from cutaway.server.http.process import IdleConnections
from support.serving_child import LAST_CHUNK, serving


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
            assert answer.until(LAST_CHUNK).endswith(b"finished\r\n" + LAST_CHUNK)
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
            assert answer.until(None).endswith(b"finished\r\n" + LAST_CHUNK)
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
