"""Processes that are started beside this one, in a folder that a stranger filled."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cutaway
from cutaway.base import child
from cutaway.base.progress import Bar
from cutaway.errors import FetchError
from cutaway.files.hub import fetch
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from support.hostile_modules import write_hostile_modules

MODULES = ["json", "site", "sitecustomize", "usercustomize", "pip", "ssl", "subprocess"]
PACKAGES = ["numpy", "encodings", "llguidance", "cutaway", "pip"]
SOURCES = Path(cutaway.__file__).parent


@pytest.fixture
def entered(tmp_path, monkeypatch):
    """The current folder, full of a stranger's modules."""
    folder = tmp_path / "model"
    names = [f"{name}.py" for name in MODULES] + [f"{name}/__init__.py" for name in PACKAGES]
    write_hostile_modules(folder, tmp_path / "ran", names)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


@pytest.fixture(params=[None, "", ".", "/nowhere:", "HERE"])
def ran(request, entered, tmp_path, monkeypatch):
    """The file that one of them would write."""
    folder, ran = entered, tmp_path / "ran"
    if request.param is not None:
        monkeypatch.setenv("PYTHONPATH", request.param.replace("HERE", str(folder)))
    # As python -m has it, and as PYTHONPATH adds it:
    monkeypatch.setattr(sys, "path", [str(folder), "", ".", *sys.path])
    return ran


def compile_a_grammar(folder):
    sandbox = CompileSandbox()
    try:
        assert sandbox.source_of(Grammar("json_schema", '{"type":"integer"}', compact=True))
    finally:
        sandbox.close()


def fetch_a_wheel(folder):
    with pytest.raises(FetchError, match="pip said"):
        fetch.download(["nothing==1"], folder, Bar("wheel", 1))


STARTS = {
    "text/grammar/compile_sandbox.py": compile_a_grammar,
    "files/hub/fetch.py": fetch_a_wheel,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_file_of_the_current_folder_is_run(start, ran, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "wheels").mkdir()
    start(tmp_path / "wheels")
    assert not ran.exists()


COMMANDS = {
    "cutaway": ([str(Path(sysconfig.get_path("scripts"), "cutaway"))], False),
    "python -P -m cutaway": ([sys.executable, "-P", "-m", "cutaway"], False),
    "python -m cutaway": ([sys.executable, "-m", "cutaway"], True),  # as Python does with any
}


@pytest.mark.parametrize(("command", "runs_it"), COMMANDS.values(), ids=COMMANDS)
def test_which_command_runs_a_file_of_the_current_folder(command, runs_it, entered, tmp_path):
    if not Path(command[0]).exists():
        pytest.skip("cutaway is not installed here: pip install .")
    words = ["generate", "-m", "toy-writer", "It is", "--max-tokens", "2", "--choice", "a"]
    done = subprocess.run([*command, *words], capture_output=True, timeout=120, check=False)
    assert (done.returncode == 0) == (not runs_it)
    assert (tmp_path / "ran").exists() == runs_it


def test_each_file_that_starts_a_process_is_in_the_test_above():
    starts = re.compile(
        r"Popen\(|subprocess\.\w*(run|call|output)|os\.(system|popen|exec|spawn)"
        "|multiprocessing|ProcessPool|import webbrowser"
    )
    texts = {file: file.read_text("utf-8") for file in SOURCES.rglob("*.py")}
    files = {file for file, text in texts.items() if starts.search(text)}
    assert {file.relative_to(SOURCES).as_posix() for file in files} == STARTS.keys()
    for file in files:
        assert "child.command(" in texts[file] and "_environment()" in texts[file]


def test_keys_and_settings_stay_in_this_process(monkeypatch):
    monkeypatch.setenv("CUTAWAY_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONSTARTUP", "x.py")
    monkeypatch.setenv("PIP_INDEX_URL", "https://own.example")
    own, foreign = child.own_environment(), child.foreign_environment()
    assert not own.keys() & {"CUTAWAY_API_KEY", "HF_TOKEN", "PYTHONSTARTUP", "PIP_INDEX_URL"}
    assert not foreign.keys() & {"CUTAWAY_API_KEY", "PYTHONSTARTUP"}
    assert foreign["PIP_INDEX_URL"] == "https://own.example"
    assert foreign["PATH"] == own["PATH"] == os.environ["PATH"]
