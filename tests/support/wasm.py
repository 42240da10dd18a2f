"""The page's cores, compiled once for all tests of a process."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

NATIVE = Path(__file__).parents[2] / "native"
NEEDS = "needs ziglang: pip install '.[test-wasm]'"


def run(*command: object) -> str:
    """Return a command's output; fail with it if the command fails."""
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def cores() -> Path:
    """Build the cores, and return their folder."""
    folder = Path(mkdtemp())
    run(NATIVE / "web/build.sh", folder)
    return folder


def flags_of_relaxed() -> list[str]:
    """Return Node's flags for relaxed SIMD, without which Node 20 has no exact instruction."""
    old = ["--experimental-wasm-relaxed-simd", "--no-liftoff"]
    version = subprocess.run(["node", *old, "--version"], capture_output=True, check=False)
    return [] if version.returncode else old
