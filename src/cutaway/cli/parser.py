"""argparse as every command uses it: whatever is wrong is one sentence that names the fix."""

import re
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from cutaway import registry
from cutaway.cli.help import Help, complete
from cutaway.errors import InputError
from cutaway.registry import Command

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_RENAMED = {"passed": "--pass"}  # keywords whose options have another name
_KINDS = {"int": "a whole number", "float": "a number"}
_NEGATIVE = re.compile(r"-\.?\d")
_WRONG_KIND = re.compile(r"argument ([^:]+): invalid (int|float) value: (.*)", re.DOTALL)


class Parser(ArgumentParser):
    """A parser that raises InputError where argparse would print its usage and exit."""

    common: Sequence[str] = ()
    """The flags that -h shows; without any, it shows -m and the command's own."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, add_help=False, allow_abbrev=False)
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
        """All options."""
        return complete(self)

    def parse(self, argv: Sequence[str]) -> Namespace:
        """The arguments; SystemExit after --help and --version."""
        end = argv.index("--") if "--" in argv else len(argv)
        options, texts = [*argv[:end]], [*argv[end:]]
        for arg in options:
            name = arg.partition("=")[0]
            if name.startswith("--") and " " not in arg and name not in self._option_string_actions:
                raise self._unknown(name)
        args, left = self.parse_known_args([*self._with_values(options), *texts])
        if left and texts[-len(left) :] == left:
            raise InputError(
                f"unexpected argument {left[0]!r}: behind -- all is text; put options before it, "
                "and a text in quotes"
            )
        if left and left[0].startswith("-"):
            raise self._unknown(left[0])
        if left:
            raise InputError(f"unexpected argument {left[0]!r}; put a text in quotes")
        return args

    def _with_values(self, options: list[str]) -> list[str]:
        """The options, each in one word with a value that begins with a dash, as a file may."""
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
        """What argparse found, in one sentence."""
        if wrong := _WRONG_KIND.fullmatch(message):
            message = f"{wrong[1]} must be {_KINDS[wrong[2]]}, not {wrong[3]}"
        raise InputError(f"{message.removeprefix('argument ')}; see '{self.prog} --help'")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        (file or sys.stderr).write(message)  # argparse passes over an output that is full

    def _unknown(self, name: str) -> InputError:
        options = [known for known in self._option_string_actions if known.startswith("--")]
        return InputError(
            unknown("option", name, options, otherwise=f"'{self.prog} --help' lists them")
        )


def run_command(
    parser: Parser, kind: str, package: str, helps: Mapping[str, str], argv: list[str],
    *, examples: str, otherwise: str = "", names: Mapping[str, str] = MappingProxyType({}),
) -> int:  # fmt: skip
    """Run the command that the arguments begin with; its exit code.

    parser     of what may stand instead of a command, such as --help; its prog is the words before
    kind       of these commands: "command", or "verb" of a command
    package    where their modules are, each of the command's name
    helps      name -> help. Those of features come after them, and those of other packages where
               --help lists all or a name is not known. A module is imported when its
               command is chosen. It has ``add_arguments(parser)``, ``run(args) -> int``, an EPILOG
               of the help, whose examples come first, and COMMON, the options that -h shows, if
               they are more than fit a screen; where it has verbs, VERBS and ``run(argv) -> int``
    otherwise  what to say of a name that is like none of them
    names      other names of theirs, which an error corrects
    """
    _, *within = parser.prog.split()
    name, *rest = argv or [""]
    lists, whole = name[:1] in ("", "-"), "--help" in argv
    known = commands_of(package, helps, *within, others=whole)
    if not lists and name not in known:  # those of other packages, which take 40 ms to find
        known = commands_of(package, helps, *within)
    if lists:
        parser.usage = f"{parser.prog} {kind.upper()} ..."
        parser.epilog = f"{kind}s:\n{_listing(known, whole=whole)}\n{examples}"
        parser.parse(argv)  # exits for --help
        parser.print_help(sys.stderr)
        return 2
    if name not in known:
        if name in names:
            raise InputError(f"unknown {kind} {name!r}; did you mean {names[name]!r}?")
        raise InputError(unknown(kind, name, known, otherwise))
    return _run(f"{parser.prog} {name}", known[name], rest)


def commands_of(
    package: str, helps: Mapping[str, str], *within: str, others: bool = True
) -> dict[str, Command]:
    """The commands whose modules are in a package, then those that features add to them.

    within: the words before them. others: those of other packages' features, too
    """
    own = {name: Command(help, f"{package}.{name}") for name, help in helps.items()}
    return own | registry.commands(*within, others=others)


def words_of(package: str, helps: Mapping[str, str], *within: str) -> Iterator[tuple[str, ...]]:
    """The words of each of these commands, and of its verbs."""
    for name, command in commands_of(package, helps, *within).items():
        yield (*within, name)
        verbs = getattr(import_module(command.module), "VERBS", None)
        if verbs is not None:
            yield from words_of(command.module, verbs, *within, name)


def _run(prog: str, command: Command, argv: list[str]) -> int:
    module = import_module(command.module)
    given: Namespace | list[str] = argv
    if hasattr(module, "add_arguments"):
        own = Parser(prog, f"{command.help[0].upper()}{command.help[1:]}.")
        own.epilog, own.common = module.EPILOG, getattr(module, "COMMON", "").split()
        module.add_arguments(own)
        given = own.parse(argv)
    code: int = module.run(given)
    return code


def _listing(commands: Mapping[str, Command], *, whole: bool) -> str:
    rare = [name for name, command in commands.items() if command.rare and not whole]
    lines = [f"  {name:<10} {row.help}" for name, row in commands.items() if name not in rare]
    if rare:
        also = f"also: {', '.join(rare)}; --help says what each does"
        lines += wrap(also, 80, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def unknown(what: str, name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A sentence on an unknown name: a known one that is close, else ``otherwise`` or all."""
    from difflib import get_close_matches

    hint = otherwise or f"choose one of {', '.join(known := [*known])}"
    close = get_close_matches(name.lower(), known, n=1)
    if close and close[0] != name:
        hint = f"did you mean {close[0]!r}?"
    return f"unknown {what} {name!r}; {hint}"


def as_typed(message: str, argv: Sequence[str]) -> str:
    """The sentence with keywords as options: "top_p must be …" is "--top-p must be …".

    The first word is one if it was typed, and so is every keyword of a request with an underscore;
    a place in a list, as in stop[0], is not typed. Stages of a chain have such names, too, and what
    is said of a line of a file keeps those that are in the file.
    """
    from cutaway.requests.keywords import KEYWORDS

    first = re.match(r"(\w+)(\[\d+\])?", message)
    if first is None or re.search(r"\bline \d", message):
        return message
    flags = {name: row.flag_name(name) for name, row in KEYWORDS.items()}
    flag = (_RENAMED | flags).get(first[1], f"--{first[1].replace('_', '-')}")
    if flag in {word.partition("=")[0] for word in argv}:
        message = flag + message[first.end() :]
    if first[1] == "chain":
        return message
    keyword = rf"(?<![\w.(-])({'|'.join(name for name in flags if '_' in name)})(?!\w)(\[\d+\])?"
    return re.sub(keyword, lambda found: flags[found[1]], message)
