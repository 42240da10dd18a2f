"""``cutaway chat --resume``: messages are never lost, their KV cache may be."""

import json
import os
import random
import signal
import subprocess
import sys
from argparse import Namespace

import pytest

from cutaway import LLM
from cutaway.cli import chat, tools
from cutaway.cli.saved_chat import SavedChat, Talk
from cutaway.errors import InputError
from cutaway.files.prefix import PrefixReader

RUN = ["--seed", "1", "--max-tokens", "8"]
LINES = ["a été bé, bé été a", "b é t a b é t a", "a b é, a b é"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a folder ü").mkdir()
    return tmp_path / "a folder ü" / "our talk.json"


@pytest.fixture
def talk(tiny_path, file, cutaway):
    """Chat; what the answers were, and what was said of them."""

    def talk(*lines, args=(), code=0, resume=True):
        kept = ["--resume", file] if resume else []
        stdin = "".join(f"{line}\n" for line in lines).encode()
        said = cutaway("chat", "-m", tiny_path, *kept, *RUN, *args, stdin=stdin)
        assert said.code == code, said.err
        return said.out, said.err

    return talk


def cached(err):
    """Of each answer, how many tokens of its prompt were not computed."""
    return [int(line.partition("(")[2].split()[0]) if "cached" in line else 0
            for line in err.splitlines() if " tokens in" in line]  # fmt: skip


def test_a_conversation_continues_as_if_it_had_never_ended(talk, file):
    whole, _ = talk(*LINES, resume=False)
    parts = [talk(line) for line in LINES]
    assert "".join(out for out, _ in parts) == whole
    assert [len(cached(err)) for _, err in parts] == [1, 1, 1]
    assert cached(parts[2][1])[0] >= 32
    assert "4 messages so far)" in parts[2][1]
    said = json.loads(file.read_text())
    assert [m["content"] for m in said["messages"][::2]] == LINES
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "our talk.json", "our talk.json.prefix"
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["gone", "flipped", "cut", "another", "nothing"])
def test_what_is_lost_is_computed_again(talk, file, how, tmp_path):
    whole, _ = talk(*LINES, resume=False)
    before = talk(*LINES[:2])[0]
    prefix = file.with_name("our talk.json.prefix")
    raw = bytearray(prefix.read_bytes())
    if how == "gone":
        prefix.unlink()
    else:
        raw[random.Random(3).randrange(len(raw))] ^= 1
        changed = {"cut": raw[:-1], "another": b"\0" * len(raw), "nothing": b""}
        prefix.write_bytes(changed.get(how, bytes(raw)))
    after, err = talk(LINES[2])
    assert before + after == whole
    assert "4 messages so far, which are computed again" in err
    with PrefixReader(prefix) as found:  # and kept again
        found.check()
        assert len(found.head.token_ids) >= 64


def test_another_model_continues_with_the_messages(talk, file, tiny_path):
    talk(LINES[0])
    err = talk(LINES[1], args=["--backend", "reference"])[1]
    assert "2 messages so far, which are computed again" in err
    assert len(json.loads(file.read_text())["messages"]) == 4


def test_without_a_cache_only_words_are_kept(talk, file):
    talk(LINES[0], args=["--no-prefix-cache"])
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert "messages so far)" in talk(LINES[1], args=["--no-kv-cache"])[1]


def test_a_system_message_stays_and_starting_over_is_kept(talk, file):
    talk("/system Be brief.", LINES[0])
    assert json.loads(file.read_text())["system"] == "Be brief."
    talk(args=["--system", "Be brief."])
    err = talk(args=["--system", "Be long."], code=2)[1]
    assert "has its own system message" in err
    talk("/reset")
    said = json.loads(file.read_text())
    assert (said["system"], said["messages"]) == ("Be brief.", [])
    talk(LINES[0], args=["--system", "Be long."])
    assert json.loads(file.read_text())["system"] == "Be long."


def test_a_conversation_is_open_once(talk, file, tiny_path):
    with SavedChat(str(file), None):
        assert "is open in another chat" in talk(LINES[0], code=2)[1]
        file.with_name("link").symlink_to(file)
        with pytest.raises(InputError, match="is open in another chat"):
            SavedChat(str(file.with_name("link")), None)
    talk(LINES[0])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"cutaway_chat": 2}', '{"cutaway_chat": 1}', "\xff",
     '{"cutaway_chat": 1, "system": 7, "messages": []}',
     '{"cutaway_chat": 1, "system": null, "messages": [7]}',
     '{"cutaway_chat": 1, "system": null, "messages": [{"role": "user"}]}'],
)  # fmt: skip
def test_a_file_of_something_else_is_left_alone(talk, file, text):
    file.write_bytes(text.encode("latin-1"))
    out, err = talk(LINES[0], code=2)
    assert out == ""
    assert f"--resume: {file} is no conversation of cutaway: " in err
    assert err.count("\n") == 1
    assert file.read_bytes() == text.encode("latin-1")


