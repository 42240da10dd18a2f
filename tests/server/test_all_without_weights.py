"""Whatever a server does, it does without weights of its own, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_tests_of_the_server_pass_without_weights():
    """Of those of ``tiny`` one a file does so in any run; here all of them, and all others."""
    tests = Path(__file__).parents[1]
    conftests = [
        path for path in tests.rglob("conftest.py") if "servers import" in path.read_text()
    ]
    receipts = tests / "features/evidence/test_receipts_served.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *(path.parent for path in conftests), receipts],
        env={**os.environ, "CUTAWAY_TEST_PIPED": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
