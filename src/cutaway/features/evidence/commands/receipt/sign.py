"""``cutaway receipt sign``: the receipt of a run that was recorded."""

from argparse import ArgumentParser, Namespace

from cutaway.cli import arguments
from cutaway.errors import InputError
from cutaway.features.evidence.receipt_files import write
from cutaway.trace import Trace

EPILOG = """
examples:
  cutaway receipt sign run.jsonl --key me.pem

Writes receipt-ROOT.json into this folder, where ROOT begins the receipt's own name, and prints the
file's name. Its size is that of the prompt's ids and three numbers a token.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway receipt sign``."""
    arguments.add_trace(parser)
    parser.add_argument("--key", metavar="FILE", required=True, help="the key that signs")


def run(args: Namespace) -> int:
    """Sign, print the file's name, and return 0."""
    from cutaway.features.evidence.receipt import Receipt
    from cutaway.features.evidence.signing import PrivateKey

    key, trace = PrivateKey.read(args.key), Trace.read(args.file)
    if trace.end is None:
        raise InputError(f"{args.file}: the run has no end, and a receipt is of a whole run")
    print(write(Receipt.of(trace.head, trace.steps, trace.end, key)))
    return 0
