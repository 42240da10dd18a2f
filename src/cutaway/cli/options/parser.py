"""Argparse for every command, with errors of one sentence that names the fix.

Knows how a command is found and run, and how its help is printed: -h prints one screen, --help all
options or one group. The words are those of the options.
"""

import re
import sys
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    HelpFormatter,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from cutaway import registry
from cutaway.errors import CutawayError, InputError, Name
from cutaway.registry import Command

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from _typeshed import SupportsWrite


_RENAMED = {"passed": "--pass"}  # keywords whose options have another name
_KINDS = {"int": "a whole number", "float": "a number"}
_NEGATIVE = re.compile(r"-\.?\d")
_WRONG_KIND = re.compile(r"argument ([^:]+): invalid (int|float) value: (.*)", re.DOTALL)


class Parser(ArgumentParser):
    """A parser that raises InputError where argparse would print its usage and exit."""

    common: Sequence[str] = ()
    """The flags that -h shows; if empty, -h shows -m and the command's own flags."""

    def __init__(self, prog: str, description: str) -> None:
        # argparse makes a formatter for each argument, and one that asks for the terminal's width
        # imports shutil, with three libraries of compression. Help is printed by others.
        super().__init__(
            prog=prog, description=description, add_help=False, allow_abbrev=False,
            formatter_class=partial(HelpFormatter, width=80),
        )  # fmt: skip
        self._positionals.title = "arguments"
        short, whole = "the options that people use most", "all options, or one group"
        self.add_argument("-h", action=Help, default=SUPPRESS, dest="help", nargs=0, help=short)
        self.add_argument(
            "--help",
            action=Help,
            default=SUPPRESS,
            dest="help",
            nargs="?",
            metavar="GROUP",
            help=whole,
        )

    def format_help(self) -> str:
        """Return the help with all options."""
        return complete(self)

    def parse(self, argv: Sequence[str]) -> Namespace:
        """Return the arguments; SystemExit after --help and --version."""
        end = argv.index("--") if "--" in argv else len(argv)
        options, texts = [*argv[:end]], [*argv[end:]]
        for arg in options:
            name = arg.partition("=")[0]
            if name.startswith("--") and " " not in arg and name not in self._option_string_actions:
                raise self._unknown(name)
        args, left = self.parse_known_args([*self._with_values(options), *texts])
        if left and texts[-len(left) :] == left:
            raise InputError(
                f"unexpected argument {left[0]!r}: after -- all is text; put options before it, "
                "and a text in quotes"
            )
        if left and left[0].startswith("-"):
            raise self._unknown(left[0])
        if left:
            raise InputError(f"unexpected argument {left[0]!r}; put a text in quotes")
        return args

    def _with_values(self, options: list[str]) -> list[str]:
        """Join each option and its value into one word if the value begins with a dash."""
        words: list[str] = []
        for word in options:
            last = self._option_string_actions.get(words[-1]) if words else None
            is_value = word[:1] == "-" and word[1:2] not in ("", "-")
            is_value = is_value and word[:2] not in self._option_string_actions
            if is_value and last and last.nargs is None and not _NEGATIVE.match(word):
                words[-1] += f"={word}"
            else:
                words.append(word)
        return words

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse as one sentence."""
        if wrong := _WRONG_KIND.fullmatch(message):
            message = f"{wrong[1]} must be {_KINDS[wrong[2]]}, not {wrong[3]}"
        raise InputError(f"{message.removeprefix('argument ')}; see '{self.prog} --help'")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        (file or sys.stderr).write(message)  # argparse would ignore a failed write

    def _unknown(self, name: str) -> InputError:
        options = [flag for flag in self._option_string_actions if flag.startswith("--")]
        return InputError(
            unknown("option", name, options, otherwise=f"'{self.prog} --help' lists them")
        )


class Verb(NamedTuple):
    """A verb in a module with several verbs; its fields are what a module of one command has."""

    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    EPILOG: str


def run_command(
    parser: Parser, kind: str, package: str, helps: Mapping[str, str], argv: list[str],
    *, examples: str, otherwise: str = "", names: Mapping[str, str] = MappingProxyType({}),
) -> int:  # fmt: skip
    """Run the command that the arguments begin with, and return its exit code.

    parser     reads options that come instead of a command, such as --help; its ``prog`` is the
               words before the command
    kind       what messages call a command: "command", or "verb" for a command's verbs
    package    a package with a module for each command, or a module with a ``Verb`` for each
    helps      name -> help. The commands of features are added after these. The commands of other
               packages are added only if --help lists all commands or a name is unknown. A module
               is imported when its command is chosen. A module has ``add_arguments(parser)``;
               ``run(args) -> int``; EPILOG, the end of the help, with the examples first; and
               COMMON, the options that -h shows if the whole help does not fit a screen. A module
               with verbs has VERBS and ``run(argv) -> int``
    otherwise  the hint for a name that resembles no command
    names      another name for a command -> the command, which the error for that name suggests
    """
    _, *within = parser.prog.split()
    name, *rest = argv or [""]
    lists = name[:1] in ("", "-")
    whole = lists and "--help" in argv
    commands = commands_of(package, helps, *within, with_plugins=whole)
    if not lists and name not in commands:  # to find other packages' commands takes 40 ms
        commands = commands_of(package, helps, *within)
    if lists:
        parser.usage = f"{parser.prog} {kind.upper()} ..."
        parser.epilog = f"{kind}s:\n{_listing(commands, whole=whole)}\n{examples}"
        parser.parse(argv)  # exits for --help
        parser.print_help(sys.stderr)
        return 2
    if name not in commands:
        if name in names:
            raise InputError(f"unknown {kind} {name!r}; did you mean {names[name]!r}?")
        raise InputError(unknown(kind, name, commands, otherwise))
    return _run(f"{parser.prog} {name}", commands[name], rest)


def commands_of(
    package: str, helps: Mapping[str, str], *within: str, with_plugins: bool = True
) -> dict[str, Command]:
    """Return the commands whose modules are in a package, then the commands of features.

    within: the words before the commands; with_plugins: include other packages' features
    CutawayError if two commands have one name.
    """
    core_commands = {
        name: Command(help, f"{package}.{name.replace('-', '_')}") for name, help in helps.items()
    }
    feature_commands = registry.commands(*within, with_installed=with_plugins)
    if twice := min(core_commands.keys() & feature_commands.keys(), default=""):
        raise CutawayError(f"a feature adds {twice!r}, which is a command already; uninstall it")
    return core_commands | feature_commands


def words_of(package: str, helps: Mapping[str, str], *within: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command of ``commands_of``, and of its verbs."""
    for name, command in commands_of(package, helps, *within).items():
        yield (*within, name)
        verbs = getattr(import_command(command), "VERBS", None)
        if verbs is not None:
            yield from words_of(command.module, verbs, *within, name)


