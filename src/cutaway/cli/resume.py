"""``cutaway resume``: continue a recorded text that was cut, with the same result as without a cut.

A conversation is continued by ``cutaway chat --resume``.
"""

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.base.progress import say
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, reports
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.trace import Trace

COMMON = "-m --url --threads -q"
EPILOG = """
examples:
  cutaway generate "Once upon a time" --max-tokens 2000 --trace run.jsonl      and its process dies
  cutaway resume run.jsonl
  cutaway resume run.jsonl -m model.gguf --threads 1
  cutaway resume run.jsonl --url http://10.0.0.7:8000 --url http://10.0.0.8:8000

The trace says what was asked, which seed was chosen and which tokens came. They are drawn again, at
the speed at which a prompt is read, and compared bit for bit; then text and file
continue. Both are then as if the run had never been cut, but for times. Another model or another
arithmetic is refused, and so is a run that has ended. If the record names the model NAME+q8_0, give
--quantize q8_0; for NAME+kv-q8_0, --kv q8_0. A run that is cut again can be resumed again. The
whole text goes to standard output.

With --url a server ('cutaway serve') writes the rest; if it fails, the next one continues. The
environment variable CUTAWAY_API_KEY has the servers' key, if they need one.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway resume``."""
    parser.add_argument("file", metavar="FILE", help="the trace of a run that was cut")
    parser.add_argument(
        "--url", metavar="URL", action="append", default=[],
        help="a server that writes the rest; may be given several times",
    )  # fmt: skip
    arguments.add_model_arguments(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no statistics")


def run(args: Namespace) -> int:
    """Write the rest, print the whole text, and return 0, or 130 if Ctrl-C ended the rest."""
    from cutaway.trace import Trace

    trace, options = Trace.read(args.file), namespace.request_options(args)
    from cutaway.rerun import check_cut, resume

    check_cut(trace)
    if args.url:
        return _resume_at_servers(args, trace)
    llm = console.load(args)
    with resume(llm, trace, **options) as stream, console.stoppable(stream):
        done = console.write(stream, show=True)
    console.end_line(figures=not args.quiet)
    if not args.quiet:
        count = len(done.token_ids)
        say(reports.statistics(done, None))
        say(f"[{len(trace.steps)} of {count} tokens were on record; trace: {trace.path}]")
    return 130 if done.finish_reason == "aborted" else 0


def _resume_at_servers(args: Namespace, trace: "Trace") -> int:
    from cutaway.rerun import resume_at
    from cutaway.trace import Trace

    if hasattr(args, "model"):
        raise InputError("-m names a model that is loaded here: leave it or --url out")
    count = len(trace.steps)
    output = ""
    for step in resume_at(args.url, trace, os.environ.get("CUTAWAY_API_KEY", "")):
        console.put(step.text)
        output += step.text
    trace = Trace.read(args.file)
    console.put(trace.text[len(output) :])
    console.end_line(figures=not args.quiet)
    if not args.quiet:
        say(f"[{count} of {len(trace.steps)} tokens were on record; trace: {trace.path}]")
    return 0
