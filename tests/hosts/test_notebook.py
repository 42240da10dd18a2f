"""The cells of docs/embedding.md, and a kernel of Jupyter that is interrupted and restarted."""

import ast
import asyncio
from inspect import iscoroutine
from queue import Empty
from time import sleep

import pytest

from support.host_programs import PROMPT, right
from support.page_sections import blocks

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
