"""The tests' own NumPy computes with one thread."""

import subprocess
import sys
from pathlib import Path


def test_numpy_is_not_imported_before_it_is_told_of_its_threads():
    code = "import conftest, os, sys; print('numpy' in sys.modules, os.environ['OMP_NUM_THREADS'])"
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tests, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False 1\n"
