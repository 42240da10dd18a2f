"""argparse as every command uses it: whatever is wrong is one sentence that names the fix."""

import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from cutaway.errors import InputError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_KINDS = {"int": "a whole number", "float": "a number"}
_WRONG_KIND = re.compile(r"argument ([^:]+): invalid (int|float) value: (.*)", re.DOTALL)


class Parser(ArgumentParser):
    """A parser that raises InputError where argparse would print its usage and exit."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, argv: Sequence[str]) -> Namespace:
        """The arguments; SystemExit after --help and --version."""
        for arg in argv[: argv.index("--")] if "--" in argv else argv:
            name = arg.partition("=")[0]
            if name.startswith("--") and " " not in arg and name not in self._option_string_actions:
                raise self._unknown(name)
        args, left = self.parse_known_args(argv)
        if left and left[0].startswith("-"):
            raise self._unknown(left[0])
        if left:
            raise InputError(f"unexpected argument {left[0]!r}; put a text in quotes")
        return args

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
    prog: str,
    help: str,
    argv: list[str],
    add_arguments: Callable[[ArgumentParser], None],
    run: Callable[[Namespace], int],
) -> int:
    """Parse a command's arguments and run it; its exit code."""
    parser = Parser(prog, f"{help[0].upper()}{help[1:]}.")
    add_arguments(parser)
    return run(parser.parse(argv))


def run_verb(
    command: str, about: str, verbs: Mapping[str, str], examples: str, argv: list[str]
) -> int:
    """Run the verb that the arguments of a command begin with; its exit code.

    verbs: with what each does; its module, cutaway.cli.COMMAND.VERB, has ``add_arguments(parser)``
    and ``run(args) -> int``, and is imported when it is chosen
    """
    if not argv or argv[0].startswith("-"):
        parser = Parser(f"cutaway {command}", about)
        parser.usage = f"cutaway {command} VERB FILE ..."
        listing = "\n".join(f"  {verb:<10} {help}" for verb, help in verbs.items())
        parser.epilog = f"verbs:\n{listing}\n{examples}"
        parser.parse(argv)  # exits for --help
        parser.print_help(sys.stderr)
        return 2
    verb, *rest = argv
    if verb not in verbs:
        raise InputError(unknown("verb", verb, verbs))
    module = import_module(f"cutaway.cli.{command}.{verb}")
    prog = f"cutaway {command} {verb}"
    return run_command(prog, verbs[verb], rest, module.add_arguments, module.run)


def unknown(what: str, name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A sentence for a name that is none of those known; ``otherwise`` where none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), known := [*known], n=1)
    hint = otherwise or f"choose one of {', '.join(known)}"
    if close:
        hint = f"did you mean {close[0]!r}?"
    return f"unknown {what} {name!r}; {hint}"
