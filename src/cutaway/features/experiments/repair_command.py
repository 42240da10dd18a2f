"""``cutaway repair``: which rules take a wrong token back, and what it changes."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.base.progress import texts_done
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table

if TYPE_CHECKING:
    from cutaway.features.experiments.repair import Repaired
    from cutaway.rerun import Estimate

_COLUMNS = """
  gone      how often another token is in the cell at the end: the repair rate
  own       the same for the run's own token there, without the mistake
  restored  how often it is the token that is there without the mistake
  differ    how many other cells end with another token than without the mistake
  later     the same, as a share of the cells that were masked after the mistake
""".strip("\n")
COMMON = "-m --rule --errors --seeds --max-tokens --temperature --seed --json"
EPILOG = f"""
examples:
  cutaway repair "Mr. Darcy " -m toy-canvas
  cutaway repair "Mr. Darcy " -m toy-canvas --rule edit,edit-threshold=0.6 --rule threshold
  cutaway repair "The old lighthouse" -m smollm2 --errors 8 --seeds 2

Canvases follow the prompt. Then, in each of several cells of each: the likeliest other
token is forced into the cell in the pass that revealed it, and the canvas continues with the same
luck. A model that sees only the past has one rule, the loop, which takes nothing back.

{_COLUMNS}
Each with the interval that holds it with 95 % confidence.
"""
_RULE = "a rule, with commas before its settings, as in edit,threshold=0.6; repeat for more"
_HEAD = ("rule", "mistakes", "gone", "own", "restored", "differ", "later")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway repair``."""
    parser.add_argument("prompt", help="the text before the canvas; - reads standard input")
    arguments.add_rules(parser, _RULE)
    parser.add_argument(
        "--errors", type=int, metavar="N",
        help="mistakes in each canvas, each alone, evenly spread; default 8",
    )  # fmt: skip
    arguments.add_number(parser, "--seeds", 4, "canvases of each rule")
    arguments.add_number(parser, "--max-tokens", 32, "cells of a canvas")
    arguments.add_loading_arguments(parser)
    arguments.add_groups(parser, "sampling")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Run the experiment and print it."""
    prompt, options = namespace.read_text(args.prompt), namespace.request_options(args)
    rules = arguments.rules(args)
    options |= {"rules": rules, "errors": args.errors, "seeds": args.seeds}
    llm = console.load(args)
    from cutaway.features.experiments.repair import repair

    with console.progress(show=not args.quiet, figures=texts_done) as progress:
        done = repair(llm, prompt, progress=progress, **options)
    print_report(args, lambda: [repaired.to_dict() for repaired in done], lambda: _report(done))
    return 0


def _report(done: "tuple[Repaired, ...]") -> list[str]:
    rows = [
        (
            repaired.rule, f"{len(repaired.mistakes):8d}",
            _share(repaired.gone), _share(repaired.own_gone), _share(repaired.restored),
            f"{repaired.differ.mean:5.1f} [{repaired.differ.low:.1f}, {repaired.differ.high:.1f}]",
            _share(repaired.later),
        )
        for repaired in done
    ]  # fmt: skip
    return [*table([_HEAD, *rows]), "", *_COLUMNS.splitlines()]


def _share(of: "Estimate | None") -> str:
    return "-" if of is None else f"{of.mean:4.0%} [{of.low:.0%}, {of.high:.0%}]"
