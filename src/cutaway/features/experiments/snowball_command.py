"""``cutaway snowball``: how one wrong token changes the text that follows it."""

import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from typing import TYPE_CHECKING

from cutaway.base.counting import check_index, count_from_1
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import Style, clip, print_report, quote, table, text_of
from cutaway.cli.terminal.streams import check_output
from cutaway.cli.trace.diff import EXPLAINED, PARTED_NOTE, curve_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cutaway.features.experiments.snowball import Snowball
    from cutaway.rerun import Fork

COMMON = "-m --errors --at --rank --max-tokens --seed --svg --json"
EPILOG = f"""
examples:
  cutaway snowball "The old lighthouse"
  cutaway snowball "The old lighthouse" --errors 16 --max-tokens 128 --seed 7
  cutaway snowball "The old lighthouse" --at 4,20 --rank 3 --temperature 0
  cutaway snowball "The old lighthouse" --svg snowball.svg

A text is generated. Then, for each of several places: the same text up to there, another token in
place of the original's (the mistake), and the continuation with the same luck. Tables are means
over the mistakes, by distance from them:
{EXPLAINED}
{PARTED_NOTE}
"""
_TEXT = 48  # columns in which a continuation is shown
_FORKS = """
  at        the step of the mistake, from 1
  bits      surprise of the original's token, and of the mistake, under the model
  rejoins   tokens until the text repeats 8 tokens in a row of the original; +N: found N later there
""".strip("\n")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway snowball``."""
    parser.add_argument("prompt", help="the text to continue; - reads standard input")
    places = parser.add_mutually_exclusive_group()
    places.add_argument(
        "--errors", type=int, metavar="N",
        help="number of mistakes, spread over the first half of the text; default 8",
    )  # fmt: skip
    places.add_argument(
        "--at", type=arguments.read_steps, metavar="STEP,STEP",
        help="make the mistakes at these steps, from 1",
    )  # fmt: skip
    rank = "the mistake is the R-th likeliest other token"
    arguments.add_number(parser, "--rank", 1, rank, metavar="R")
    arguments.add_number(parser, "--max-tokens", 64, "length of the text")
    arguments.add_experiment_arguments(parser)


def run(args: Namespace) -> int:
    """Run the experiment and print it."""
    prompt, options = namespace.read_text(args.prompt), namespace.request_options(args)
    for index in args.at or ():
        check_index("--at", index, range(args.max_tokens - 1))
    check_output("--svg", args.svg)
    llm = console.load(args)
    from cutaway.features.experiments.snowball import snowball

    options |= {"errors": args.errors, "at": args.at, "rank": args.rank}
    with console.progress(show=not args.quiet) as progress:
        done = snowball(llm, prompt, progress=progress, **options)
    if args.svg:
        _draw(args.svg, done)
    text_of_ids, style = partial(text_of, llm.tokenizer), Style.from_stream(sys.stdout)
    print_report(args, done.to_dict, lambda: _report(done, text_of_ids, style))
    return 0


def _report(
    done: "Snowball", text_of_ids: "Callable[[Sequence[int]], str]", style: Style
) -> list[str]:
    text, count = done.original, len(done.forks)
    mistakes = f"{count} mistakes" if count > 1 else "1 mistake"
    lines = [f"{text.text!r}", f"{len(text.token_ids)} tokens, seed {text.seed}, {mistakes}", ""]
    head = (" at", "original", "bits", "mistake", "bits", "then", "rejoins")
    rows = [
        (
            f"{count_from_1(fork.at):3d}", quote(text_of_ids([fork.instead_of])),
            f"{fork.instead_bits:4.1f}", quote(text_of_ids([fork.token_id])), f"{fork.bits:4.1f}",
            clip(quote(text_of_ids(fork.token_ids)), _TEXT), _rejoins(fork),
        )
        for fork in done.forks
    ]  # fmt: skip
    forced, cost, free = (done.mean(name) for name in ("forced", "cost", "free"))
    curves = curve_table(style, forced, cost, free, done.parted)
    return [*lines, *table([head, *rows]), "", *_FORKS.splitlines(), "", *curves]


def _rejoins(fork: "Fork") -> str:
    if fork.reconvergence is None:
        return "-"
    shift = f", {fork.reconvergence.shift:+d}" if fork.reconvergence.shift else ""
    return f"after {fork.reconvergence.distance}{shift}"


def _draw(path: str, done: "Snowball") -> None:
    from cutaway.features.measure import svg
    from cutaway.rerun import bands

    curves = ("forced", "free")
    lines = {name: done.average_bands(name) for name in curves}
    title = f"How a mistake grows: KL after {len(done.forks)} mistakes"
    svg.write(path, svg.chart(title, "tokens after the mistake", bands(done.horizon), lines))
