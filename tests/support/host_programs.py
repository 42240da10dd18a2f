"""Programs that host cutaway: those of docs/embedding.md, as files and as running servers.

Knows the right answer of each: the text that ``LLM`` generates in this process.
"""

import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from time import monotonic, sleep

import httpx

from cutaway import LLM
from support.page_sections import blocks

PROMPT = "Mr. Darcy"
PATIENCE_S = 300  # with what must happen, on a machine that does much else


def write_example(title, folder, name):
    """Write the program of a section of the page to a file."""
    path = folder / f"{name}.py"
    path.write_text("\n\n".join(blocks("embedding.md", title, "python", "")))
    return path


@cache
def right(seed=1):
    """Return (text, fingerprint) of the programs' prompt."""
    with LLM("toy-writer", threads=1, progress=False) as llm:
        done = llm.generate(PROMPT, max_tokens=40, seed=seed)
        return done.text, done.fingerprint


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return free.getsockname()[1]


@contextmanager
def host(folder, port, *command):
    """Run ``python -m COMMAND`` in a folder; yield its URL and process once it answers.

    port: where it listens; 0: where its log says, which no other program can have taken
    """
    with (folder / "log").open("w+") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, stdout=log, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port or logged_port(child, folder)}"
            wait_for_answer(url, child, folder)
            yield url, child
        finally:
            child.terminate()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()


def logged_port(child, folder):
    """Wait until the program's log names its port, and return it."""
    until = monotonic() + PATIENCE_S
    while not (port := re.search(r"http://127\.0\.0\.1:(\d+)\D", (folder / "log").read_text())):
        alive = child.poll() is None and monotonic() < until
        assert alive, (folder / "log").read_text()
        sleep(0.05)
    return port[1]


def wait_for_answer(url, child, folder):
    """Wait until the program answers, and return the answer."""
    until = monotonic() + PATIENCE_S
    while True:
        try:
            return httpx.get(f"{url}/write", params={"prompt": PROMPT}, timeout=PATIENCE_S)
        except httpx.TransportError:
            alive = child.poll() is None and monotonic() < until
            assert alive, (folder / "log").read_text()
            sleep(0.05)


def check_answers(url, *, times=24, seed=1):
    """Ask from 12 threads at once: every answer, and a stream, must be the text of ``LLM``."""

    def ask(_):
        answer = httpx.get(f"{url}/write", params={"prompt": PROMPT}, timeout=PATIENCE_S)
        return answer.raise_for_status()

    text, fingerprint = right(seed)
    with ThreadPoolExecutor(12) as pool:
        answers = [answer.json() for answer in pool.map(ask, range(times))]
    assert answers == times * [{"text": text, "fingerprint": fingerprint}]
    assert httpx.get(f"{url}/stream", params={"prompt": PROMPT}).text == text
