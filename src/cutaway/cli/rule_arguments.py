"""Flags for how a canvas is revealed: all settings of a rule, its name alone, or whole rules."""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace

from cutaway.cli.arguments import add_keyword
from cutaway.engine.canvas import RULES, SETTING_WORDS, rule_of_text
from cutaway.requests.keywords import KEYWORDS


def add_rule_arguments(parser: ArgumentParser) -> None:
    """A flag for each setting; what was not given is absent from the namespace."""
    group = parser.add_argument_group("rule", argument_default=SUPPRESS)
    for name, setting in SETTING_WORDS.items():
        flag, help = f"--{name.replace('_', '-')}", setting.help
        if setting.type is bool:
            group.add_argument(flag, action="store_true", help=help)
        elif setting.type is tuple:
            about = f"{help}; repeat for more"
            group.add_argument(
                flag, type=_forced, action="append", metavar=setting.metavar, help=about
            )
        else:
            group.add_argument(flag, type=setting.type, metavar=setting.metavar, help=help)
    group.add_argument("--luck", dest="noise", help=SUPPRESS)  # its earlier name


def add_rule_name(parser: ArgumentParser) -> None:
    """--denoise RULE: answers are canvases."""
    help = f"{KEYWORDS['denoise'].help}; {', '.join(RULES)}"
    add_keyword(parser, "denoise", help, choices=tuple(RULES))


def add_rules(parser: ArgumentParser, help: str) -> None:
    """--rule, any number of times: each a rule with its settings, as a text."""
    parser.add_argument("--rule", action="append", dest="rules", metavar="RULE", help=help)


def rules(args: Namespace) -> list[str] | None:
    """The rules that were given, checked before a model is loaded; None: none was."""
    given: list[str] | None = args.rules
    for rule in given or ():
        rule_of_text(rule)
    return given


def _forced(text: str) -> tuple[int, ...]:
    try:
        passed, cell, token_id = (int(part) for part in text.split(":"))
    except ValueError:
        raise ArgumentTypeError(f"write PASS:CELL:ID, for example 3:9:77: {text!r}") from None
    return passed, cell, token_id
