"""The fenced blocks of a page of Markdown, and the commands in them.

Knows Markdown's fences, the end of a shell's command, and the comment that says why a block is not
run. Knows nothing of a block's meaning.
"""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

_FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
_NOT_RUN = re.compile(r"<!-- not run(?: \(([^)]*)\))?: ([^>]*) -->\s*")
_PAGE_NOT_RUN = re.compile(r"<!-- not run on this page: ([^>]*) -->")
_NOTES = re.compile(rf"(?:{_NOT_RUN.pattern})+\Z")
_HERE = re.compile(r"<<'?(\w+)'?$")


class Block(NamedTuple):
    """A fenced block of a page: its first line in the page, its language ("": none), its text."""

    page: str
    line: int
    kind: str
    code: str
    not_run: dict[str, str]
    """Beginning of a command -> the reason why it is not run; "" is the whole block."""

    @property
    def script(self) -> str:
        """The block's commands as a shell script; "" for a block of another language."""
        if self.kind == "console":
            return "\n".join(shown.command for shown in self.shown())
        return self.code if self.kind == "sh" else ""

    def shown(self) -> Iterator["Shown"]:
        """Yield a console's commands, each with the output below it."""
        for part in re.split(r"^\$ ", self.code, flags=re.MULTILINE)[1:]:
            command, _, output = re.split(r"(?<!\\)(\n)", part + "\n", maxsplit=1)
            yield Shown(command, output.strip("\n"))

    def why_not(self, command: str) -> str | None:
        """The reason why a command, or the block of Python, is not run; None if it is run."""
        reasons = (why for begins, why in self.not_run.items() if command.startswith(begins))
        return next(reasons, None)


class Shown(NamedTuple):
    """A command and its output in a page."""

    command: str
    output: str


def blocks_of(text: str, page: str = "") -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    page_note = _PAGE_NOT_RUN.search(text)
    for found in _FENCE.finditer(text):
        notes = _NOTES.search(text, 0, found.start())
        reasons = dict(_NOT_RUN.findall(notes[0])) if notes else {}
        reasons = {begins: " ".join(why.split()) for begins, why in reasons.items()}
        if page_note:
            reasons[""] = page_note[1]
        yield Block(page, text.count("\n", 0, found.start()) + 2, found[2], found[3], reasons)


def without_blocks(text: str) -> str:
    """The text of a page without its fenced blocks."""
    return _FENCE.sub("", text)


def commands(script: str) -> Iterator[str]:
    """Yield the commands of a shell script, each with its continuation lines."""
    lines: list[str] = []
    left_in = iter(script.splitlines())
    for line in left_in:
        lines.append(line)
        if here := _HERE.search(line):
            lines += [*iter(left_in.__next__, here[1]), here[1]]
            yield "\n".join(lines)
            lines = []
            continue
        whole = "\n".join(lines)
        try:
            left = shlex.split(whole, comments=True)
        except ValueError:  # within quotes, or after a backslash
            continue
        lines = []
        if left:
            yield whole
