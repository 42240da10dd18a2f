"""What features add, and that a package of somebody else can be one, as docs/features.md says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway import registry
from cutaway.errors import CutawayError
from cutaway.registry import Command, Feature

PAGE = (Path(__file__).parents[2] / "docs/features.md").read_text(encoding="utf-8")
TOML, MODULE = (re.search(rf"```{kind}\n(.+?)```", PAGE, re.S)[1] for kind in ("toml", "python"))
ENDPOINT = """
from cutaway import AsyncLLM
from cutaway.server.app import create_app
from starlette.testclient import TestClient

with TestClient(create_app(AsyncLLM("toy-writer")), base_url="http://localhost") as client:
    print(client.get("/letters", params={"text": "apple"}).json())
    print("/letters" in client.get("/openapi.json").json()["paths"])
"""


@pytest.fixture
def letters(tmp_path):
    """The page's package, as pip leaves it; what runs Python there."""
    (tmp_path / "letters.py").write_text(MODULE)
    info = tmp_path / "cutaway_letters-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cutaway-letters\nVersion: 1\n")
    section, line = re.search(r'(entry-points\.".+?")\]\n(.+?)\n', TOML).groups()
    group = section.split('"')[1]
    (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")

    def run(*argv):
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        return subprocess.run(
            [sys.executable, "-c", code + argv[0], *argv[1:]],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    run.at = tmp_path
    return run


MAIN = "from cutaway.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_a_package_adds_a_command(letters):
    done = letters(MAIN, "letters", "apple")
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    assert "count the letters of a text" in letters(MAIN, "--help").stdout
    assert "did you mean 'letters'" in letters(MAIN, "leters").stderr
    assert " letters " in letters(MAIN, "--completion", "bash").stdout
    assert letters(MAIN, "letters").returncode == 2


def test_a_package_adds_an_endpoint(letters):
    done = letters(ENDPOINT)
    assert done.stdout == "{'letters': 5}\nTrue\n", done.stderr


def test_a_broken_package_is_told_by_name_and_leaves_others_alone(letters):
    (letters.at / "letters.py").write_text("import no_such_module\n")
    done = letters(MAIN, "--help")
    assert done.returncode == 1
    assert done.stderr == (
        "cutaway: error: the feature 'letters' (letters:FEATURE): "
        "No module named 'no_such_module'\n"
    )
    assert letters(MAIN, "tokenize", "--help").returncode == 0


def test_two_features_with_one_command_are_refused(monkeypatch):
    twice = {"a": Feature({"x y": Command("", "")}), "b": Feature({"x y": Command("", "")})}
    monkeypatch.setattr(registry, "BUILT_IN", twice)
    with pytest.raises(CutawayError, match="two features add the command 'x y'"):
        registry.commands("x")
    assert registry.commands() == {}


def test_a_command_that_is_there_already_is_no_feature_s(letters):
    module = (letters.at / "letters.py").read_text()
    (letters.at / "letters.py").write_text(module.replace('"letters": Command', '"chat": Command'))
    done = letters(MAIN, "--help")
    assert done.returncode == 1
    assert "a feature adds 'chat', which is a command already; uninstall it" in done.stderr
    assert letters(MAIN, "chat", "-h").returncode == 0


def test_every_folder_is_in_the_registry():
    folders = {path.parent.name for path in Path(registry.__file__).parent.glob("features/*/*.py")}
    assert {*registry.BUILT_IN} == folders
