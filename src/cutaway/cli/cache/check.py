"""``cutaway cache check``: whether all of a saved prefix is as it was written. Needs no model."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from cutaway.base.progress import Bar, megabytes
from cutaway.cli.arguments import add_report_arguments
from cutaway.cli.terminal import streams
from cutaway.files.prefix import PrefixReader

EPILOG = """
examples:
  cutaway cache check book.prefix
  for file in *.prefix; do cutaway cache check "$file" || rm "$file"; done

A damaged file is one sentence, and exit code 2. Whether it is of a model is seen where it is used.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache check``."""
    parser.add_argument("file", metavar="FILE", help="the saved prefix")
    add_report_arguments(parser, "no progress, and no line")


def run(args: Namespace) -> int:
    """Read it; 0 where it is whole."""
    with PrefixReader(Path(args.file).expanduser()) as file:
        with Bar("checking", sum(file.head.block_bytes), show=not args.quiet, after=1) as bar:
            file.check(bar.update)
        tokens = len(file.head.token_ids)
    if args.json:
        streams.print_json({"path": str(file.path), "tokens": tokens, "bytes": file.nbytes})
    elif not args.quiet:
        print(f"{file.path} is whole: {tokens} tokens, {megabytes(file.nbytes)}")
    return 0