def import_command(command: Command) -> Any:
    """Return a command's module, or its ``Verb`` if the module has several verbs."""
    home, _, name = command.module.rpartition(".")
    if home and not hasattr(module := import_module(home), "__path__"):
        return getattr(module, name)
    return import_module(command.module)


def _run(prog: str, command: Command, argv: list[str]) -> int:
    module = import_command(command)
    parsed: Namespace | list[str] = argv
    if hasattr(module, "add_arguments"):
        command_parser = Parser(prog, f"{command.help[0].upper()}{command.help[1:]}.")
        command_parser.epilog, command_parser.common = (
            module.EPILOG,
            getattr(module, "COMMON", "").split(),
        )
        module.add_arguments(command_parser)
        parsed = command_parser.parse(argv)
    code: int = module.run(parsed)
    return code


def _listing(commands: Mapping[str, Command], *, whole: bool) -> str:
    topics: dict[str, list[str]] = {}
    lines = []
    for name, command in commands.items():
        if command.topic and not whole:
            topics.setdefault(command.topic, []).append(name)
        else:
            lines.append(f"  {name:<10} {command.help}")
    if topics:
        from textwrap import wrap  # only to list commands

        text = "; ".join(f"{topic} ({', '.join(names)})" for topic, names in topics.items())
        lines += wrap(f"see --help: {text}", 80, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def unknown(kind: str, name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return the error for an unknown name; it offers a close name, ``otherwise`` or all names."""
    from difflib import get_close_matches

    hint = otherwise or f"choose one of {', '.join(names := [*names])}"
    close = get_close_matches(name.lower(), names, n=1)
    if close and close[0] != name:
        hint = f"did you mean {close[0]!r}?"
    return f"unknown {kind} {name!r}; {hint}"


def as_typed(error: InputError, argv: Sequence[str]) -> str:
    """Return the error's sentence with each keyword as its option, such as "--top-p must be …".

    The keyword becomes an option if the option was typed, or if the keyword is a request's and has
    an underscore. An index, as in stop[0], is dropped, since nobody types it.
    """
    from cutaway.requests.keywords import KEYWORDS

    if error.name is None:
        return str(error)
    flags = {name: row.flag_name(name) for name, row in KEYWORDS.items()}
    field, *inner = error.path
    flag = (_RENAMED | flags).get(str(field), f"--{str(field).replace('_', '-')}")
    if flag in {word.partition("=")[0] for word in argv} or (field in flags and "_" in str(field)):
        inner = inner if error.index is None else inner[1:]
        error = error.with_name(flag, *inner)
    return "".join(flags.get(w, w) if isinstance(w, Name) else w for w in error.args)


# -- help ------------------------------------------------------------------------------------------


LINES = 30
"""The most lines that -h prints."""
_EXAMPLES = 3


class Help(Action):
    """``-h``, and ``--help`` with or without the name of a group: print the help and exit."""

    def __call__(  # noqa: D102
        self, parser: Any, _namespace: object, values: object, option: str | None = None
    ) -> None:
        print(
            screen(parser, parser.common) if option == "-h" else group_help(parser, values), end=""
        )
        sys.stdout.flush()
        parser.exit()


def screen(parser: ArgumentParser, common: Sequence[str]) -> str:
    """Return the command's description, its most used options, and three examples.

    If the whole help fits a screen, return all of it.
    common: the flags of the most used options; if empty, the command's own flags and -m
    """
    whole = complete(parser)
    if parser.usage or len(whole.splitlines()) <= LINES:
        return whole
    options = _options(parser)
    common_options = [
        a for a in options if {*a.option_strings} & {*(common or _own_options(parser))}
    ]
    from textwrap import fill  # only to print help

    formatter = _formatter(parser)
    formatter.start_section("arguments")
    formatter.add_arguments([_brief(a) for a in (*_positionals(parser), *common_options)])
    formatter.end_section()
    _, _, examples = (parser.epilog or "").partition("examples:\n")
    shown_examples = ["examples:", *examples.split("\n\n")[0].splitlines()[:_EXAMPLES], ""]
    more = f"'{parser.prog} --help' says more."
    if len(common_options) < len(options):
        groups = ", ".join(map(_name, _groups(parser)))
        more = (
            f"'{parser.prog} --help' explains all {len(options)} options, '--help GROUP' those of "
            f"one group: {groups}."
        )
    parts = (_head(parser), formatter.format_help(), "\n".join(shown_examples), fill(more, 80))
    return "\n".join(parts) + "\n"


def complete(parser: ArgumentParser) -> str:
    """Return all options under the headings of their groups, and the examples."""
    if parser.usage:  # a list of commands
        return f"{_head(parser)}\n{parser.epilog}"
    return _head(parser) + "\n" + _sections(parser, _groups(parser)) + f"\n{parser.epilog or ''}"


def group_help(parser: ArgumentParser, name: object) -> str:
    """Return the options of a group, or of all groups for None; InputError for an unknown name."""
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


def _own_options(parser: ArgumentParser) -> list[str]:
    """Return the flags of the command's own options, and -m."""
    groups = [g for g in _groups(parser) if g.title not in ("options", "model", "sampling")]
    loose = parser._optionals._group_actions
    actions = [*loose, *(a for group in groups for a in group._group_actions)]
    return ["-m", *(flag for action in actions for flag in action.option_strings)]


def _name(group: "_ArgumentGroup") -> str:
    """Return a group's title up to a colon."""
    return str(group.title).partition(":")[0]


def _positionals(parser: ArgumentParser) -> Sequence[Action]:
    return parser._positionals._group_actions


def _options(parser: ArgumentParser) -> list[Action]:
    """Return the options, except those that show the help."""
    return [
        a for a in parser._actions
        if a.option_strings and a.help != SUPPRESS and not isinstance(a, Help)
    ]  # fmt: skip


def _formatter(parser: ArgumentParser) -> RawDescriptionHelpFormatter:
    return RawDescriptionHelpFormatter(parser.prog)


def _brief(action: Action) -> Action:
    """Return a copy of the option whose help is only the first clause and the default."""
    first, *clauses = re.split(r"; |\. ", action.help or "")
    brief = copy(action)
    brief.help = "; ".join([first, *(part for part in clauses if part.startswith("default "))])
    return brief
