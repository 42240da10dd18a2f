"""``cutaway chat --tools``: what is offered, shown, asked for and run, in pipes and a terminal."""

import re
import signal
from argparse import Namespace

import pytest

from cutaway import LLM
from cutaway.cli import chat, tools
from cutaway.requests.tools import ToolUse
from cutaway.text.thinking import Thought
from cutaway.text.tools import Arguments, CallEnd, CallStart, Content, Tool

WEATHER = '''
from __future__ import annotations
import time
from functools import lru_cache
from json import dumps
from typing import Literal

@lru_cache
def get_weather(city: Literal["Paris"]) -> dict:
    """The weather of a city."""
    print("looked up")
    return {"city": city, "degrees": 12}

def _private(city): ...
'''
FAILS = '''
def get_weather() -> str:
    """The weather here."""
    raise OSError("no\\x1b[2J weather")
'''
SLEEPS = '''
import time
def get_weather() -> str:
    """The weather here."""
    print("asleep", flush=True)
    time.sleep(60)
'''
ASK = b"What is the weather in Paris?\n"
FIXED = ["--tool-choice", "required", "--seed", "3", "--max-tokens", "60"]


@pytest.fixture
def file(tmp_path):
    def write(text):
        (tmp_path / "weather.py").write_text(text)
        return str(tmp_path / "weather.py")

    return write


@pytest.fixture
def talk(terminal):
    """Begin a chat; its first prompt is there."""

    def begin(*args):
        chat = terminal("chat", *args, TERM="dumb")
        chat.wait_for("> ")
        return chat

    return begin


