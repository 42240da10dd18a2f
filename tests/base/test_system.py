"""What the system does not offer does nothing."""

import ctypes
import os
import sys
from mmap import ACCESS_READ, PAGESIZE, mmap

import numpy as np
import pytest

from cutaway.base import system

linux = pytest.mark.skipif(sys.platform != "linux", reason="calls of Linux")


@linux
def test_memory_that_a_host_locked_is_not_forgotten(tmp_path):
    """Of locked pages MADV_DONTNEED is EINVAL, and a host may have called mlockall()."""
    (tmp_path / "file").write_bytes(bytes(PAGESIZE))
    with (tmp_path / "file").open("rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
    address = ctypes.c_void_p(np.frombuffer(data, np.uint8).ctypes.data)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(address, ctypes.c_size_t(PAGESIZE)):
        pytest.skip(f"mlock: {os.strerror(ctypes.get_errno())}")
    with pytest.raises(OSError, match="Invalid argument"):
        data.madvise(4, 0, PAGESIZE)  # MADV_DONTNEED
    system.forget(data, 0, PAGESIZE)
    assert data[:] == bytes(PAGESIZE)


def _refuse(*_):
    raise OSError(38, "Function not implemented")


class Refusing:
    madvise = _refuse


@linux
def test_calls_that_a_sandbox_refuses_change_nothing(monkeypatch):
    monkeypatch.setattr(os, "posix_fadvise", _refuse)
    monkeypatch.setattr(os, "sched_getaffinity", _refuse)
    system.expect(Refusing(), 0, PAGESIZE)
    system.forget(Refusing(), 0, PAGESIZE)
    system.keep_no_copy(0, PAGESIZE)
    assert system.processors() == set(range(os.cpu_count()))
