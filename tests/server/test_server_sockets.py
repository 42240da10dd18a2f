"""Listening sockets: hosts, ports, and what is said where they cannot be had."""

import errno
import socket
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cutaway.errors import CutawayError, InputError
from cutaway.server.http import sockets as module
from cutaway.server.http.sockets import bind


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
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *_, **__: found)


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
    whole, tries = module._bind_one, []

    def taken_once(address, port, patience):
        tries.append(port)
        if len(tries) == 2:
            raise OSError(errno.EADDRINUSE, "taken")
        return whole(address, port, patience)

    monkeypatch.setattr(module, "_bind_one", taken_once)
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


@pytest.mark.skipif(sys.platform != "linux", reason="others allow fewer")
def test_a_thousand_clients_can_connect_before_the_server_answers():
    """A client that finds the queue full tries again after a second."""
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    with bound("127.0.0.1") as [listening], ExitStack() as held:
        for _ in range(min(1000, most)):
            client = held.enter_context(socket.socket())
            client.settimeout(0.9)
            client.connect(listening.getsockname())
