"""The page's modules in Node, with the catalogue that they find in the page's document."""

import json
import os
import subprocess
from pathlib import Path

from cutaway.trace.page import catalogue

JS = Path(__file__).parents[1] / "trace" / "web" / "js"


def run_node(*arguments: str | Path) -> str:
    """Return the output of ``node`` with these arguments; fail with it if node fails."""
    done = subprocess.run(
        ["node", "--import", (JS / "catalogue.mjs").as_uri(), *map(str, arguments)],
        env={**os.environ, "CUTAWAY_CATALOGUE": json.dumps(catalogue())},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
