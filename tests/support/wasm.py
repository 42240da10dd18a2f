"""The page's core, compiled once for all tests of a process."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

NATIVE = Path(__file__).parents[2] / "native"
NEEDS = "needs ziglang: pip install '.[test-wasm]'"


def run(*command: object) -> str:
    """What a command prints; where it fails, that is the failure."""
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def core() -> Path:
    """core.wasm, in a folder of its own."""
    path = Path(mkdtemp()) / "core.wasm"
    run(NATIVE / "web/build.sh", path)
    return path
