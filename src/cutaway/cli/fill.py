"""``cutaway fill``: what may stand where a text has a mask."""

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli import arguments, console
from cutaway.cli.terminal import streams
from cutaway.cli.terminal.drawing import Style, table

if TYPE_CHECKING:
    from cutaway.api.filling import Candidate, Filled

_EPILOG = """
examples:
  cutaway fill "Paris is the [MASK] of France."
  cutaway fill "Paris is the [MASK] of France." --targets capital,city,"largest city"
  cutaway fill "The [MASK] chased the [MASK]." --top 3
  cutaway fill -m path/to/bert "Paris is the [MASK] of France." --json

A model that sees the whole text (BERT, RoBERTa, DistilBERT) says what it expects in the place of
each mask, and of several masks which go together. Of a model that writes it follows by Bayes' rule
from what is before the mask and what is behind it: exact among the candidates that are considered,
and told is which share of all continuations these are.
"""
_BAR = 20  # cells of the longest bar


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway fill``."""
    parser.epilog = _EPILOG
    parser.add_argument("text", help="a text with [MASK] in it; - reads standard input")
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="candidates for each mask; default 5"
    )
    parser.add_argument(
        "--targets", metavar="A,B,…",
        help="score these instead, with commas between them; each whole, also of several tokens",
    )  # fmt: skip
    parser.add_argument(
        "--candidates", type=int, default=64, metavar="K",
        help="how many are considered with a model that writes, and how many beginnings of several "
        "masks together; default 64",
    )  # fmt: skip
    arguments.add_loading_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the candidates only")


def run(args: Namespace) -> int:
    """Print a table for each mask."""
    text = arguments.read_text(args.text)
    targets = None if args.targets is None else args.targets.split(",")
    llm = console.load(args)
    found = llm.fill(text, args.top, targets, candidates=args.candidates)
    if args.json:
        streams.print_json(found.to_dict())
    else:
        style = Style.of(sys.stdout)
        print("\n".join(map(style.text, _report(found, style))))
    return 0


def _report(found: "Filled", style: Style) -> list[str]:
    lines = []
    for number, candidates in enumerate(found.masks, 1):
        several = f" {number}" if len(found.masks) > 1 else ""
        lines += [f"mask{several}", *_table(candidates, style), ""]
    if found.joint:
        rows = [
            (f"{one.score:6.2%}", " | ".join(_shown(c) for c in one.candidates))
            for one in found.joint
        ]
        lines += ["together", *table(rows), ""]
    if found.covered is not None:
        lines.append(
            f"by Bayes' rule, among candidates that are {found.covered:.1%} of what may follow"
        )
    return lines if lines[-1] else lines[:-1]


def _table(candidates: "tuple[Candidate, ...]", style: Style) -> list[str]:
    best = max(one.score for one in candidates) or 1.0
    return table(
        [
            (f"{one.score:6.2%}", _shown(one), style.bar(one.score / best, _BAR))
            for one in candidates
        ]
    )


def _shown(one: "Candidate") -> str:
    return repr(one.text)
