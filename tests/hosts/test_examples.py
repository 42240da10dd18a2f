"""The programs of docs/embedding.md, run as they stand there."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module

import pytest

from support.host_programs import (
    PROMPT,
    check_answers,
    free_port,
    hosted,
    right,
    write_example,
)

PERSON = f"""
from time import monotonic
from cutaway import LLM
from program import Window

def until(true):
    late = monotonic() + 60
    while not true():
        assert monotonic() < late
        window.update()

llm = LLM("toy-writer", threads=1, progress=False)
window = Window(llm)
window.text.insert("end", {PROMPT!r})
window.write()
until(lambda: len(window.text.get("1.0", "end")) > 3 * len({PROMPT!r}))
window.stop()
until(lambda: llm.engine.is_idle)
window.destroy()
print("written, stopped")
"""


def test_fastapi_with_two_workers_of_uvicorn(tmp_path):
    write_example("FastAPI", tmp_path, "program")
    port = free_port()
    command = ("uvicorn", "program:app", "--workers", "2", "--port", str(port))
    with hosted(tmp_path, port, *command) as (url, _):
        check_answers(url)


def test_flask(tmp_path):
    pytest.importorskip("flask", reason="needs flask: pip install flask")
    write_example("Flask", tmp_path, "program")
    port = free_port()
    with hosted(tmp_path, port, "flask", "--app", "program", "run", "-p", str(port)) as (url, _):
        check_answers(url)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_pool_of_processes(tmp_path, method):
    if method not in import_module("multiprocessing").get_all_start_methods():
        pytest.skip(f"needs a system that has {method}")
    program = write_example("A worker pool", tmp_path, "program")
    program.write_text(program.read_text().replace('"spawn"', f'"{method}"'))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    expected = [f"{seed} {right(seed)[1]} {right(seed)[0]}" for seed in range(4)]
    assert done.stdout == "\n".join(expected) + "\n"
    assert done.stderr == ""


def test_a_window(tmp_path, monkeypatch):
    """In a process of its own: Tcl aborts one in which another thread collects a window."""
    pytest.importorskip("tkinter", reason="needs tkinter: apt install python3-tk")
    write_example("A window", tmp_path, "program")
    with display(monkeypatch):
        command = [sys.executable, "-c", PERSON]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "no display" in done.stderr or "couldn't connect to display" in done.stderr:
        pytest.skip("needs a display: apt install xvfb")
    assert done.stderr == ""
    assert done.stdout == "written, stopped\n"


@contextmanager
def display(monkeypatch):
    """A display of its own, where there is none and Xvfb can make one."""
    program = shutil.which("Xvfb")
    if os.environ.get("DISPLAY") or program is None:
        yield
        return
    read, write = os.pipe()
    command = [program, "-displayfd", str(write), "-screen", "0", "640x480x8"]
    with subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL) as server:
        os.close(write)
        with os.fdopen(read) as number:
            monkeypatch.setenv("DISPLAY", f":{number.readline().strip()}")
        yield
        server.terminate()
