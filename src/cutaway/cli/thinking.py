"""What ``cutaway chat`` is told of thinking: its options, and the command /think."""

import json
from argparse import SUPPRESS, ArgumentParser, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import say
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.requests.tools import ToolUse
    from cutaway.text.thinking import ThinkingWish

_OTHERS = ("--think-budget", "--chat-template-kwargs")
_THINK = "let the model think before it answers, as much as LEVEL says (low, medium, high, ...)"
_BUDGET = "tokens of a thought at most; then it is closed"
_VARIABLES = "variables of the model's chat template, as a JSON object"
_SWITCH = {"on": True, "off": False}


def add_arguments(parser: ArgumentParser) -> None:
    """Add --think and what belongs to it."""
    group = parser.add_argument_group("thinking", argument_default=SUPPRESS)
    either = group.add_mutually_exclusive_group()
    either.add_argument("--think", nargs="?", const=True, metavar="LEVEL", help=_THINK)
    either.add_argument("--no-think", dest="think", action="store_false", help="no thoughts")
    group.add_argument("--think-budget", type=int, metavar="N", help=_BUDGET)
    group.add_argument("--chat-template-kwargs", metavar="JSON", help=_VARIABLES)


def wish_of(args: Namespace) -> "ThinkingWish":
    """What the options say; InputError for bad ones."""
    from cutaway.text.thinking import ThinkingWish

    think = getattr(args, "think", None)
    think = _SWITCH.get(think, think) if isinstance(think, str) else think
    variables = _object(getattr(args, "chat_template_kwargs", None))
    name = "--no-think" if think is False else "--think"
    return ThinkingWish(think, getattr(args, "think_budget", None), variables, (name, *_OTHERS))


def changed(wish: "ThinkingWish", word: str) -> "ThinkingWish":
    """As /think says: on, off, or a level."""
    think = _SWITCH.get(word, word)
    tokens = None if think is False else wish.tokens
    return replace(wish, think=think, tokens=tokens, names=("/think", *_OTHERS))


def in_words(wish: "ThinkingWish") -> str:
    """What is set."""
    said = {None: "as the model's template has it", True: "on", False: "off"}
    budget = f", at most {wish.tokens} tokens" if wish.tokens is not None else ""
    return f"{wish.think if isinstance(wish.think, str) else said[wish.think]}{budget}"


def say_notes(use: "ToolUse") -> None:
    """How the wish was read."""
    for note in use.notes:
        say(f"note: {note}")


def _object(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise InputError(
            f"--chat-template-kwargs must be a JSON object, such as '{{\"a\": true}}', not {text}"
        )
    return read
