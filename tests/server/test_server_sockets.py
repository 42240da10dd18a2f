"""Listening sockets, and what the command line's words mean to the server."""

import errno
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from cutaway import LLM
from cutaway.cli import serve as command
from cutaway.errors import CutawayError, InputError
from cutaway.server.http import sockets as listening
from cutaway.server.http.settings import ServerSettings
from cutaway.server.http.sockets import bind
from support.served import serve
from support.server_processes import serve_arguments


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
    monkeypatch.setattr(listening.socket, "getaddrinfo", lambda *_, **__: found)


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
    whole, tries = listening._bind_one, []

    def taken_once(address, port, patience):
        tries.append(port)
        if len(tries) == 2:
            raise OSError(errno.EADDRINUSE, "taken")
        return whole(address, port, patience)

    monkeypatch.setattr(listening, "_bind_one", taken_once)
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


# -- the command line's words: who may ask, and under which name -------------------------------


def settings(*words):
    return command._settings(serve_arguments(*words))


@pytest.mark.parametrize("words", [("--api-key", ""), ("--api-key", "two words")])
def test_a_key_that_is_none_opens_no_door(words, monkeypatch):
    """As where a script's variable is not set."""
    monkeypatch.delenv("CUTAWAY_API_KEY", raising=False)
    with pytest.raises(InputError, match="api_key"):
        settings(*words)


def test_the_key_in_the_environment_is_hidden_by_that_of_the_command_line(monkeypatch):
    monkeypatch.setenv("CUTAWAY_API_KEY", "environment")
    assert settings().api_key == "environment"
    assert settings("--api-key", "line").api_key == "line"
    monkeypatch.delenv("CUTAWAY_API_KEY")
    assert settings().api_key is None


def test_a_key_in_the_environment_that_is_empty_opens_no_door(monkeypatch):
    """As where a Secret lacks its value."""
    monkeypatch.setenv("CUTAWAY_API_KEY", "")
    with pytest.raises(InputError, match="CUTAWAY_API_KEY is set and empty"):
        settings()
    assert settings("--api-key", "line").api_key == "line"


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ((), ["127.0.0.1"]),
        (("--host", "127.0.0.2"), ["127.0.0.2"]),
        (("--host", "::1", "--allow-host", "a"), ["[::1]", "a"]),
        (("--host", "10.0.0.1", "--allow-host", "a"), ["10.0.0.1", "a"]),
        (("--host", "10.0.0.1"), ["10.0.0.1"]),
        (("--host", "0.0.0.0"), []),
        (("--host", "::"), []),
        (("--host", "0.0.0.0", "--api-key", "k"), None),
        (("--host", "0.0.0.0", "--api-key", "k", "--allow-host", "a"), ["a"]),
        (("--api-key", "k"), ["127.0.0.1"]),
    ],
)
def test_any_host_is_taken_only_with_a_key_and_beyond_this_machine(words, hosts, monkeypatch):
    monkeypatch.delenv("CUTAWAY_API_KEY", raising=False)
    assert settings(*words).allow_hosts == hosts


@pytest.mark.parametrize(
    "origin", ["localhost:3000", "https://a/", "https://a/path", "a", "", "http://", "https://a b"]
)
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(InputError, match="cors"):
        ServerSettings(cors=[origin])


@pytest.mark.parametrize("given", [{"names": [""]}, {"names": ["a", " "]}, {"allow_hosts": [""]}])
def test_a_name_that_nobody_can_send_is_refused(given):
    """As where a script's variable is not set."""
    with pytest.raises(InputError, match=f"{next(iter(given))}: an empty name"):
        ServerSettings(**given)


@pytest.mark.parametrize("origin", ["*", "null", "http://localhost:3000", "app://obsidian.md"])
def test_an_origin_that_browsers_send_is_taken(origin):
    assert ServerSettings(cors=[origin]).cors == [origin]


@pytest.mark.parametrize("words", [("--unload-after", "-1"), ("-m", "nothing.gguf")])
def test_a_start_that_is_refused_leaves_no_port_bound(words, monkeypatch):
    bound = []
    monkeypatch.setattr(listening, "bind", lambda *a, **k: bound.extend(bind(*a, **k)) or bound)
    with pytest.raises(InputError, match=words[1]):
        command.run(serve_arguments("--port", "0", *words))
    assert [each.fileno() for each in bound] == [-1]


_BOUND = """
import sys
from unittest.mock import patch
from cutaway.cli.main import main
from cutaway.server.http import sockets

def bind(*_, **__):
    print("fastapi" in sys.modules)
    raise SystemExit

with patch.object(sockets, "bind", bind):
    main(["serve", "-m", "toy-writer"])
"""


def test_the_port_is_bound_before_what_serves_is_imported():
    """That takes a second or more, in which clients of a server before would be refused."""
    command = [sys.executable, "-c", _BOUND]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_an_answer_says_which_settings_are_the_servers(tiny_path):
    with serve(LLM(tiny_path, threads=1, progress=False), top_k=4, top_p=1.0) as served:
        body = {"prompt": "a", "max_tokens": 1, "top_p": 0.5}
        answer = httpx.post(f"{served.url}/v1/completions", json=body).json()
    source = answer["cutaway"]["params_source"]
    names = ("top_k", "top_p", "min_p", "seed")
    assert [source[name] for name in names] == ["server", "given", "default", "chosen"]


def test_the_model_file_is_named_before_anybody_asks(tiny_path, monkeypatch):
    """Hashing takes seconds, in which nobody else would be served; and a file that has changed
    since would be the client's mistake, told with its path."""
    llm = LLM(tiny_path, threads=1, progress=False)
    with serve(llm) as served:
        monkeypatch.setattr("cutaway.compute.loading.identity.identify", None)
        answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert answer.status_code == 200
