"""Processes that are started beside this one, in a folder that a stranger filled."""

import os
import re
import sys
from pathlib import Path

import pytest

import cutaway
from cutaway.base import child
from cutaway.base.progress import Bar
from cutaway.errors import FetchError
from cutaway.files.hub import wheels
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from cutaway.text.grammar.source import Grammar

MODULES = ["json", "site", "sitecustomize", "usercustomize", "pip", "ssl", "subprocess"]
PACKAGES = ["numpy", "encodings", "llguidance", "cutaway", "pip"]
SOURCES = Path(cutaway.__file__).parent


@pytest.fixture(params=[None, "", ".", "/nowhere:", "HERE"])
def ran(request, tmp_path, monkeypatch):
    """The file that a stranger's module would write, in a current folder full of them."""
    folder, ran = tmp_path / "model", tmp_path / "ran"
    names = [f"{name}.py" for name in MODULES] + [f"{name}/__init__.py" for name in PACKAGES]
    for name in names:
        module = folder / name
        module.parent.mkdir(parents=True, exist_ok=True)
        # By what is there before Python can open files, since encodings is needed for that.
        module.write_text(f"import posix\nposix.close(posix.open({str(ran)!r}, {os.O_CREAT}))\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
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
        wheels.download(["nothing==1"], folder, Bar("wheel", 1))


STARTS = {
    "text/grammar/compile_sandbox.py": compile_a_grammar,
    "files/hub/wheels.py": fetch_a_wheel,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_file_of_the_current_folder_is_run(start, ran, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "wheels").mkdir()
    start(tmp_path / "wheels")
    assert not ran.exists()


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
