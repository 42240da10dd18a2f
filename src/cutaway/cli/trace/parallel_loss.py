"""``cutaway trace parallel-loss``: the bits lost by revealing the cells of each pass together."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.base.counting import count_from_1
from cutaway.cli.options import arguments
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table
from cutaway.trace import Trace

if TYPE_CHECKING:
    from cutaway.rerun import Price

_COLUMNS = """
  together  surprise in bits of the tokens as they were drawn, each without knowing the others
  apart     the same, one after the other: each given those before it
  loss      apart minus together: above 0 where the tokens do not fit together
  bound     sum of the cells' entropies without the largest: the most that drawing together can
            cost, on average, over drawing one after the other
""".strip("\n")
EPILOG = f"""
examples:
  cutaway denoise -m path/to/llada "The sky is" --steps 8 --trace canvas.jsonl
  cutaway trace parallel-loss canvas.jsonl -m path/to/llada

{_COLUMNS}
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace parallel-loss``."""
    parser.add_argument("file", metavar="FILE", help="a trace of a canvas")
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Measure the loss, and print a line per pass."""
    trace = Trace.read(args.file)
    llm = console.load(args)
    from cutaway.rerun import price_of_trace

    with console.progress(show=not args.quiet) as progress:
        price = price_of_trace(llm, trace, progress=progress)
    print_report(args, price.to_dict, lambda: _report(price))
    return 0


def _report(price: "Price") -> list[str]:
    head = ("pass", "cells", "together", "   apart", "    loss", "   bound")
    rows = [
        (
            f"{count_from_1(p.index):4d}", f"{p.cells:5d}", f"{p.together:8.2f}", f"{p.apart:8.2f}",
            f"{p.price:+8.2f}", f"{p.bound:8.2f}",
        )
        for p in price.passes
    ]  # fmt: skip
    cells = sum(p.cells for p in price.passes)
    per_cell = f", {price.price / cells:+.3f} a cell" if cells else ""
    closing = f"{price.price:+.2f} bits in all{per_cell}; bound {price.bound:.2f}"
    return [*table([head, *rows]), "", *_COLUMNS.splitlines(), "", closing]
