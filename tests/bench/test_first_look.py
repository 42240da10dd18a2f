"""README's first look has the commands of bench/first_look.py, each with what it printed."""

from first_look import BLOCKS
from support.doc_pages import blocks


def test_readme_shows_each_command_with_an_output():
    shown = [block for block in blocks("README.md") if block.kind == "console"]
    assert [tuple(block.script.splitlines()) for block in shown] == [*BLOCKS]
    for block in shown:
        outputs = [text.split("\n", 1)[1].strip() for text in block.code.split("$ cutaway")[1:]]
        assert all(outputs)
