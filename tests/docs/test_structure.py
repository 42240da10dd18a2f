"""docs/structure.md, held against what it draws: the folders and the import contract.

And the field's words find the code: each in its file's head, or in a name that it defines.
"""

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import cutaway

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/cutaway"
PAGE = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
PICTURE = re.search(r"```\n(.+?)```", PAGE, re.S).group(1)
DRAWN = [line.split()[0] for line in PICTURE.splitlines()]
MOST_WORDS = 1_000
GREPS = {  # what one looks for, as grep -E reads it, and where it is
    "causal": "engine/limits.py",
    "kv.?block": "engine/memory/block_manager.py",
    "prefix.?cache": "engine/memory/block_manager.py",
    "recurrent.?state": "engine/memory/states.py",
    "preempt": "engine/loop/scheduler.py",
    "speculative": "engine/speculation/__init__.py",
    "stop.?string": "engine/stops.py",
    r"top.?p\b": "sampling/definitions.py",
    "grammar.?mask": "text/grammar/matcher.py",
    "chat.?template": "text/chat.py",
    "ablat": "features/inside/ablate.py",
    "backtrack": "engine/constraint/checks.py",
    "diffusion": "engine/decoders/denoise.py",
    "dialect": "text/tools/dialect.py",
}
LOOSE = {"__init__.py", "__main__.py", "_version.py", "errors.py", "registry.py", "py.typed"}


def test_the_picture_is_the_import_contract_and_the_folders():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    assert layers == [
        *(f"cutaway.{name}" for name in DRAWN),
        "cutaway.registry",
        "cutaway.errors | cutaway._version",
    ]
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert entries == {*DRAWN, *LOOSE}


def test_inner_folders_that_the_picture_names_are_there():
    for line in PICTURE.splitlines():
        box, words = line.split(maxsplit=1)
        for inner in re.findall(r"\b(\w+)/", words.replace("native/", "")):
            assert (PACKAGE / box / inner).is_dir(), f"{box}/{inner}"


def test_every_room_within_a_room_is_in_the_picture_and_every_feature_on_the_page():
    lines = dict(zip(DRAWN, PICTURE.splitlines(), strict=True))
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        room, *within = folder.relative_to(PACKAGE).parts or ("",)
        if len(within) == 1:
            assert f"{folder.name}/" in (PAGE if room == "features" else lines[room]), folder


def test_the_page_is_short():
    assert len(PAGE.split()) <= MOST_WORDS


@pytest.mark.parametrize(("words", "where"), GREPS.items())
def test_the_fields_word_finds_the_code(words, where):
    """Few files have it in their first lines, or in a name that they define."""
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


@pytest.mark.parametrize("page", ["docs/structure.md", "docs/decisions.md", "CONTRIBUTING.md"])
def test_every_file_that_the_pages_name_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:py|cpp|h|inc|def))`", text))
    folders = ("src", "native", "tests", "bench", "tools", "docs")
    files = [path.as_posix() for name in folders for path in (ROOT / name).rglob("*.*")]
    assert named
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in files)] == []


def test_every_commit_that_contributing_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs the history of the repository")
    commits = re.findall(r"`git show (\w+)`", text)
    assert len(commits) >= 8
    assert [commit for commit in commits if git("cat-file", "-t", commit) != "commit"] == []


def git(*arguments: str) -> str:
    command = ["git", "-C", ROOT, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


# -- names -----------------------------------------------------------------------------------------

# Names of the package: no two public classes have the same one.


_ROOT = Path(cutaway.__file__).parent

EXCEPTIONS = {
    "Plan": "the native one, and that of a cluster: the latter is to be renamed",
}
"""Name -> why several classes may have it."""


def _homes() -> dict[str, set[str]]:
    """Each public class's name, and the modules that define one of that name."""
    homes = defaultdict(set)
    for suffix in ("*.py", "*.pyi"):
        for file in _ROOT.rglob(suffix):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].add(str(file.relative_to(_ROOT)))
    return homes


def test_no_two_public_classes_have_one_name():
    homes = _homes()
    assert len(homes) > 400
    twice = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() <= twice.keys(), "an exception that is none any more: take it out"


# -- ci --------------------------------------------------------------------------------------------

# CI runs README's commands as they stand.


README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST = re.search(r"## Two commands\n.*?```sh\n(.+?)```", README, re.S).group(1).splitlines()
TESTS = re.search(r"`(pip install '\.\[test\]' && pytest)`", README).group(1).split(" && ")


@pytest.mark.parametrize("command", [line.partition(" #")[0].strip() for line in FIRST] + TESTS)
def test_ci_runs_the_command(command):
    ci = (ROOT / ".ci/run").read_text()
    assert re.search(rf"^( *|try \w+ ){re.escape(command)}( --durations.*)?$", ci, re.M)
