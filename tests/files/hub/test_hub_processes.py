"""Several processes, killed and interrupted ones, and the bar on a terminal."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import tiny_hub
from support.tiny_hub import ONE

CHILD = [sys.executable, tiny_hub.__file__]


def _start(world, tmp_path: Path, *arguments: str, sleep: float = 0, **options) -> subprocess.Popen:
    ready = tmp_path / "ready"
    ready.unlink(missing_ok=True)
    environment = os.environ | {"FAKE_SLEEP": str(sleep), "CHILD_READY": str(ready)}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    child = subprocess.Popen([*CHILD, *arguments], env=environment, **options)
    _wait_for(ready.exists)
    return child


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in 20 s"
        time.sleep(0.01)


def test_two_processes_fetch_once(world, tmp_path):
    first = _start(world, tmp_path, "pull", "tiny", sleep=1.5)
    _wait_for(world.log.exists)
    second = _start(world, tmp_path, "pull", "tiny")
    outputs = [child.communicate(timeout=20) for child in (first, second)]
    assert [child.returncode for child in (first, second)] == [0, 0]
    assert [out for out, _ in outputs] == [f"{world.model}\n"] * 2
    assert "Another process is fetching Tiny; waiting for it" in outputs[1][1]
    assert len(world.pip_runs()) == 1
    assert world.model.read_bytes() == ONE


def test_the_waiting_process_takes_over_when_the_first_is_killed(world, tmp_path):
    first = _start(world, tmp_path, "pull", "tiny", sleep=1.5)
    _wait_for(world.log.exists)
    second = _start(world, tmp_path, "pull", "tiny")
    first.kill()
    first.communicate()  # its pip goes on for a while, in a folder that nobody uses any more
    assert second.wait(timeout=20) == 0
    second.communicate()
    assert world.model.read_bytes() == ONE
    assert len(world.pip_runs()) == 2


def test_killed_in_the_middle_then_again(world, tmp_path):
    child = _start(world, tmp_path, "pull", "tiny", sleep=1)
    _wait_for(lambda: any(path.name == "half.whl" for path in world.left_over()))
    child.kill()
    child.communicate()
    assert not world.model.exists()
    assert world.left_over() != []
    again = _start(world, tmp_path, "pull", "tiny")
    again.communicate(timeout=20)
    assert again.returncode == 0
    assert world.model.read_bytes() == ONE
    assert world.left_over() == []


def test_interrupted_pip_is_ended_and_staging_removed(world, tmp_path):
    child = _start(world, tmp_path, "pull", "tiny", sleep=60)
    _wait_for(lambda: any(path.name == "half.whl" for path in world.left_over()))
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path(f"{world.log}.pid").read_text()), 0)
    assert world.left_over() == []
    assert not world.model.exists()


def test_a_terminal_sees_a_bar(world, tmp_path):
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        child = _start(world, tmp_path, "pull", "tiny", sleep=0.3, stderr=theirs)
        os.close(theirs)
        seen = b""
        while b"checksum is correct" not in seen:
            seen += terminal.read(4096)
        child.communicate(timeout=20)
    text = seen.decode()
    assert "downloading" in text
    assert "unpacking" in text
    assert "100% of 1 MB" in text
    assert text.count("\r  downloading") >= 3
