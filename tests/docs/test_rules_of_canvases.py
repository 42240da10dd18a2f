"""docs/denoise.md explains every rule and setting, and the commands of its help page run."""

import shlex
from pathlib import Path

import pytest

from cutaway.cli import denoise
from cutaway.cli.main import main
from cutaway.engine.canvas import RULES, SETTING_WORDS
from cutaway.engine.canvas.rule import CACHES, NOISES, ORDERS, REMASKS, SCHEDULES

TEXT = (Path(__file__).parents[2] / "docs" / "denoise.md").read_text()
COMMANDS = [line.strip() for line in denoise.EPILOG.splitlines() if "cutaway denoise" in line]


@pytest.mark.parametrize("line", [line for line in COMMANDS if "-m " not in line])
def test_the_commands_are_commands(line, capfd):
    assert main(["denoise", *shlex.split(line, comments=True)[2:]]) == 0
    assert capfd.readouterr().out


def test_every_rule_and_setting_is_explained():
    for name in (*RULES, *(set(SETTING_WORDS) - {"rule"})):
        assert f"`{name}`" in TEXT, name
    for choices in (ORDERS, SCHEDULES, REMASKS, CACHES, NOISES):
        assert all(f"`{choice}`" in TEXT for choice in choices)
