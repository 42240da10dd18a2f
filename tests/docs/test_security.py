"""docs/security.md names for each promise the test that holds it: they are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_class_names_a_test_that_is_there():
    text = (ROOT / "docs/security.md").read_text()
    table = text.partition("## What holds, by class")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert all((ROOT / path).is_file() for path in named), row
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text()
