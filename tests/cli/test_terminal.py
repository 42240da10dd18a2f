"""What the shell and the person do to a running command, and where lines of a text end."""

import json
import os
import pty
import signal
import subprocess
import sys
from argparse import Namespace
from shlex import quote
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cli import chat
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import WordWrap, width
from support.random_llama import write_tiny_llama

CUTAWAY = f"{quote(sys.executable)} -m cutaway"


def shell(line):
    return subprocess.run(["sh", "-c", line], capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("generate -m {} ab --max-tokens 2 >&-", 1, "cannot write the output: Bad file"),
        ("generate -m {} ab --max-tokens 2 --json >&-", 1, "cannot write the output: Bad file"),
        ("tokenize -m {} ab >&-", 1, "cannot write the output: Bad file descriptor"),
        ("generate -m {} ab --max-tokens 2 2>&-", 0, ""),
        ("generate -m {} ab --max-tokens 2 <&-", 0, "tokens in"),
        ("generate -m {} - --max-tokens 2 <&-", 0, "tokens in"),
        ("generate -m {} ab --max-tokens 2 <&- >&- 2>&-", 1, ""),
        ("chat -m {} --max-tokens 2 <&-", 0, ""),
        ("--help >&-", 1, "cannot write the output: Bad file descriptor"),
        ("nope 2>&-", 2, ""),
        ("generate -m {} ab --max-tokens 2 >/dev/full", 1, "cannot write the output: No space"),
        ("generate -m {} ab --json --max-tokens 2 >/dev/full", 1, "cannot write the output: No"),
        ("tokenize -m {} ab >/dev/full", 1, "cannot write the output: No space left"),
        ("--help >/dev/full", 1, "cannot write the output: No space left"),
        ("generate --help >/dev/full", 1, "cannot write the output: No space left"),
        ("generate -m {} ab --max-tokens 2 2>/dev/full", 0, ""),
        ("nope 2>/dev/full", 2, ""),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_streams_that_are_closed_or_full_give_no_traceback(tiny, line, code, said):
    done = shell(f"{CUTAWAY} {line.format(quote(str(tiny)))}")
    error = done.stderr.decode()
    assert done.returncode == code, error
    assert said in error
    assert "Traceback" not in error
    assert "Exception" not in error


def test_figures_begin_a_line_where_they_share_a_file_with_the_text(tiny, tmp_path):
    command = f"{CUTAWAY} generate -m {quote(str(tiny))} ab --max-tokens 2 --seed 1"
    both = tmp_path / "both"
    alone = shell(command).stdout
    shell(f"{command} > {quote(str(both))} 2>&1")
    assert both.read_bytes().startswith(alone + b"\n[")
    shell(f"{command} -q > {quote(str(both))} 2>&1")
    assert both.read_bytes() == alone


def test_more_tokens_than_the_context_has_are_noted(tiny, cutaway):
    command = ["generate", "-m", tiny, "ab", "--ignore-eos", "--max-tokens"]
    assert cutaway(*command, 10**20).err.startswith(
        "note: --max-tokens 100000000000000000000 is more than the context of 128 tokens, prompt "
    )
    assert "note" not in cutaway(*command, 4).err
    assert "note" not in cutaway(*command, 10**20, "-q").err


@pytest.mark.parametrize(
    "args",
    [["generate", "x", "--top-p", "2"], ["chat", "--temperature", "-1"], ["chat", "--seed", "-1"],
     ["generate", "x", "--backend", "npu"], ["generate", "x", "--context", "1"]],
)  # fmt: skip
def test_bad_options_are_refused_before_a_model_is_fetched(args, tmp_path, monkeypatch, refused):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    assert "must be" in refused(*args)
    assert not (tmp_path / "home").exists()


def test_stop_token_ids_add_up(tiny, cutaway):
    options = ["--json", "--max-tokens", "1", "--stop-token-ids", "5,6", "--stop-token-ids", "7"]
    document = json.loads(cutaway("generate", "-m", tiny, "ab", *options).out)
    assert document["params"]["stop_token_ids"] == [5, 6, 7]


def test_a_model_file_may_have_any_name(tiny, tmp_path, printed, refused):
    (tmp_path / "sha256-0123").symlink_to(tiny)
    assert printed("tokenize", "-m", tmp_path / "sha256-0123", "ab")
    assert "this is not a GGUF file" in refused("tokenize", "-m", __file__, "ab")


def test_ctrl_c_stops_a_long_prompt(tmp_path):
    path = write_tiny_llama(tmp_path / "t.gguf", context=2**20, layers=1)
    code = (
        "import sys\n"
        "from cutaway.compute.backends.reference import ReferenceBackend as R\n"
        "run = R.run\n"
        "R.run = lambda *a: (print('turn', file=sys.stderr, flush=True), run(*a))[1]\n"
        "from cutaway.cli.main import main\n"
        "sys.exit(main())"
    )
    args = ["generate", "-m", str(path), "-", "--max-tokens", "5", "--backend", "reference"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        process.stdin.write(b"ab " * 20_000)
        process.stdin.close()
        assert process.stderr.readline() == b"turn\n"
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
        assert process.stdout.read() == b""
    assert process.returncode == 130, error
    assert error.count(b"turn") < 20
    assert b" 0 out" in error and b"aborted" in error


def test_a_second_ctrl_c_interrupts():
    stream = SimpleNamespace(stop_asked=False)
    stream.stop = lambda: setattr(stream, "stop_asked", True)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), console.stoppable(stream):
        signal.raise_signal(signal.SIGINT)
        assert stream.stop_asked
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_text_held_back_is_printed_when_ctrl_c_ends_it(capsys):
    class Ended:
        stop_asked, held_text = False, " held"
        steps = (SimpleNamespace(text="there, "),)

        def __iter__(self):
            return iter([SimpleNamespace(text="shown")])

        def completion(self):
            return None

    console.write(Ended(), show=True)
    assert capsys.readouterr().out == "there, shown held"


def test_a_second_ctrl_c_does_not_end_the_chat(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(chat.Conversation, "_write_answer", interrupted)
    toolbox = SimpleNamespace(use=lambda *_, **__: None)
    talk = chat.Conversation(None, Namespace(system=None, quiet=True, price=None), {}, toolbox)
    talk._messages = [{"role": "user", "content": "before"}]
    assert talk.take("Tell me.") is True
    assert capsys.readouterr().err == "(stopped)\n"
    assert talk._messages == [{"role": "user", "content": "before"}]
    assert not talk.any_refused


def test_odd_bytes_are_one_refused_message(tiny, cutaway):
    code, _, error = cutaway("chat", "-m", tiny, "--max-tokens", "2", stdin=b"\xff\nab\n")
    assert code == 2
    assert "the text holds a lone surrogate, U+DCFF" in error
    assert "tokens in, 2 out" in error  # the other was answered


def test_the_chat_prompt_is_not_in_a_file(tiny):
    person, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "cutaway", "chat", "-m", tiny, "--max-tokens", "2"],
        stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(terminal)
        os.write(person, b"/help\n/exit\n")
        out, error = process.communicate(timeout=60)
    os.close(person)
    assert (process.returncode, out) == (0, b"")
    assert error.count(b"> ") == 2


# -- lines of a text that is written piece by piece end between words ------------------------------


texts = st.text(st.sampled_from("ab  \n猫"), max_size=60)


def wrapped(pieces, columns):
    written = []
    wrap = WordWrap(written.append, lambda: columns)
    for piece in pieces:
        wrap.push(piece)
    wrap.flush()
    return "".join(written)


def test_a_line_ends_before_a_word_that_does_not_fit():
    pieces = ["The sky", " is bl", "ue and", " wide.\n  x"]
    assert wrapped(pieces, 11) == "The sky is\nblue and\nwide.\n  x"
    assert wrapped(["so long a", "bcdefghijklm it"], 6) == "so\nlong\nabcde\nfghijk\nlm it"
    assert wrapped(["猫猫猫 a"], 4) == "猫猫\n猫 a"


@given(texts, st.integers(2, 12))
def test_pieces_change_nothing_and_no_character_but_blanks_is_lost(text, columns):
    whole = wrapped([text], columns)
    assert wrapped(text, columns) == whole
    assert "".join(whole.split()) == "".join(text.split())
    for line in whole.split("\n"):
        assert width(line) <= columns


@pytest.mark.model
def test_a_chat_is_no_wider_than_the_terminal(smollm2_path, terminal):
    chat = terminal("chat", "-m", smollm2_path, "--seed", "3", "--max-tokens", "40", columns=50)
    header = chat.wait_for("> ")  # a bar while the model loads is drawn again and again after \r
    assert "Ctrl-D quits" in " ".join(header.split())
    answer = chat.say("Tell me about the sea.", then="\n> ").partition("\n")[2]
    assert "max_tokens · seed 3]" in " ".join(answer.split())
    commands = chat.say("/help", then="\n> ").partition("\n")[2]
    assert "Ctrl-D quits)" in " ".join(commands.split())
    lines = [*header.splitlines(), *answer.splitlines(), *commands.splitlines()]
    assert len(lines) > 8
    assert all(width(line.replace("\x1b[K", "")) <= 50 for line in lines)
    chat.type("\x04")
    assert chat.end()[0] == 0
