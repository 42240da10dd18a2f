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
    """What a command prints; where it fails, that is the failure."""
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def cores() -> Path:
    """A folder of them."""
    folder = Path(mkdtemp())
    run(NATIVE / "web/build.sh", folder)
    return folder


def flags_of_relaxed() -> list[str]:
    """Return Node's flags for relaxed instructions: without them Node 20 has none that is exact."""
    old = ["--experimental-wasm-relaxed-simd", "--no-liftoff"]
    version = subprocess.run(["node", *old, "--version"], capture_output=True, check=False)
    return [] if version.returncode else old
