"""``cutaway trace ablate``: what a step would have said without each part of the text."""

import shutil
import sys
from argparse import ArgumentParser, Namespace
from functools import partial

from cutaway.cli import arguments, console, namespace
from cutaway.cli.terminal import drawing, streams
from cutaway.cli.terminal.tokens import text_of
from cutaway.trace import Trace

EPILOG = """
examples:
  cutaway trace ablate run.jsonl --step 12
  cutaway trace ablate run.jsonl --step 12 --by word --rival " never"
  cutaway trace ablate run.jsonl --step 12 --by sentence --budget 10
  cutaway trace ablate run.jsonl --step 12 --how other --other " the"

Each part is left out in turn, and the rest is run again: exactly, in batches, with the same luck.
  log p lost  of the token, in nats: at 0.7 it is half as likely without the part, at 2.3 a tenth
  margin lost  of the token over its rival
  drawn        what the same luck then draws, where it is another
Beside them attention weights and logit attribution: docs/inside.md.
delete: what follows moves up. knock_out: no later token attends to the part; positions stay.
other: the model's own likeliest other token, or --other, in each place but the first. The parts
with the largest attributions come first; after --budget seconds, or Ctrl-C, those done are printed.
"""
_SOON_S = 1.0  # what is done by then shows no progress


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace ablate``."""
    arguments.add_step(parser)
    for flag, default, text in (
        ("--by", "token", "what a part is: token, word, line or sentence"),
        ("--how", "delete", "how it is taken away: delete, knock_out or other"),
    ):
        parser.add_argument(flag, default=default, help=f"{text}; default {default}")
    parser.add_argument(
        "--other", metavar="TOKEN", help="with --how other: this token, as text or id"
    )
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="after this time, print what is done"
    )
    arguments.add_model_arguments(parser)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Leave parts out, print what that changed, and return 0, or 130 where Ctrl-C ended it."""
    trace = Trace.read(args.file)
    llm = console.load(args)
    from cutaway.features.inside import ablate
    from cutaway.features.inside.commands import ablate_tables as tables

    stop, show = console.Stop(), not args.quiet
    bars = console.progress(
        show=show, after=_SOON_S,
        figures=lambda done, total, seconds: f"{done} of {total} {args.by}s, {seconds:.0f} s",
    )  # fmt: skip
    with console.stoppable(stop), bars as report:
        done = ablate(
            llm, trace, args.step, by=args.by, how=args.how, budget_s=args.budget,
            other=namespace.token(args.other), rival=namespace.token(args.rival),
            progress=report, stopped=lambda: stop.stop_asked,
        )  # fmt: skip
    if args.json:
        streams.print_json(done.to_dict(llm.tokenizer.token_name))
    else:
        style, cells = drawing.Style.of(sys.stdout), shutil.get_terminal_size().columns
        print("\n".join(tables.lines(done, partial(text_of, llm.tokenizer), style, cells)))
    return 130 if stop.stop_asked else 0
