"""``cutaway trace export``: a recorded run in formats that other programs read."""

from argparse import ArgumentParser, Namespace

from cutaway.cli.terminal.streams import print_json, print_utf_8
from cutaway.errors import InputError
from cutaway.trace import Trace, to_csv, to_openai

_EPILOG = """
examples:
  cutaway trace export run.jsonl --format openai > logprobs.json
  cutaway trace export run.jsonl --format openai --when after
  cutaway trace export run.jsonl --format csv > run.csv

openai is the "logprobs" object of a chat completion: with --when before, of the model's own logits,
with --when after, among the survivors of the sampling chain. csv has both, in UTF-8.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace export``."""
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE", help="a trace")
    parser.add_argument("--format", choices=("openai", "csv"), required=True)
    parser.add_argument(
        "--when", choices=("before", "after"), help="before (default) or after the sampling chain"
    )


def run(args: Namespace) -> int:
    """Print the whole run."""
    if args.format == "csv" and args.when:
        raise InputError("--when is for --format openai; csv has both")
    trace = Trace.read(args.file)
    if args.format == "csv":
        print_utf_8(to_csv(trace))
    else:
        print_json(to_openai(trace, args.when or "before"))
    return 0
