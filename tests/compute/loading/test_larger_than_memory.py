"""A process that may have less memory than its model's weights take writes the same text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.base.resources import _groups, file_system
from cutaway.files import hub

pytestmark = [pytest.mark.model, pytest.mark.slow]
LIMIT = 120_000_000  # 98 MB are SmolLM2's, and over 30 MB Python's and its libraries'


@pytest.fixture
def group():
    """A control group of our own that may have so much memory and no swap."""
    within = next(_groups("memory"), Path("/nowhere"))
    made = within / f"cutaway-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limits = ("memory.max", "memory.limit_in_bytes")
        limit = next((made / name for name in limits if (made / name).exists()), None)
        if limit is None:
            pytest.skip("control groups do not limit memory here")
        limit.write_text(str(LIMIT))
        yield made
    finally:
        made.rmdir()


def written(group, *more):
    command = [
        sys.executable, "-m", "cutaway", "generate", "The sky is", "--temperature", "0",
        "--max-tokens", "24", "--context", "64", "--kv-tokens", "64", *more,
    ]  # fmt: skip
    enter = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    return subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, check=False)


def test_it_is_refused_without_a_folder_and_writes_the_same_text_with_one(group, tmp_path):
    if file_system(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("temporary files are in memory here")
    hub.resolve(None, progress=False)
    refused = written(group)
    assert refused.returncode == 2
    assert "of memory for its weights" in refused.stderr
    done = written(group, "--offload-folder", tmp_path)
    assert "each token reads up to" in done.stderr
    assert (done.returncode, done.stdout) == (0, written(None).stdout)
