"""``cutaway trace logits``: full logits, computed again and checked against the record."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from cutaway.base.progress import say
from cutaway.cli.options import arguments
from cutaway.cli.terminal import console, streams
from cutaway.errors import InputError
from cutaway.trace import Trace

EPILOG = """
examples:
  cutaway trace logits run.jsonl --out run.npy
  python -c "import numpy; print(numpy.load('run.npy').shape)"

A trace records a hash of each step's logits, not the logits: they follow from the tokens. Here they
are computed again; a row with another hash is an error. The file is a NumPy array (.npy) of float32
[steps, vocabulary], before temperature and filters.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace logits``."""
    arguments.add_trace(parser)
    parser.add_argument("--out", metavar="OUT.npy", required=True, help="the file to write")
    arguments.add_model_arguments(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def run(args: Namespace) -> int:
    """Compute, check, and write."""
    trace, out = Trace.read(args.file), Path(args.out)
    if out.exists():
        raise InputError(f"--out: {out} exists already; name another file, or remove it")
    streams.check_output("--out", args.out)
    llm = console.load(args)
    import numpy as np

    from cutaway.rerun import logits

    rows = logits(llm, trace)
    try:
        with out.open("xb") as file:
            np.save(file, rows)
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from error
    if not args.quiet:
        steps, vocab = rows.shape
        say(f"[{out}: {steps} steps of {vocab} logits, each with the hash on record]")
    return 0
