"""The cores of a page: the package's own, or compiled once into the cache. The compiler is a script
here; tests/trace/web compile with the real one."""

import pytest

from cutaway.errors import CutawayError
from cutaway.features.page import cores
from cutaway.features.page.cores import page_cores

WORKS = """
set -eu
printf '%s\\n' 2 first second
mkdir "$1"
echo compiled > "$1/core.wasm"
echo run >> "$RUNS"
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A package without cores whose script works; a file with a line for each run of it."""
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(cores, "PACKAGED", tmp_path / "none")
    monkeypatch.setattr(cores, "SOURCES", tmp_path / "native")
    monkeypatch.setattr(cores, "_COMPILER", "json")  # which every Python has
    script(tmp_path, WORKS)
    return tmp_path / "runs"


def script(place, text):
    (place / "native/web").mkdir(parents=True, exist_ok=True)
    (place / "native/web/build.sh").write_text(text)


def test_cores_are_compiled_once(runs):
    folder = page_cores()
    assert (folder / "core.wasm").read_text() == "compiled\n"
    assert page_cores() == folder
    assert runs.read_text() == "run\n"
    assert [*folder.parent.iterdir()] == [folder]


def test_other_sources_are_other_cores(runs, tmp_path):
    first = page_cores()
    (tmp_path / "native/core.cpp").write_text("int other;")
    assert page_cores() != first
    assert not first.exists(), "they would stay for ever"
    assert runs.read_text() == "run\n" * 2


def test_cores_of_the_package_are_taken_as_they_are(runs, tmp_path, monkeypatch):
    (tmp_path / "cores").mkdir()
    monkeypatch.setattr(cores, "PACKAGED", tmp_path / "cores")
    assert page_cores() == tmp_path / "cores"
    assert not runs.exists()


def test_a_failure_is_told_and_leaves_nothing(runs, tmp_path):
    script(tmp_path, "echo 2; mkdir $1; echo 'no such header' >&2; exit 1")
    with pytest.raises(CutawayError, match="could not be compiled: no such header"):
        page_cores()
    assert not [*(tmp_path / "home/page-cores").iterdir()]


def test_without_a_compiler_the_command_says_how_to_have_it(
    runs, refused, tiny_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(cores, "_COMPILER", "no_such_compiler")
    said = refused("export", "--page", tiny_path, tmp_path / "page")
    assert "-m pip install no_such_compiler, then repeat this command" in said
    assert not (tmp_path / "page").exists()
    assert not runs.exists()
