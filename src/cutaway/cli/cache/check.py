"""``cutaway cache check``: whether all of a saved prefix is as it was written.

With its model also whether its keys and values are those of its text.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from cutaway.base.progress import Bar, megabytes
from cutaway.cli.options.arguments import add_loading_arguments, add_report_arguments
from cutaway.cli.options.namespace import model_options
from cutaway.cli.terminal import console, streams
from cutaway.errors import InputError
from cutaway.files.prefix import PrefixReader

EPILOG = """
examples:
  cutaway cache check book.prefix
  for file in *.prefix; do cutaway cache check "$file" || rm "$file"; done
  cutaway cache check book.prefix -m smollm2          a stranger's: computes a block of it, too
  cutaway cache check book.prefix -m smollm2 --all    computes all of it

A damaged file, and one that another text's keys and values are in, is one sentence and exit code 2.
The hashes of a file find damage, and no forger. With -m a block that is chosen at random is
computed from those before it, which tells a file of another text; with --all the whole text is
computed and compared, which tells any. Whether it is of a model is seen where it is used.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache check``."""
    parser.add_argument("file", metavar="FILE", help="the saved prefix")
    parser.add_argument(
        "--all", action="store_true", help="with -m: compute every block, as long as that takes"
    )
    add_loading_arguments(parser, "none: no block is computed")
    add_report_arguments(parser, "no progress, and no line")


def run(args: Namespace) -> int:
    """Read it; 0 where it is whole."""
    options = model_options(args)
    if (options or args.all) and "model" not in options:
        raise InputError("-m names the model that computes blocks again: add it, or ask for none")
    with PrefixReader(Path(args.file).expanduser()) as file:
        with Bar("checking", sum(file.head.block_bytes), show=not args.quiet, after=1) as bar:
            file.check(bar.update)
        tokens, blocks = len(file.head.token_ids), file.head.blocks
    computed = _computed(args, file.path) if options else 0
    if args.json:
        streams.print_json({
            "path": str(file.path), "tokens": tokens, "bytes": file.nbytes, "blocks": blocks,
            "computed": computed,
        })  # fmt: skip
    elif not args.quiet:
        print(f"{file.path} is whole: {tokens} tokens, {megabytes(file.nbytes)}")
        if options:
            print(f"{computed} of {blocks} blocks computed again: the same")
    return 0


def _computed(args: Namespace, path: Path) -> int:
    """How many blocks were computed again."""
    from cutaway.methods.prefix import check_prefix

    return check_prefix(console.load(args), path, whole=args.all)