def test_places_where_nothing_can_be_kept(talk, file, monkeypatch):
    file.mkdir()
    assert "is not a regular file" in talk(LINES[0], code=2)[1]
    assert "there is no folder" in talk(code=2, args=["--resume", str(file / "no" / "x")])[1]
    monkeypatch.setenv("CUTAWAY_HOME", "/proc/nowhere")
    assert "set CUTAWAY_HOME" in talk(code=2, args=["--resume", str(file / "x")])[1]


def test_a_full_disk_is_reported_and_the_conversation_continues(talk, file, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    talk(LINES[0])
    kept = file.read_bytes()
    monkeypatch.setattr("os.fsync", full)
    out, err = talk(LINES[1], LINES[2], code=1)
    assert len(cached(err)) == 2
    assert err.count("No space left on device") == 4
    assert "will be computed again" in err
    assert file.read_bytes() == kept
    monkeypatch.undo()
    assert out


def test_ctrl_c_after_the_answer_loses_no_words_and_does_not_end_the_chat(talk, file, monkeypatch):
    def interrupted(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    talk(LINES[0])
    with monkeypatch.context() as patched:
        patched.setattr(LLM, "save_prefix", interrupted)
        err = talk(LINES[1], LINES[2])[1]
    assert err.count("(what was said is kept; it will be computed again)") == 2
    assert len(json.loads(file.read_text())["messages"]) == 6
    synced = os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: (synced(fd), interrupted()))
    talk(LINES[0])
    assert len(json.loads(file.read_text())["messages"]) == 8


def test_calls_of_tools_are_kept_too(tiny_path, file):
    llm = LLM(tiny_path, progress=False)
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
        {"role": "assistant", "content": "é"},
    ]  # fmt: skip
    with SavedChat(str(file), None) as kept:
        kept.write(llm, Talk("s", messages), None)
    with SavedChat(str(file), None) as kept:
        assert kept.talk == Talk("s", messages)


def test_a_long_conversation_that_does_not_fit_can_be_started_over(talk, file):
    messages = [{"role": "user", "content": LINES[0] * 60}, {"role": "assistant", "content": "a"}]
    said = {"cutaway_chat": 1, "system": None, "messages": messages}
    file.write_text(json.dumps(said))
    out, err = talk(LINES[0], "/reset", LINES[0], code=2)
    assert "/reset starts over" in err
    assert out
    assert len(json.loads(file.read_text())["messages"]) == 2


def test_a_kill_loses_no_words(tiny_path, file):
    """Whenever it comes: the file has all answers that were shown, or all but the last."""
    command = [sys.executable, "-m", "cutaway", "chat", "-m", str(tiny_path), "-q", *RUN]
    before = 0
    for kill_at in (1, 2):
        with subprocess.Popen(
            [*command, "--resume", str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            for line in LINES[:kill_at]:
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        messages = json.loads(file.read_text())["messages"] if file.exists() else []
        assert before + 2 * (kill_at - 1) <= len(messages) <= before + 2 * kill_at
        before = len(messages)


def test_what_is_kept_is_what_the_next_prompt_begins_with(tiny_path, file):
    llm = LLM(tiny_path, progress=False, threads=1)
    args = Namespace(system=None, quiet=True, price=None, tools=None, tool_choice=None, yes=False)
    with SavedChat(str(file), None) as kept:
        conversation = chat.Conversation(llm, args, {"max_tokens": 8, "seed": 1},
                                         tools.Toolbox(args), kept)  # fmt: skip
        for line in LINES:
            conversation.take(line)
        said = [*conversation._messages, {"role": "user", "content": "x"}]
    with PrefixReader(kept.prefix) as found:
        ids = found.head.token_ids
    assert len(ids) >= 64
    assert tuple(llm.chat_prompt(said)[: len(ids)]) == ids


def test_nobody_else_may_read_a_conversation(talk, file):
    before = os.umask(0o022)
    try:
        talk(LINES[0])
        assert os.umask(0o022) == 0o022, "what others write is as they want it"
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
    assert modes == {file.name: 0o600, f"{file.name}.prefix": 0o600}
