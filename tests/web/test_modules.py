"""What of the page needs no document: Node's own tests, and the types in JSDoc."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
JS = HERE.parents[1] / "src" / "cutaway" / "web" / "js"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
@pytest.mark.parametrize("test", sorted(HERE.glob("js/*.test.mjs")), ids=lambda path: path.stem)
def test_in_node(test):
    done = subprocess.run(["node", "--test", test], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_is_explained():
    for path in JS.rglob("*.js"):
        assert path.read_text().startswith("/**"), path.name


def test_nothing_becomes_markup_and_nothing_is_fetched_elsewhere():
    for path in JS.rglob("*.js"):
        text = path.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert forbidden not in text, (path.name, forbidden)
        assert "https://" not in text
