"""``cutaway cache save``: a text's keys and values in a file."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from time import perf_counter

from cutaway.base.progress import megabytes, say
from cutaway.base.whole_files import check_place
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, streams
from cutaway.errors import InputError

EPILOG = """
examples:
  cutaway cache save book.prefix - < book.txt
  cutaway cache save -m model.gguf rules.prefix "$(cat 'my rules.txt')"
  cutaway generate --prefix book.prefix " Who is the murderer?"

Whole KV blocks of 32 tokens are saved; what is left of the text, 31 tokens at most, is computed
when the file is used. A text that fills no block is refused. Nothing is left where it does
not get to the end.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache save``."""
    parser.add_argument("file", metavar="FILE", help="the file to write")
    parser.add_argument("prompt", metavar="TEXT", help="the text to save; - reads standard input")
    parser.add_argument(
        "--special", action="store_true", help="parse special tokens such as <|im_start|> in it"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE where it exists")
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser, "no progress and no figures")


def run(args: Namespace) -> int:
    """Compute the text, write the file, and say what is in it."""
    place = Path(args.file).expanduser()
    check_place(place)
    if place.exists() and not args.force:
        raise InputError(f"FILE: {place} exists; name a new file, or add --force to replace it")
    text = namespace.read_text(args.prompt)
    llm = console.load(args)
    started = perf_counter()
    with console.leaving_nothing():
        prefix = llm.save_prefix(place, text, special=args.special)
    seconds, tokens = perf_counter() - started, len(prefix.token_ids)
    if args.json:
        streams.print_json({
            "path": str(place), "model": llm.name, "tokens": tokens, "bytes": prefix.nbytes,
            "seconds": seconds,
        })  # fmt: skip
    elif not args.quiet:
        say(f"{place}: {tokens} tokens, {megabytes(prefix.nbytes)}, {seconds:.1f} s")
    return 0
