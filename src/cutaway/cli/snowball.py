"""``cutaway snowball``: how one mistake grows in the text that follows it."""

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli import arguments, console, fork_curves
from cutaway.cli.fork_curves import EXPLAINED
from cutaway.cli.terminal import streams
from cutaway.cli.terminal.drawing import Style, clip, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cutaway.rerun import Fork, Snowball

_EPILOG = f"""
examples:
  cutaway snowball "The old lighthouse"
  cutaway snowball "The old lighthouse" --errors 16 --max-tokens 128 --seed 7
  cutaway snowball "The old lighthouse" --at 4,20 --rank 3 --temperature 0
  cutaway snowball "The old lighthouse" --svg snowball.svg

A text is written; then, once for each mistake, again up to it, with the likeliest other token in
its place, and on with the same luck. By distance from the mistake:
{EXPLAINED}
  parted       the share of the texts whose word here is not the original's
"""
_TEXT = 48  # cells of a continuation that are shown


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway snowball``."""
    parser.epilog = _EPILOG
    parser.add_argument("prompt", help="the text to continue; - reads standard input")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--errors", type=int, metavar="N",
        help="so many mistakes, spread over the first half of the text; default 8",
    )  # fmt: skip
    where.add_argument(
        "--at", type=arguments.ids, metavar="STEP,STEP", help="at these steps instead, from 0"
    )
    parser.add_argument(
        "--rank", type=int, default=1, metavar="R",
        help="take the R-th likeliest of the other tokens; default 1",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="tokens of the text; default 64"
    )
    arguments.add_experiment_arguments(parser)


def run(args: Namespace) -> int:
    """Run the experiment and print it."""
    prompt, options = arguments.read_text(args.prompt), arguments.request_options(args)
    streams.check_output("--svg", args.svg)
    llm = console.load(args)
    from cutaway.rerun import snowball

    options |= {"errors": args.errors, "at": args.at, "rank": args.rank}
    with console.progress(show=not args.quiet) as progress:
        done = snowball(llm, prompt, progress=progress, **options)
    if args.svg:
        _draw(args.svg, done)
    if args.json:
        streams.print_json(done.to_dict())
    else:
        style = Style.of(sys.stdout)
        print("\n".join(map(style.text, _report(done, llm.detokenize, style))))
    return 0


def _report(done: "Snowball", to_text: "Callable[[Sequence[int]], str]", style: Style) -> list[str]:
    text, count = done.original, len(done.forks)
    told = f"{count} mistakes" if count > 1 else "1 mistake"
    lines = [f"{text.text!r}", f"{len(text.token_ids)} tokens, seed {text.seed}, {told}", ""]
    head = (" at", "instead of", "bits", "mistake", "bits", "then", "meets again")
    rows = [
        (
            f"{fork.at:3d}", repr(to_text([fork.instead_of])), f"{fork.instead_bits:4.1f}",
            repr(to_text([fork.token_id])), f"{fork.bits:4.1f}",
            clip(repr(to_text(fork.token_ids)), _TEXT), _reconvergence(fork),
        )
        for fork in done.forks
    ]  # fmt: skip
    forced, cost, free = (done.mean(name) for name in ("forced", "cost", "free"))
    curves = fork_curves.lines(style, forced, cost, free, done.parted)
    return [*lines, *table([head, *rows]), "", *curves]


def _reconvergence(fork: "Fork") -> str:
    if fork.reconvergence is None:
        return "-"
    shift = f", {fork.reconvergence.shift:+d}" if fork.reconvergence.shift else ""
    return f"after {fork.reconvergence.distance}{shift}"


def _draw(path: str, done: "Snowball") -> None:
    from cutaway.cli import svg
    from cutaway.rerun import bands

    shown = {"said again": "forced", "own words": "free"}
    lines = {name: done.by_position(curve) for name, curve in shown.items()}
    title = f"How a mistake grows: KL after {len(done.forks)} mistakes"
    svg.write(path, svg.chart(title, "tokens after the mistake", bands(done.horizon), lines))
