"""What the command line's words mean to the server: who may ask, and under which name."""

import subprocess
import sys

import httpx
import pytest

from cutaway import LLM
from cutaway.cli import serve as command
from cutaway.errors import InputError
from cutaway.server.http import sockets
from cutaway.server.http.settings import ServerSettings
from support.served import serve
from support.server_processes import serve_arguments

bind = sockets.bind


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
    monkeypatch.setattr(sockets, "bind", lambda *a, **k: bound.extend(bind(*a, **k)) or bound)
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
