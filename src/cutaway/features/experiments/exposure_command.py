"""``cutaway exposure``: a human text read by the model, beside what it writes itself."""

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import Style, print_report, table
from cutaway.cli.terminal.streams import check_output

if TYPE_CHECKING:
    from cutaway.features.experiments.exposure import Exposure

_COLUMNS = """
  after     tokens since the cut
  reads     surprise of the human's tokens
  writes    surprise of the model's own tokens
  gap       writes - reads, with its 95 % confidence interval
  entropy   of the next token: after the human's tokens, and after the model's own
  drift     the second entropy minus the first, with its interval: 0 if the model's texts
            were like the human's
""".strip("\n")
COMMON = "-m --points --before --tokens --temperature --seed --svg --json"
EPILOG = f"""
examples:
  cutaway exposure book.txt
  cutaway exposure book.txt --points 64 --tokens 128 --svg exposure.svg
  cutaway exposure book.txt --temperature 0.7 --top-p 0.9

The text is cut at several points. After each cut the model reads what the human wrote
(teacher forcing), and generates a continuation of its own from the same point. Means over the
cuts, in bits:
{_COLUMNS}
By default the model samples from its own distribution (temperature 1, top-p 1).
"""
_BAR = 12  # columns of the longest bar


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway exposure``."""
    parser.add_argument("file", metavar="FILE", help="a text in UTF-8; - reads standard input")
    points = "at most N cuts, whose continuations do not overlap"
    arguments.add_number(parser, "--points", 32, points)
    arguments.add_number(parser, "--before", 64, "tokens of the text before each cut")
    arguments.add_number(parser, "--tokens", 64, "tokens read and generated after each cut")
    arguments.add_experiment_arguments(parser)


def run(args: Namespace) -> int:
    """Run the experiment and print it."""
    text, options = namespace.read_file(args.file), namespace.request_options(args)
    check_output("--svg", args.svg)
    llm = console.load(args)
    from cutaway.features.experiments.exposure import exposure

    options |= {"points": args.points, "before": args.before, "tokens": args.tokens}
    with console.progress(show=not args.quiet) as progress:
        done = exposure(llm, text, progress=progress, **options)
    if args.svg:
        _draw(args.svg, done)
    print_report(args, done.to_dict, lambda: _report(done, Style.from_stream(sys.stdout)))
    return 0


def _report(done: "Exposure", style: Style) -> list[str]:
    from cutaway.features.experiments.exposure import CURVES
    from cutaway.rerun import bands, span

    means = {name: done.average_bands(name) for name in CURVES}
    high = max(e.mean for name in ("reads", "writes") for e in means[name])
    rows = []
    for i, part in enumerate(bands(done.reads.shape[1])):
        at = {name: curve[i] for name, curve in means.items()}
        bars = (
            f"{mean:5.2f} {style.bar(mean / high, _BAR)}"
            for mean in (at["reads"].mean, at["writes"].mean)
        )
        expects = (f"{at[name].mean:7.2f}" for name in ("expects_human", "expects_own"))
        rows.append((span(part), *bars, f"{at['gap']!s:>20}", *expects, f"{at['drift']!s:>20}"))
    count, first = len(done.windows), done.windows[0]
    title = f"{count} cuts, {len(first.context)} tokens before and {len(first.human)} after each"
    head = ("after", "reads", "writes", f"{'gap':>20}", "entropy", "    own", f"{'drift':>20}")
    return [title, "", *table([head, *rows]), "", *_COLUMNS.splitlines()]


def _draw(path: str, done: "Exposure") -> None:
    from cutaway.features.measure import svg
    from cutaway.rerun import bands

    curves = {"reads (human)": "reads", "writes (own)": "writes", "drift": "drift"}
    lines = {name: done.average_bands(curve) for name, curve in curves.items()}
    title = f"Exposure: surprise after {len(done.windows)} cuts"
    svg.write(path, svg.chart(title, "tokens after the cut", bands(done.reads.shape[1]), lines))
