"""docs/structure.md, held against what it draws: the folders, the import contract, the greps."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/cutaway"
PAGE = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
PICTURE = re.search(r"```\n(.+?)```", PAGE, re.S).group(1)
DRAWN = [line.split()[0] for line in PICTURE.splitlines()]
GREPS = re.findall(r"^\| ([\w -]+) \| `([^`]+)` \| `([\w/.]+)` \|$", PAGE, re.M)
LOOSE = {"__init__.py", "__main__.py", "_version.py", "errors.py", "registry.py", "py.typed"}


def test_the_picture_is_the_import_contract_and_the_folders():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    assert layers == [
        *(f"cutaway.{name}" for name in DRAWN),
        "cutaway.registry",
        "cutaway.errors | cutaway._version",
    ]
    found = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert found == {*DRAWN, *LOOSE}


def test_inner_folders_that_the_picture_names_are_there():
    for line in PICTURE.splitlines():
        box, words = line.split(maxsplit=1)
        for inner in re.findall(r"\b(\w+)/", words.replace("native/", "")):
            assert (PACKAGE / box / inner).is_dir(), f"{box}/{inner}"


def test_every_folder_is_on_the_page_and_one_within_a_room_is_in_the_picture():
    lines = dict(zip(DRAWN, PICTURE.splitlines(), strict=True))
    code = {path.parent for kind in ("*.py", "*.js") for path in PACKAGE.rglob(kind)}
    for folder in code - {PACKAGE, PACKAGE / "trace/web/js"}:
        room, *within = folder.relative_to(PACKAGE).parts
        where = lines[room] if len(within) == 1 and room != "features" else PAGE
        assert f"{folder.name}/" in where or not within, folder


def test_fourteen_things_have_a_grep():
    assert len(GREPS) == 14


@pytest.mark.parametrize(("thing", "words", "where"), GREPS)
def test_the_fields_word_finds_the_code(thing, words, where):
    """In the file's first lines, or in a name that it defines; and few files define it."""
    hits = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(words, defined(path), re.I)
    }
    assert where in hits
    assert len(hits) <= 12, sorted(hits)


def defined(path: Path) -> str:
    """A file's first paragraph, and the lines that define something."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^\s*(?:async def|def|class) (\w+)", text, re.M)
    return " ".join([text.split("\n\n", 1)[0], *names])


@pytest.mark.parametrize("page", ["structure.md", "decisions.md"])
def test_every_file_that_the_pages_name_is_there(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:py|cpp|h|inc|def))`", text))
    folders = ("src", "native", "tests", "bench", "tools", "docs")
    found = [path.as_posix() for name in folders for path in (ROOT / name).rglob("*.*")]
    assert named
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in found)] == []
