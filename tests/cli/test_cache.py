"""``cutaway cache`` and ``generate --prefix``: the same bits from a saved prefix."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.prefixes import flip_last_bit, forge

TEXT = "é ab été, " * 30
RUN = ["--seed", "1", "--max-tokens", "6", "--json"]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "a folder ü").mkdir()
    return str(tmp_path / "a folder ü" / "some text.prefix")


@pytest.fixture
def saved(cutaway, tiny_path, place):
    """A saved text; what the command said of it."""
    code, out, err = cutaway("cache", "save", "-m", tiny_path, place, TEXT)
    assert (code, out) == (0, ""), err
    return err


def test_a_saved_text_is_continued(cutaway, tiny_path, saved, place):
    def generated(*args):
        code, out, err = cutaway("generate", "-m", tiny_path, *args, *RUN)
        assert code == 0, err
        return json.loads(out)

    assert f"{place}: " in saved
    with_it, without = generated("--prefix", place, " und"), generated(TEXT + " und")
    assert with_it["usage"]["cached_tokens"] > 100 > without["usage"]["cached_tokens"] == 0
    for name in ("text", "fingerprint", "prompt_token_ids"):
        assert with_it[name] == without[name]
    alone = generated("--prefix", place)
    assert alone["fingerprint"] == generated(TEXT)["fingerprint"]


def test_what_a_file_says_and_whether_it_is_whole(printed, refused, tiny_path, place):
    saved = json.loads(printed("cache", "save", "-m", tiny_path, place, TEXT, "--json", "-q"))
    said = json.loads(printed("cache", "show", place, "--json"))
    assert (said["text"], said["model"], said["special"]) == (TEXT, "tiny", False)
    assert said["tokens"] == saved["tokens"] == len(said["token_ids"]) == 32 * said["blocks"]
    assert said["bytes"] == saved["bytes"] == Path(place).stat().st_size
    out = printed("cache", "show", place)
    assert "tiny" in out
    assert f"{saved['tokens']} in {said['blocks']} KV blocks of 32" in out
    assert "characters)" in out
    assert printed("cache", "check", place) == (
        f"{place} is whole: {saved['tokens']} tokens, {saved['bytes'] / 1e3:.1f} kB\n"
    )
    with Path(place).open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"!")
    damaged = f"damaged in block {said['blocks'] - 1}: save it again"
    assert damaged in refused("cache", "check", place, "--json")
    assert "is damaged" in refused("generate", "-m", tiny_path, "--prefix", place, "x")


def test_keys_and_values_of_another_text_are_told(cutaway, tiny_path, saved, place):
    model, check = tiny_path, ["cache", "check", place]
    code, out, _ = cutaway(*check, "-m", model)
    assert (code, out.splitlines()[1]) == (0, "1 of 11 blocks computed again: the same")
    code, out, _ = cutaway(*check, "-m", model, "--all", "--json")
    assert (code, json.loads(out)["computed"]) == (0, 11)
    forge(Path(place), lambda _i, block: flip_last_bit(block))
    assert cutaway(*check).code == 0
    for more in ([], ["--all"]):
        code, _, err = cutaway(*check, "-m", model, *more)
        assert (code, err.count("\n")) == (2, 1)
        assert "has not the keys and values of its text: do not use it" in err


@pytest.mark.parametrize("more", [["--all"], ["--threads", "1"]])
def test_blocks_are_computed_by_a_model_that_is_named(refused, tmp_path, more):
    assert "-m names the model" in refused("cache", "check", str(tmp_path), *more)


def test_standard_input_is_a_text_too(printed, tiny_path, place):
    stdin = f"{TEXT}\n".encode()
    assert printed("cache", "save", "-m", tiny_path, place, "-", "-q", stdin=stdin) == ""
    assert json.loads(printed("cache", "show", place, "--json"))["text"] == TEXT


def test_a_file_is_replaced_only_if_asked(cutaway, refused, tiny_path, saved, place):
    command = ["cache", "save", "-m", tiny_path, place, TEXT]
    assert "exists; name a new file, or add --force" in refused(*command)
    assert cutaway(*command, "--force").code == 0


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
def test_what_cannot_be_is_one_sentence(refused, tiny_path, saved, place, args, sentence):
    assert sentence in refused(*(arg.replace("PLACE", place) for arg in args), "-m", tiny_path)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["sho"], "did you mean 'show'?"),
        (["restore", "x"], "cutaway generate --prefix"),
        (["show", "no such"], "is no file"),
        (["check", "."], "is no file"),
        (["check", "no such"], "is no file"),
        (["clear", "no such"], "is no folder of a prompt cache"),
        (["save", "only"], "TEXT"),
    ],
)
def test_unknown_verbs_and_files_that_are_none(refused, args, sentence):
    assert sentence in refused("cache", *args)


def test_the_verbs_are_listed(cutaway, printed):
    assert cutaway("cache").code == 2
    out = printed("cache", "--help")
    assert "examples:" in out
    for verb in ("save", "show", "check"):
        assert verb in out
        assert "examples:" in printed("cache", verb, "--help")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_save_that_is_interrupted_leaves_nothing(tiny_path, tmp_path, number):
    place = tmp_path / "x"
    slow = (
        "import os, sys, time; from cutaway.cli.main import main\n"
        "os.fsync = lambda _: (print('begun', flush=True), time.sleep(60))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", slow, "cache", "save", "-m", str(tiny_path), str(place), TEXT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(300) == {signal.SIGINT: 130}.get(number, 128 + number)
    assert [*tmp_path.iterdir()] == []


def wait_until_written():
    """Wait as the end of a process does."""
    for thread in threading.enumerate():
        if thread.name == "cutaway cache":
            thread.join()


def test_a_folder_of_prompts_is_shown_and_cleared(cutaway, printed, tiny_path, tmp_path):
    folder = tmp_path / "prompts"
    run = ["generate", "-m", tiny_path, "--cache-dir", folder, "--max-tokens", "1", TEXT]
    for cached in (False, True):
        assert ("cached)" in cutaway(*run).err) == cached
        wait_until_written()
    [model] = json.loads(printed("cache", "show", folder, "--json"))
    assert model["blocks"] == model["read_again"] > 0
    assert f"{model['blocks']} blocks ({model['blocks']} read again)" in printed("cache", folder)
    assert f"{model['blocks']} blocks removed" in cutaway("cache", "clear", folder).err
    assert "no prompts" in printed("cache", folder)