@pytest.mark.model
class TestChat:
    def test_a_call_is_shown_run_and_answered(self, smollm2_path, file, cutaway):
        code, out, error = cutaway("chat", "--tools", file(WEATHER), "--yes", *FIXED, stdin=ASK)
        assert code == 0, error
        assert '→ get_weather {"city": "Paris"}\n' in error
        assert 'looked up\n← {"city": "Paris", "degrees": 12}\n' in error
        assert error.count("tokens in") == 2  # the call, and the answer
        assert "<tool_call>" not in out and "looked up" not in out
        assert out.strip()

    def test_what_a_function_raises_is_the_result(self, smollm2_path, file, cutaway):
        code, _, error = cutaway("chat", "--tools", file(FAILS), "--yes", *FIXED, stdin=ASK)
        assert code == 0
        assert "← error: OSError: no\\x1b[2J weather\n" in error

    def test_a_call_that_was_cut_is_not_run(self, smollm2_path, file, cutaway):
        args = ["--tools", file(WEATHER), "--yes", *FIXED[:4], "--max-tokens", "20"]
        code, _, error = cutaway("chat", *args, stdin=ASK * 2)
        assert code == 0, error
        assert error.count("→ get_weather") == 2 == error.count("… (cut, and not run)")
        assert "looked up" not in error

    def test_each_answer_has_a_trace(self, smollm2_path, file, tmp_path, cutaway):
        args = ["--tools", file(WEATHER), "--yes", *FIXED, "--trace", tmp_path / "run.jsonl"]
        assert cutaway("chat", *args, stdin=ASK).code == 0
        names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
        assert names == ["run.2.jsonl", "run.jsonl"]

    def test_the_last_of_eight_answers_is_without_calls(self, smollm2_path, file, monkeypatch):
        monkeypatch.setattr(ToolUse, "free", lambda self: None)  # a call is required every time
        args = Namespace(tools=file(WEATHER), yes=True, tool_choice="required")
        shown = Namespace(system=None, quiet=True, price=None)
        with LLM(smollm2_path) as llm:
            talk = chat.Conversation(llm, shown, {"max_tokens": 60}, tools.Toolbox(args))
            talk.take(ASK.decode().strip())
        roles = [message["role"] for message in talk._messages]
        assert roles == ["user", *["assistant", "tool"] * 7, "assistant"]
        assert "tool_calls" not in talk._messages[-1]

    def test_a_person_is_asked(self, smollm2_path, file, talk):
        talk, question = talk("--tools", file(WEATHER), *FIXED), ASK.decode().strip()
        assert '→ get_weather {"city": "Paris"}' in talk.say(question, "run it? [y/N] ")
        assert "← {" in talk.say("yes", "\n> ")
        talk.say("/reset", "\n> ")
        talk.say(question, "run it? [y/N] ")
        declined = talk.say("", "\n> ")
        assert "tokens in" in declined and "←" not in declined and "looked up" not in declined
        talk.type("/exit\n")
        assert talk.end()[0] == 0

    def test_ctrl_c_ends_a_function_and_not_the_chat(self, smollm2_path, file, talk):
        talk = talk("--tools", file(SLEEPS), "--yes", *FIXED)
        talk.say(ASK.decode().strip(), "asleep")
        talk.process.send_signal(signal.SIGINT)
        talk.wait_for("(stopped)")
        talk.wait_for("\n> ")
        talk.type("/exit\n")
        assert talk.end()[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--tools: cannot read .*weather.py: No such file or directory"),
        ("def f(:\n", "line 1: SyntaxError: .*; mend the file"),
        ("\n\nimport no_such_module\n", "line 3: ModuleNotFoundError: No module named"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("def f(city): pass\n", "weather.py: parameter city of f has no type; annotate it"),
        ("def f(*city: str): pass\n", "parameter city of f cannot be given by name"),
        ("async def f() -> str: pass\n", "weather.py: f is async: give a function that is not"),
        ("from json import dumps\ndef _f(): pass\nx = 1\nclass C: pass\n", "no public function"),
        ("def f(a: 'no.such'): pass\n", "the signature of f is unknown: name 'no' is not defined"),
        ("", "it defines no public function; define one with types"),
    ],
    ids=str,
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path, file, refused, monkeypatch, text, said):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    path = str(tmp_path / "weather.py") if text is None else file(text)
    error = refused("chat", "--tools", path, "--yes", "-m", "no/such.gguf")
    assert "no/such.gguf" not in error  # the file is read before a model is
    assert re.search(said, error), error


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tools", "weather.py"], "standard input is no terminal: add --yes to run every call"),
        (["--yes"], "add --tools FILE.py"),
        (["--tool-choice", "required"], "add --tools FILE.py"),
        (["--tools", "x", "--tool-choice", "must"], "--tool-choice: invalid choice"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(args, said, refused):
    assert said in refused("chat", *args, "-m", "no/such.gguf")


def test_only_functions_that_the_file_defines_are_offered(file):
    found = tools.functions_of(file(WEATHER + "again = get_weather\n"))
    assert [function.__name__ for function in found] == ["get_weather"]


def test_text_and_a_call_have_lines_of_their_own(capsys):
    display = tools.Display()
    weather = Tool("get_weather")
    display.show([Content("Let me see."), CallStart(0, "a", weather)])
    assert capsys.readouterr() == ("Let me see.\n", "→ get_weather ")
    display.show([Arguments(0, '{"city":'), Arguments(0, '\n "\x9b2J"}'), CallEnd(0)])
    display.end()
    assert capsys.readouterr() == ("", '{"city": "\\x9b2J"}\n')


def test_a_thought_is_a_line_beside_the_answer(capsys):
    display = tools.Display()
    for delta in (Thought("Hm"), Thought("m."), Content("Yes.")):
        display.show([delta])
    display.end()
    assert capsys.readouterr() == ("Yes.\n", "(thinking) Hmm.\n")
    display = tools.Display()
    display.show([Thought("Hm")])
    display.end()
    assert capsys.readouterr() == ("\n", "(thinking) Hm\n")


def test_an_answer_is_a_line_also_if_it_is_empty(capsys):
    for said in ([], [Content("Yes.")]):
        display = tools.Display()
        display.show(said)
        display.end()
    assert capsys.readouterr().out == "\nYes.\n"
