"""CI runs README's commands as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST = re.search(r"## Two commands\n.*?```sh\n(.+?)```", README, re.S).group(1).splitlines()
TESTS = re.search(r"`(pip install '\.\[test\]' && pytest)`", README).group(1).split(" && ")


@pytest.mark.parametrize("command", [line.partition(" #")[0].strip() for line in FIRST] + TESTS)
def test_ci_runs_the_command(command):
    ci = (ROOT / ".ci/run").read_text()
    assert re.search(rf"^( *|try \w+ ){re.escape(command)}( --durations.*)?$", ci, re.M)
