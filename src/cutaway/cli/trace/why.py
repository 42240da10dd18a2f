"""``cutaway trace why``: which condition ended a text, and why it did not end earlier."""

import sys
from argparse import ArgumentParser, Namespace

from cutaway.cli.terminal.drawing import Style
from cutaway.cli.terminal.streams import print_json
from cutaway.errors import InputError
from cutaway.trace import Trace, why
from cutaway.trace.constraint import constraint_sentences
from cutaway.trace.endings import CLOSEST, Why, outcome_phrase, status_sentence

_EPILOG = """
examples:
  cutaway trace why run.jsonl
  cutaway trace why run.jsonl --closest 20
  cutaway trace why run.jsonl --json          every step
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace why``."""
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE", help="a trace")
    parser.add_argument(
        "--closest", type=int, default=CLOSEST, metavar="N",
        help=f"list the N steps at which an end was likeliest; default {CLOSEST}",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: Namespace) -> int:
    """Answer from the record alone."""
    if args.closest < 0:
        raise InputError(f"--closest must be 0 or more, not {args.closest}")
    trace = Trace.read(args.file)
    answer = why(trace, args.closest)
    if args.json:
        print_json(answer.to_dict())
    else:
        style = Style.of(sys.stdout)
        print("\n".join(style.text(line) for line in _lines(trace, answer)))
    return 0


def _lines(trace: Trace, answer: Why) -> list[str]:
    lines = [answer.sentence, *constraint_sentences(trace), ""]
    if not answer.moments:
        return [*lines, "No end token is on record at any step."]
    counts = (f"{outcome_phrase(name)} ({count})" for name, count in answer.outcomes.items())
    lines.append(f"At {len(answer.moments)} steps, the end token {', '.join(counts)}.")
    if answer.closest:
        lines += ["The text came closest to ending before at", *_closest(trace, answer)]
    return lines


def _closest(trace: Trace, answer: Why) -> list[str]:
    return [f"  {status_sentence(trace, moment)}" for moment in answer.closest]
