"""What the system does not offer does nothing."""

import os
import subprocess
import sys
from mmap import PAGESIZE

import pytest

from cutaway.base import system

linux = pytest.mark.skipif(sys.platform != "linux", reason="calls of Linux")

LOCKED = """
import ctypes, sys
if ctypes.CDLL(None, use_errno=True).mlockall(3):
    sys.exit(77)
from cutaway import LLM
print(LLM("toy-writer", threads=1, progress=False).generate("a", max_tokens=2, seed=1).token_ids)
"""


@linux
def test_a_host_that_locked_its_memory_loads_models():
    """Of locked pages some advice is EINVAL."""
    done = subprocess.run(
        [sys.executable, "-c", LOCKED], check=False, capture_output=True, text=True
    )
    if done.returncode == 77:
        pytest.skip("mlockall is not allowed here")
    assert (done.returncode, done.stderr) == (0, "")


def _refuse(*_):
    raise OSError(38, "Function not implemented")


@linux
def test_calls_that_a_sandbox_refuses_change_nothing(monkeypatch):
    monkeypatch.setattr(os, "posix_fadvise", _refuse)
    monkeypatch.setattr(os, "sched_getaffinity", _refuse)
    system.keep_no_copy(0, PAGESIZE)
    assert system.processors() == set(range(os.cpu_count()))
