"""``cutaway cache`` and ``generate --prefix``: saved once, and it goes on to the same bits."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutaway.cli.main import main

TEXT = "é ab été, " * 30
RUN = ["--seed", "1", "--max-tokens", "6", "--json"]


@pytest.fixture
def tiny(tiny_path):
    return str(tiny_path)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "a folder ü").mkdir()
    return str(tmp_path / "a folder ü" / "some text.prefix")


@pytest.fixture
def run(capfd):
    """The exit code and what was said."""

    def run(*args):
        code = main([str(arg) for arg in args])
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run


def save(run, tiny, place, *args):
    code, out, err = run("cache", "save", "-m", tiny, place, TEXT, *args)
    assert (code, out) == (0, ""), err
    return err


def generated(run, *args):
    code, out, err = run("generate", *args, *RUN)
    assert code == 0, err
    return json.loads(out)


def test_a_saved_text_is_gone_on_from(run, tiny, place):
    assert f"{place}: " in save(run, tiny, place)
    with_it = generated(run, "-m", tiny, "--prefix", place, " und")
    without = generated(run, "-m", tiny, TEXT + " und")
    assert with_it["usage"]["cached_tokens"] > 100 > without["usage"]["cached_tokens"] == 0
    for name in ("text", "fingerprint", "prompt_token_ids"):
        assert with_it[name] == without[name]
    alone = generated(run, "-m", tiny, "--prefix", place)
    assert alone["fingerprint"] == generated(run, "-m", tiny, TEXT)["fingerprint"]


def test_what_a_file_says_and_whether_it_is_whole(run, tiny, place):
    code, out, _ = run("cache", "save", "-m", tiny, place, TEXT, "--json")
    saved = json.loads(out)
    assert code == 0
    code, out, _ = run("cache", "show", place, "--json")
    said = json.loads(out)
    assert (said["text"], said["model"], said["special"]) == (TEXT, "tiny", False)
    assert said["tokens"] == saved["tokens"] == len(said["token_ids"]) == 32 * said["blocks"]
    assert said["bytes"] == saved["bytes"] == Path(place).stat().st_size
    code, out, _ = run("cache", "show", place)
    assert code == 0
    assert "tiny" in out
    assert f"{saved['tokens']} in {said['blocks']} KV blocks of 32" in out
    assert "characters)" in out
    assert run("cache", "check", place)[:2] == (
        0, f"{place} is whole: {saved['tokens']} tokens, {saved['bytes'] / 1e3:.1f} kB\n"
    )  # fmt: skip
    with Path(place).open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"!")
    code, out, err = run("cache", "check", place, "--json")
    assert (code, out) == (2, "")
    assert f"damaged in block {said['blocks'] - 1}: save it again" in err
    code, out, err = run("generate", "-m", tiny, "--prefix", place, "x")
    assert (code, out) == (2, "")
    assert "is damaged" in err


def test_standard_input_is_a_text_too(run, tiny, place, monkeypatch, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT + "\n")
    with text.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run("cache", "save", "-m", tiny, place, "-", "-q") == (0, "", "")
        assert json.loads(run("cache", "show", place, "--json")[1])["text"] == TEXT


def test_a_file_is_replaced_only_if_asked(run, tiny, place):
    save(run, tiny, place)
    code, _, err = run("cache", "save", "-m", tiny, place, TEXT)
    assert code == 2
    assert "exists; name a new file, or add --force" in err
    save(run, tiny, place, "--force")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["generate", "--prefix", "no such"], "no such is no file"),
        (["generate", "--prefix", "no such", "--no-kv-cache"], "--no-kv-cache computes everything"),
        (["generate", "--prefix", "PLACE", "--no-prefix-cache"], "prefix_cache is off"),
        (["generate", "--prefix", "PLACE", "--special"], "was saved without it; leave it out"),
        (["generate", "--prefix", "PLACE", "--input", "a", "--output", "b"], "with one prompt"),
        (["generate", "--prefix", "PLACE", "--backend", "reference"], "another arithmetic"),
        (["cache", "save", "PLACE.new", "short"], "give a longer one"),
        (["cache", "save", "no such/folder", TEXT], "there is no folder no such; make it first"),
        (["cache", "save", ".", TEXT], ". is not a regular file"),
        (["cache", "save", "n" * 300, TEXT], "cannot be a file: File name too long"),
        (["generate", "--prefix", "n" * 300], "cannot be read: File name too long"),
    ],
)
def test_what_cannot_be_is_one_sentence(run, tiny, place, args, sentence):
    save(run, tiny, place)
    args = [arg.replace("PLACE", place) for arg in args]
    code, out, err = run(*args, "-m", tiny)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["sho"], "did you mean 'show'?"),
        (["restore", "x"], "cutaway generate --prefix"),
        (["show", "no such"], "is no file"),
        (["show", "."], "is no file"),
        (["check", "no such"], "is no file"),
        (["save", "only"], "TEXT"),
    ],
)
def test_verbs_that_are_not_and_files_that_are_none(run, args, sentence):
    code, out, err = run("cache", *args)
    assert (code, out) == (2, "")
    assert sentence in err


def test_the_verbs_are_listed(run):
    assert run("cache")[0] == 2
    code, out, _ = run("cache", "--help")
    assert code == 0
    assert "examples:" in out
    for verb in ("save", "show", "check"):
        assert verb in out
        assert "examples:" in run("cache", verb, "--help")[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_save_that_is_interrupted_leaves_nothing(tiny, tmp_path, number):
    place = tmp_path / "x"
    slow = (
        "import os, signal, sys, time; from cutaway.cli.main import main\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup, which these tests may run under
        "os.fsync = lambda _: (print('begun', flush=True), time.sleep(60))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", slow, "cache", "save", "-m", tiny, str(place), TEXT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(30) == {signal.SIGINT: 130}.get(number, 128 + number)
    assert [*tmp_path.iterdir()] == []
