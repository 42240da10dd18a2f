"""What a model, a trace or a saved chat says steers no terminal; files and pipes have it raw.

Each command that prints such text runs on a terminal of its own, and what that is told is counted.
"""

import json
import re
import subprocess

import pytest

from cutaway import LLM
from support.cut_traces import cut_at
from support.random_llama import write_tiny_llama
from support.terminals import CUTAWAY, Terminal

HOSTILE = "\x1b]52;c;aGFja2Vk\x07\x1b[2J\x9b2J\x1bc\x08\rhi \u202e\u2066there\tyou"
OBEYED = re.compile("\x1b\\]|\x1b\\[2J|\x1bc|[\x07\x08\x9b\u202a-\u202e\u2066-\u2069]|\r(?=hi)")
"""What would set the clipboard, clear the screen, ring, go back or turn a line around."""
SEEN = "\\x1b]52;c;aGFja2Vk\\x07\\x1b[2J\\x9b2J\\x1bc\\x08\\rhi \\u202e\\u2066there"

TEMPLATE = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
BYTES = (3 + 0x1B, 3 + 0x07)  # of tiny.gguf, whose tokens 3 to 258 are bytes
WRITER = ("-m", "toy-writer", "--max-tokens", "80", "-q")
SAYS = (*WRITER, "--choice", HOSTILE)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("INPUTRC", "/dev/null")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Traces, whole and cut, and a talk, of which each has the hostile text."""
    folder = tmp_path_factory.mktemp("saved")
    with LLM("toy-writer", progress=False) as llm:
        llm.generate("x", choice=[HOSTILE], max_tokens=80, trace=folder / "run.jsonl")
        cut_at(llm, folder / "cut.jsonl", 0.9, choice=[HOSTILE], max_tokens=80, ignore_eos=False)
    talk = {"cutaway_chat": 1, "model": "m", "system": HOSTILE, "messages": []}
    write_tiny_llama(folder / "tiny.gguf", metadata={"tokenizer.chat_template": TEMPLATE})
    (folder / "talk.json").write_text(json.dumps(talk))
    return folder


def on_a_terminal(*words, typed="", **env):
    terminal = Terminal(*words, columns=200, **env)
    if typed:
        terminal.wait_for("> ")
        terminal.type(typed)
    return terminal.end()


COMMANDS = {
    "generate": lambda _: ("generate", "x", *SAYS),
    "generate --n": lambda _: ("generate", "x", *SAYS, "--n", "2"),
    "generate --json": lambda _: ("generate", "x", *SAYS, "--json"),
    "resume": lambda saved: ("resume", saved / "cut.jsonl", "-q", "-m", "toy-writer"),
    "trace show": lambda saved: ("trace", "play", saved / "run.jsonl"),
    "trace export --format csv": lambda saved: (
        "trace", "export", saved / "run.jsonl", "--format", "csv",
    ),
    "trace export --format openai": lambda saved: (
        "trace", "export", saved / "run.jsonl", "--format", "openai",
    ),
    "trace replay": lambda saved: ("trace", "replay", saved / "run.jsonl", "-m", "toy-writer"),
    "denoise": lambda saved: (
        "denoise", "ab", "-m", saved / "tiny.gguf", "--order", "left", "--block", "1", "-q",
        "--max-tokens", "4", "--allowed-token-ids", ",".join(map(str, BYTES)),
    ),
    "denoise, drawn": lambda saved: (*COMMANDS["denoise"](saved), "--n", "1"),
    "tokenize": lambda _: ("tokenize", HOSTILE, "-m", "toy-writer"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_no_text_steers_the_terminal(name, saved):
    code, seen = on_a_terminal(*COMMANDS[name](saved), TERM="xterm" if "drawn" in name else "dumb")
    assert code == 0, seen
    assert OBEYED.findall(seen) == []
    if name in ("generate", "generate --n", "resume"):
        assert seen.count(SEEN) == (2 if "--n" in name else 1)


def test_neither_answers_nor_a_saved_system_message_of_a_chat_do(saved):
    code, seen = on_a_terminal(
        "chat", "-m", saved / "tiny.gguf", "--resume", saved / "talk.json", "--choice", HOSTILE,
        "--max-tokens", "80", "-q", typed="/system\nhello\n/exit\n",
    )  # fmt: skip
    assert code == 0, seen
    assert OBEYED.findall(seen) == []
    assert seen.count("\\x1b]52") == 2


def test_files_and_pipes_have_it_raw():
    out = subprocess.run([*CUTAWAY, "generate", "x", *SAYS], stdout=subprocess.PIPE, check=True)
    assert out.stdout.decode() == HOSTILE
