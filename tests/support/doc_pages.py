"""The pages of the documentation, the blocks of code on them, and the commands in those.

Knows Markdown's fences, and what a shell makes of a line. Refuses to know what a block does.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from cutaway.cli.main import main
from cutaway.cli.parser import Parser

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if path.parent != NOTEBOOKS
}
"""Name -> text of each page but the notebooks."""

_FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
_INLINE = re.compile(r"`(cutaway [^`]*)`")


class Block(NamedTuple):
    """A fenced block of a page: its first line there, its language ("": none) and what it holds."""

    page: str
    line: int
    kind: str
    code: str

    @property
    def script(self) -> str:
        """What a shell would be given."""
        if self.kind == "console":
            lines = self.code.splitlines()
            return "\n".join(line[2:] for line in lines if line.startswith("$ "))
        return self.code if self.kind == "sh" else ""


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = PAGES[page]
    for found in _FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start()) + 2, found[2], found[3])


def commands(script: str) -> Iterator[str]:
    """The commands of a shell script, each with the lines that it goes on in."""
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        whole = "\n".join(lines)
        try:
            left = shlex.split(whole, comments=True)
        except ValueError:  # within quotes, or after a backslash
            continue
        lines = []
        if left:
            yield whole


def calls(command: str) -> Iterator[list[str]]:
    """The words of each ``cutaway`` in a command of a shell, without that one."""
    read = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
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
    """The words of each command that a page names between backticks, without "cutaway"."""
    prose = _FENCE.sub("", PAGES[page])
    for found in _INLINE.findall(prose):
        yield shlex.split(found)[1:]


def parser_of(words: list[str]) -> tuple[Parser, list[str]]:
    """The parser of a command that a line begins with, and what it is to read."""
    made: list[tuple[Parser, list[str]]] = []

    def keep(parser, argv):
        made.append((parser, argv))
        raise SystemExit(0)

    with patch.object(Parser, "parse", keep):
        assert main(words) == 0, words
    return made[0]
