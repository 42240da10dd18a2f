"""The pages of the documentation, their blocks of code, and the commands in these.

Knows the list of pages, and how a shell splits a line. Does not know the effect of a block.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from cutaway.cli.main import main
from cutaway.cli.options.parser import Parser
from doc_blocks import Block, blocks_of, without_blocks

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if path.parent != NOTEBOOKS
}
"""Name -> text of each page except the notebooks."""

_INLINE = re.compile(r"`(cutaway [^`]*)`")


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    return blocks_of(PAGES[page], page)


def calls(command: str) -> Iterator[list[str]]:
    """Yield the words of each ``cutaway`` command in a shell command, without "cutaway"."""
    read = shlex.shlex(command.replace("\\\n", ""), posix=True, punctuation_chars="|;&<>")
    read.whitespace_split = True
    words: list[str] = []
    left = iter([*read, ";"])
    for word in left:
        if word in ("<", ">", ">>"):
            next(left)  # the file
        elif word not in ("|", ";", "&&"):
            words.append(word)
        else:
            if words[:1] == ["cutaway"]:
                yield words[1:]
            words = []


def named_in_prose(page: str) -> Iterator[list[str]]:
    """Yield the words of each command that a page has between backticks, without the first."""
    prose = without_blocks(PAGES[page])
    for code in _INLINE.findall(prose):
        yield shlex.split(code)[1:]


def parser_of(words: list[str]) -> tuple[Parser, list[str]]:
    """Return (the parser of the command that a line begins with, the words for the parser)."""
    commands: list[tuple[Parser, list[str]]] = []

    def keep(parser, argv):
        commands.append((parser, argv))
        raise SystemExit(0)

    with patch.object(Parser, "parse", keep):
        assert main(words) == 0, words
    return commands[0]
