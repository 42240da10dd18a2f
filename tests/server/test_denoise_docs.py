"""The examples of docs/denoise.md, run in order with the toy, and what its tables name."""

import re
import shlex
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.canvas import RULES, SETTING_WORDS
from cutaway.canvas.rule import CACHES, LUCKS, ORDERS, REMASKS, SCHEDULES
from cutaway.cli import denoise
from cutaway.cli.main import main
from cutaway.cli.parser import Parser
from support.served import serve

TEXT = (Path(__file__).parents[2] / "docs" / "denoise.md").read_text()


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_python_s_examples_run(capfd):
    known = {}
    with serve(LLM("toy-canvas", threads=1, progress=False)) as served:
        for number, block in enumerate(blocks("python"), 1):
            code = block.replace("http://127.0.0.1:8000", served.url)
            exec(compile(code, f"denoise.md, example {number}", "exec"), known)
    assert number == 2
    out = capfd.readouterr().out
    assert known["done"].text in out
    assert "Pass Pass Pass Pass Pass Pass Pass Pass Step" in out
    assert re.search(r"\{'passes': \d+, 'rows': \d+\}", out)


def commands():
    lines = "".join(blocks("sh")).splitlines() + denoise._EPILOG.splitlines()
    return [line.strip() for line in lines if line.strip().startswith("cutaway denoise")]


@pytest.mark.parametrize("line", commands())
def test_the_commands_are_commands(line, capfd):
    words = shlex.split(line, comments=True)[2:]
    if "<" in words:
        words = words[: words.index("<")]
    words = [word for word in words if word not in ("with", "any", "model:", "the", "loop")]
    if "-m" in words:  # what nobody has here
        parser = Parser("cutaway denoise", "")
        denoise.add_arguments(parser)
        parser.parse(words)
    else:
        assert main(["denoise", *words]) == 0
        assert capfd.readouterr().out


def test_every_rule_and_setting_is_explained():
    for name in (*RULES, *(set(SETTING_WORDS) - {"rule"})):
        assert f"`{name}`" in TEXT, name
    for choices in (ORDERS, SCHEDULES, REMASKS, CACHES, LUCKS):
        assert all(f"`{choice}`" in TEXT for choice in choices)
