"""``cutaway --completion SHELL``: the script by which a shell completes commands and options.

Knows argparse's actions and the scripts of three shells. Words other than commands and options are
left to the shell, which completes file names.
"""

import re
from argparse import SUPPRESS, Action
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cutaway.cli.options.parser import Parser, commands_of, import_command

_BASH = """\
_cutaway() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before="${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}" offer=
    case " $before${{before:+ }}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$offer" -- "$current"))
}}
complete -o default -F _cutaway cutaway
"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"

_Place = tuple[tuple[str, ...], Mapping[str, str], list[Action]]
"""The words of a command, its verbs with their help, and its options."""


class ShellCompletion(Action):
    """Print the script for a shell and exit. const: (the commands' package, name -> help)"""

    def __call__(self, parser: Any, _: object, shell: Any, _option: object = None) -> None:  # noqa: D102
        print(SCRIPTS[shell](_places((), *self.const)), end="")
        parser.exit()


def _places(words: tuple[str, ...], package: str, helps: Mapping[str, str]) -> Iterator[_Place]:
    """Yield the places of the command with these words, and of the commands below it."""
    commands = commands_of(package, helps, *words)
    yield words, {name: command.help for name, command in commands.items()}, []
    for name, command in commands.items():
        within = (*words, name)
        module = import_command(command)
        if hasattr(module, "add_arguments"):
            parser = Parser("", "")
            module.add_arguments(parser)
            options = [a for a in parser._actions if a.option_strings and a.help != SUPPRESS]
            yield within, {}, options
        else:
            yield from _places(within, command.module, module.VERBS)


def _bash(places: Iterable[_Place]) -> str:
    cases = []
    for words, verbs, options in places:
        begin = "".join(f" {word}" for word in words)
        if verbs:
            cases.append(f'"{begin} ") offer="{" ".join(verbs)}" ;;')
            continue
        for option in options:
            if option.choices:
                here = "|".join(f'"{begin}"*" {name} "' for name in option.option_strings)
                cases.append(f'{here}) offer="{" ".join(option.choices)}" ;;')
        names = " ".join(name for option in options for name in option.option_strings)
        cases.append(f'"{begin} "*) [[ $current == -* ]] && offer="{names}" ;;')
    return _BASH.format(cases="\n".join(f"        {case}" for case in cases))


def _fish(places: Iterable[_Place]) -> str:
    lines = []
    for words, verbs, options in places:
        seen = [f"__fish_seen_subcommand_from {word}" for word in words]
        if verbs:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(verbs)}")
        command_line = f"complete -c cutaway -n '{'; and '.join(seen)}'"
        lines += [f"{command_line} -f -a {name} -d {_quote(help)}" for name, help in verbs.items()]
        for option in options:
            names = (
                f"-l {n[2:]}" if n[:2] == "--" else f"-s {n[1]}" for n in option.option_strings
            )
            value = f"-x -a '{' '.join(option.choices)}'" if option.choices else "-r"
            value = "" if option.nargs in (0, "?") else value
            help = re.split(r"; |\. ", option.help or "")[0] % vars(option)
            lines.append(f"{command_line} {' '.join(names)} {value} -d {_quote(help)}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": _bash, "zsh": lambda places: _ZSH + _bash(places), "fish": _fish}
"""Shell -> the function that writes its script."""
