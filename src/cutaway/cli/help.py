"""What a command prints of itself: a screen with -h, with --help all options or one group.

Knows argparse's groups and actions; the words are those of the options themselves.
"""

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from copy import copy
from textwrap import fill
from typing import TYPE_CHECKING, Any

from cutaway.errors import InputError

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

LINES = 30
"""How many lines -h prints at most."""
_EXAMPLES = 3


class Help(Action):
    """``-h``, and ``--help`` with or without the name of a group: print it and exit."""

    def __call__(  # noqa: D102
        self, parser: Any, _namespace: object, values: object, option: str | None = None
    ) -> None:
        print(screen(parser, parser.common) if option == "-h" else of_group(parser, values), end="")
        sys.stdout.flush()
        parser.exit()


def screen(parser: ArgumentParser, common: Sequence[str]) -> str:
    """What the command does, the options that people use most, and three examples.

    All that there is, where that fits. common: those options; without any, the command's own
    """
    whole = complete(parser)
    if parser.usage or len(whole.splitlines()) <= LINES:
        return whole
    options = _options(parser)
    shown = [a for a in options if {*a.option_strings} & {*(common or _own(parser))}]
    formatter = _formatter(parser)
    formatter.start_section("arguments")
    formatter.add_arguments([_brief(a) for a in (*_positionals(parser), *shown)])
    formatter.end_section()
    _, _, examples = (parser.epilog or "").partition("examples:\n")
    shown_examples = ["examples:", *examples.split("\n\n")[0].splitlines()[:_EXAMPLES], ""]
    more = f"'{parser.prog} --help' says more."
    if len(shown) < len(options):
        groups = ", ".join(map(_name, _groups(parser)))
        more = (
            f"'{parser.prog} --help' explains all {len(options)} options, '--help GROUP' those of "
            f"one group: {groups}."
        )
    parts = (_head(parser), formatter.format_help(), "\n".join(shown_examples), fill(more, 80))
    return "\n".join(parts) + "\n"


def complete(parser: ArgumentParser) -> str:
    """All options under the headings of their groups, and the examples."""
    if parser.usage:  # a list of commands
        return f"{_head(parser)}\n{parser.epilog}"
    return _head(parser) + "\n" + _sections(parser, _groups(parser)) + f"\n{parser.epilog or ''}"


def of_group(parser: ArgumentParser, name: object) -> str:
    """Its options; all, where none is named. InputError where the command has no such group."""
    if name is None:
        return complete(parser)
    groups = {_name(group): group for group in _groups(parser)}
    if name not in groups:
        raise InputError(f"--help: there is no group {name!r}; choose one of {', '.join(groups)}")
    return _sections(parser, [groups[str(name)]])


def _head(parser: ArgumentParser) -> str:
    words = [parser.prog, *(["[options]"] if _options(parser) else [])]
    for action in _positionals(parser):
        name = str(action.metavar or action.dest).upper()
        name += " ..." if action.nargs in ("*", "+") else ""
        words.append(f"[{name}]" if action.nargs in ("?", "*") else name)
    return f"usage: {parser.usage or ' '.join(words)}\n\n{parser.description}\n"


def _sections(parser: ArgumentParser, groups: Iterable["_ArgumentGroup"]) -> str:
    formatter = _formatter(parser)
    for group in groups:
        formatter.start_section(group.title)
        formatter.add_arguments(group._group_actions)
        formatter.end_section()
    return formatter.format_help()


def _groups(parser: ArgumentParser) -> list["_ArgumentGroup"]:
    return [g for g in parser._action_groups if any(a.help != SUPPRESS for a in g._group_actions)]


def _own(parser: ArgumentParser) -> list[str]:
    """The options that are the command's own, and its model."""
    own = [g for g in _groups(parser) if g.title not in ("options", "model", "sampling")]
    loose = parser._optionals._group_actions
    actions = [*loose, *(a for group in own for a in group._group_actions)]
    return ["-m", *(flag for action in actions for flag in action.option_strings)]


def _name(group: "_ArgumentGroup") -> str:
    """The title up to a colon."""
    return str(group.title).partition(":")[0]


def _positionals(parser: ArgumentParser) -> Sequence[Action]:
    return parser._positionals._group_actions


def _options(parser: ArgumentParser) -> list[Action]:
    """Those that do more than show this help."""
    return [
        a for a in parser._actions
        if a.option_strings and a.help != SUPPRESS and not isinstance(a, Help)
    ]  # fmt: skip


def _formatter(parser: ArgumentParser) -> RawDescriptionHelpFormatter:
    return RawDescriptionHelpFormatter(parser.prog)


def _brief(action: Action) -> Action:
    """It, with the first clause of its help, and its default."""
    first, *others = re.split(r"; |\. ", action.help or "")
    brief = copy(action)
    brief.help = "; ".join([first, *(part for part in others if part.startswith("default "))])
    return brief
