"""Commands that ask a server, against servers that answer what they like: one sentence, in time."""

import re
import time

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.cli.terminal import console
from cutaway.errors import CutawayError
from cutaway.features.integrations.served import ServedModel
from cutaway.rerun import asking
from support.hostile import ANSWERS, ENDLESS, KINDS, hostile

PROMPT = "ab"
COMMANDS = {
    "conform": ["conform", "--size", "2", "--max-tokens", "2"],
    "oracle": ["oracle", "--prompt", PROMPT, "--max-tokens", "1"],
    "oracle --chat": ["oracle", "--chat", "--prompt", PROMPT, "--max-tokens", "1"],
    "oracle --echo": ["oracle", "--echo", "ECHO"],
    "pytest": ["pytest"],
}
MOST_S = 60.0
"""Of a command that gives an answer some tenths of a second, and asks a few times."""
MOST_REQUESTS = 70
"""``conform`` asks the most, some sixty times, where answers have the right form."""


@pytest.fixture(scope="module")
def llm(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


@pytest.fixture(autouse=True)
def _small(monkeypatch, llm):
    """A second and some bytes, so that what has no end has one in a test; the model is open."""
    monkeypatch.setattr(asking, "ANSWER_S", 0.3)
    monkeypatch.setattr(asking, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(console, "load", lambda _: llm)


FIRST = [
    kind if i < 2 else pytest.param(kind, marks=pytest.mark.slow) for i, kind in enumerate(KINDS)
]


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("answer", ANSWERS)
def test_one_sentence(kind, answer, tmp_path, capsys):
    check_each_command(ANSWERS[answer], KINDS[kind], tmp_path, capsys)


@pytest.mark.parametrize("answer", ENDLESS)
def test_what_has_no_end_ends_in_time(answer, tmp_path, capsys):
    check_each_command(ENDLESS[answer], {}, tmp_path, capsys)


def check_each_command(send, known, tmp_path, capsys):
    echo = tmp_path / "echo.txt"
    echo.write_text("abba")
    requests = []

    def send_counted():
        requests.append(1)
        return send()

    with hostile(send_counted, known) as url:
        for command, (name, *words) in COMMANDS.items():
            requests.clear()
            began = time.monotonic()
            if command == "pytest":
                with pytest.raises(CutawayError) as found:
                    ServedModel(url)
                sentence = str(found.value)
            else:
                given = (str(echo) if word == "ECHO" else word for word in words)
                code = main([name, url, *given, "-q"])
                out, sentence = capsys.readouterr()
                assert code in ((0, 1, 2) if out else (1, 2))
                assert sentence.startswith("cutaway: error: ") or out
            assert len(sentence) < 600
            assert sentence.count("\n") <= 1 or sentence.isspace()
            assert "Traceback" not in sentence
            assert time.monotonic() - began < MOST_S
            assert len(requests) <= MOST_REQUESTS


NO_URLS = (
    "http://[::1", "http://host:99999999", "http://host:x", "http://", "http://a b",
    "http://\u2603/", "http://" + "a" * 70 + ".example",
)  # fmt: skip


@pytest.mark.parametrize("url", NO_URLS)
@pytest.mark.parametrize("command", ["conform", "oracle"])
def test_a_url_that_is_none(url, command, capsys):
    name, *words = COMMANDS[command]
    assert main([name, url, *words, "-q"]) in (1, 2)
    assert re.fullmatch(r"cutaway: error: [^\n]{9,300}\n", capsys.readouterr().err)


def test_a_key_that_no_header_may_have(monkeypatch, capsys):
    monkeypatch.setenv("CUTAWAY_API_KEY", "se\nsame")
    assert main(["conform", "http://127.0.0.1:9"]) == 2
    assert "the API key (CUTAWAY_API_KEY) has characters" in capsys.readouterr().err
