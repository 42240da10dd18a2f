"""The programs of docs/embedding.md, run as they stand there."""

import ast
import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from inspect import iscoroutine
from queue import Empty
from time import sleep

import pytest

from support.host_programs import (
    PROMPT,
    check_answers,
    free_port,
    host,
    right,
    write_example,
)
from support.page_sections import blocks

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
    command = ("uvicorn", "program:app", "--workers", "2", "--port", "0")
    with host(tmp_path, 0, *command) as (url, _):
        check_answers(url)


def test_flask(tmp_path):
    pytest.importorskip("flask", reason="needs flask: pip install flask")
    write_example("Flask", tmp_path, "program")
    port = free_port()
    with host(tmp_path, port, "flask", "--app", "program", "run", "-p", str(port)) as (url, _):
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


# -- notebook --------------------------------------------------------------------------------------

# The cells of docs/embedding.md, and a kernel of Jupyter that is interrupted and restarted.


CELLS = blocks("embedding.md", "A notebook", "python", "")
CHECK = f"print(llm.generate({PROMPT!r}, max_tokens=40, seed=1).fingerprint, llm.engine.is_idle)"
ENDLESS = "'a', max_tokens=400, ignore_eos=True"
LOOPS = {
    "generate": f"while True: llm.generate({ENDLESS})",
    "batch": f"while True: llm.generate(n=4, prompt={ENDLESS})",
    "stream": f"while True:\n with llm.stream({ENDLESS}) as stream:\n  for step in stream: pass",
}


def test_the_cells_as_they_stand(capsys):
    known = {}

    async def run():
        for cell in CELLS:
            code = compile(cell, "a cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if iscoroutine(waits := eval(code, known)):
                await waits

    asyncio.run(run())
    text, fingerprint = right()
    assert capsys.readouterr().out == text
    assert (known["both"][0].text, known["both"][0].fingerprint) == (text, fingerprint)
    exec(CHECK, known)
    assert capsys.readouterr().out == f"{fingerprint} True\n"


class Notebook:
    """A kernel, and cells that it runs."""

    def __init__(self):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel()

    def begin(self, cell):
        self._cell, self._running = self.client.execute(cell), True

    def outputs(self, until=None, patience=60):
        """What the cell has written since it was last asked, up to a text or the cell's end.

        TimeoutError, with that, once it is silent for ``patience`` seconds.
        """
        written = ""
        while self._running and (until is None or until not in written):
            try:
                message = self.client.get_iopub_msg(timeout=patience)
            except Empty:
                raise TimeoutError(written) from None
            if message["parent_header"].get("msg_id") != self._cell:
                continue
            content = message["content"]
            written += content.get("text") or content.get("ename") or ""
            self._running = content.get("execution_state") != "idle"
        return written

    def run(self, cell):
        self.begin(cell)
        return self.outputs()

    def interrupt(self, cell, after):
        """What the cell writes from the interrupt on."""
        self.begin(f"print('begun', flush=True)\n{cell}")
        self.outputs(until="begun")
        sleep(after)
        lost = ""
        for _ in range(5):
            self.manager.interrupt_kernel()
            try:
                return lost + self.outputs(patience=10)
            except TimeoutError as silent:
                lost += str(silent)
                assert "ignored in" in lost  # by Python, which drops what is raised in a finalizer
        raise TimeoutError(lost)

    def restart(self):
        self.manager.restart_kernel(now=False)
        self.client.wait_for_ready(timeout=60)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook():
    for name in ("jupyter_client", "ipykernel"):
        pytest.importorskip(name, reason=f"needs {name}: pip install jupyter_client ipykernel")
    notebook = Notebook()
    yield notebook
    notebook.close()


@pytest.mark.slow
@pytest.mark.parametrize("cell", LOOPS.values(), ids=LOOPS)
def test_a_cell_that_is_interrupted_leaves_the_model_as_it_was(notebook, cell):
    notebook.run(CELLS[0])
    for i in range(20):
        written = notebook.interrupt(cell, 0.2 + 0.0137 * i)
        # IPython cannot show a line that has no number (Python 3.11), and says that it cannot.
        assert "KeyboardInterrupt" in written
        assert notebook.run(CHECK) == f"{right()[1]} True\n", written


@pytest.mark.slow
def test_tasks_in_a_cell(notebook):
    pytest.importorskip("nest_asyncio", reason="needs nest_asyncio: pip install nest_asyncio")
    text, fingerprint = right()
    for cell in CELLS[:2]:
        written = notebook.run(cell)
    assert written == text
    for i in range(5):
        notebook.run("tasks = AsyncLLM(llm)")
        assert notebook.interrupt(f"while True: await tasks.generate({ENDLESS})", 0.2 + 0.02 * i)
        notebook.run("await tasks.aclose()")
        assert notebook.run(CHECK) == f"{fingerprint} True\n"
    assert notebook.run(f"{CELLS[2]}\nprint(both[0].fingerprint)") == f"{fingerprint}\n"
    nested = "import asyncio, nest_asyncio\nnest_asyncio.apply()\nasync def ask():\n"
    nested += "".join(f" {line}\n" for line in CELLS[2].splitlines())
    nested += " print(both[0].fingerprint)\nasyncio.run(ask())"
    assert notebook.run(nested) == f"{fingerprint}\n"


@pytest.mark.slow
def test_a_kernel_that_is_restarted_while_it_writes(notebook):
    notebook.run(CELLS[0])
    notebook.begin(f"print('begun', flush=True)\n{LOOPS['generate']}")
    notebook.outputs(until="begun")
    notebook.restart()
    notebook.run(CELLS[0])
    assert notebook.run(CHECK) == f"{right()[1]} True\n"
