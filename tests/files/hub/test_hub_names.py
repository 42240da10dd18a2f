"""Names: every kind of name finds its file or gets its own sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from cutaway.errors import FormatError, InputError
from cutaway.files import hub
from support import tiny_hub
from support.tiny_hub import ONE


def test_a_path_is_taken_as_it_is(world, tmp_path, monkeypatch):
    file = tmp_path / "with space – ü.GGUF"
    file.write_bytes(b"anything")
    assert hub.resolve(str(file)) == file
    assert hub.resolve(file) == file
    monkeypatch.chdir(tmp_path)
    assert hub.resolve(file.name) == Path(file.name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve(f"~/{file.name}") == file


def test_a_file_without_the_suffix_is_taken(world, tmp_path):
    blob = tmp_path / "sha256-2049f5674b1e"  # as Ollama keeps them
    blob.write_bytes(b"anything")
    assert hub.resolve(blob) == blob


def test_none_is_the_default_model(world, monkeypatch):
    monkeypatch.setattr("cutaway.files.hub.DEFAULT_MODEL", "tiny")
    assert hub.resolve() == world.model


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tinny", r"^unknown model 'tinny': did you mean 'tiny'\? name one of smollm2, gemma3-27"),
        ("zzz", r"^unknown model 'zzz': name one of .*, the path of a .gguf file or of a fol"),
        ("", r"^unknown model '': name one of"),
        ("missing.gguf", "^model file 'missing.gguf' does not exist; check the path"),
        ("no/where", "^model file 'no/where' does not exist; check the path"),
        ("/", "^model '/' is a folder without a config.json; name .* or the .gguf file in it"),
        ("/dev/null", "^model '/dev/null' is not a regular file"),
        ("a prompt " * 1000, "^(unknown )?model 'a prompt "),
        ("a\0b", "^unknown model"),
        ("~nobody-here/x.gguf", "cannot be looked up: "),
    ],
)
def test_each_wrong_name_gets_its_own_sentence(world, name, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        hub.resolve(name)
    assert len(str(caught.value)) < 500
    assert world.pip_runs() == []


def test_home_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUTAWAY_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert hub.cache_dir() == tmp_path / ".cache" / "cutaway"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert hub.cache_dir() == tmp_path / ".cache" / "cutaway"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert hub.cache_dir() == Path("/xdg/cutaway")
    monkeypatch.setenv("CUTAWAY_HOME", "~/mine")
    assert hub.cache_dir() == tmp_path / "mine"


def test_home_is_a_file(world, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("CUTAWAY_HOME", str(file))
    with pytest.raises(InputError, match=r"CUTAWAY_HOME is the file .*; set it to a folder"):
        hub.resolve("tiny")
    monkeypatch.setenv("CUTAWAY_HOME", "~nobody-here/x")
    with pytest.raises(InputError, match="set CUTAWAY_HOME to a folder"):
        hub.resolve("tiny")


def test_the_shelf_knows_each_state(world, tmp_path, monkeypatch):
    def states() -> dict[str, str]:
        return {model.name: model.state for model in hub.available()}

    before = {"tiny": "not fetched", "parts": "not fetched"}
    assert before.items() <= states().items()
    monkeypatch.syspath_prepend(tmp_path / "site")
    tiny_hub.install_packages(tmp_path / "site")
    assert {"tiny": "in package", "parts": "in package"}.items() <= states().items()
    hub.resolve("parts")
    assert states()["parts"] == "cached"


@pytest.mark.parametrize("name", ["own.gguf", "own.GGUF"])
def test_a_file_put_into_the_cache_is_listed_and_named(world, name):
    hub.resolve("tiny")
    own = world.model.with_name(name)
    own.write_bytes(b"12345")
    listed = hub.available()[-1]
    assert listed == hub.ModelStatus(name, "own", None, 5, "cached", own)
    assert [model.name for model in hub.available()].count("tiny.gguf") == 0
    assert hub.resolve(name) == own


def test_verify_hashes_again(world):
    with pytest.raises(InputError, match=r"'tiny' is not on this machine; run: cutaway pull tiny"):
        hub.verify("tiny")
    with pytest.raises(InputError, match=r"no checksum is known for model 'x.gguf'"):
        hub.verify("x.gguf")
    hub.resolve("tiny")
    assert hub.verify("Tiny") == world.model
    world.model.write_bytes(bytes([ONE[0] ^ 1]) + ONE[1:])
    with pytest.raises(FormatError, match=r"is damaged.* delete it and run: cutaway pull tiny"):
        hub.verify("tiny")


def test_the_hub_imports_little():
    code = "import sys, cutaway.files.hub; print(*sorted(sys.modules))"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    heavy = {"numpy", "subprocess", "zipfile", "filelock", "huggingface_hub", "pip"}
    assert "cutaway.files.hub" in loaded
    assert heavy.isdisjoint(loaded)
