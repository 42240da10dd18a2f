"""``cutaway cache VERB``: a prompt's KV cache in a file, and the folder of --cache-dir."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import Bar, megabytes, say
from cutaway.base.whole_files import check_place
from cutaway.cli.options import namespace
from cutaway.cli.options.parser import Parser, Verb, run_command
from cutaway.cli.terminal import console, streams
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.files.prefix import PrefixReader

VERBS = {
    "save": "compute a text, and save its keys and values",
    "show": "show what is in a file, or in a folder of --cache-dir",
    "check": "read all of a file, and find any damage",
    "clear": "remove all that is in a folder of --cache-dir",
}
"""Name -> help. Each verb is a ``Verb`` below, and imports heavy modules only when it runs."""

_EXAMPLES = """
examples:
  cutaway cache save book.prefix - < book.txt
  cutaway cache show book.prefix
  cutaway generate --prefix book.prefix " Who is the murderer?"      restores it
  cutaway chat --resume talk.json                                    saves and restores its own
  cutaway serve --cache-dir prompts                                  keeps all prompts by itself
  cutaway cache show prompts

A file has the keys and values of whole KV blocks of 32 tokens; a text that continues from them has
the same bits as one that computes them. It belongs to one model, its settings and this version of
cutaway; others refuse it. Every byte of it is checked when it is read.
'cutaway cache VERB --help' explains a verb.
"""


def run(argv: list[str]) -> int:
    """Run the verb that the arguments begin with."""
    if argv[:1] == ["restore"]:
        raise InputError("a saved prefix is restored where it is used: cutaway generate --prefix")
    if argv and argv[0] not in VERBS and Path(argv[0]).expanduser().is_dir():
        argv = ["show", *argv]
    about = "Keep a prompt's KV cache on the disk, so that the prompt is computed once."
    parser = Parser("cutaway cache", about)
    return run_command(parser, "verb", __name__, VERBS, argv, examples=_EXAMPLES)


# -- save ------------------------------------------------------------------------------------------

_SAVE = """
examples:
  cutaway cache save book.prefix - < book.txt
  cutaway cache save -m model.gguf rules.prefix "$(cat 'my rules.txt')"
  cutaway generate --prefix book.prefix " Who is the murderer?"

Whole KV blocks of 32 tokens are saved; the rest of the text, 31 tokens at most, is computed when
the file is used. A text that fills no block is refused. A run that is interrupted leaves no file.
"""


def _add_save_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache save``."""
    from cutaway.cli.options import arguments

    parser.add_argument("file", metavar="FILE", help="the file to write")
    parser.add_argument("prompt", metavar="TEXT", help="the text to save; - reads standard input")
    parser.add_argument(
        "--special", action="store_true", help="parse special tokens such as <|im_start|> in it"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE where it exists")
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser, "no progress and no figures")


def _save(args: Namespace) -> int:
    """Compute the text's keys and values, write them into the file, and print a summary."""
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


save = Verb(_add_save_arguments, _save, _SAVE)


# -- show ------------------------------------------------------------------------------------------

_SHOW = """
examples:
  cutaway cache show book.prefix
  cutaway cache show book.prefix --json     the whole text, all token ids
  cutaway cache show prompts                of a folder: blocks, bytes and ages of each model

What a file says is checked; 'cutaway cache check' reads the keys and values too.
"""
_ENDS = 60  # characters shown of each end of a text


def _add_show_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache show``."""
    parser.add_argument("file", metavar="FILE", help="the saved prefix, or a folder of --cache-dir")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _show(args: Namespace) -> int:
    """Print the head of the file, or what the folder has; no model is needed."""
    from cutaway.cli.terminal.drawing import print_lines
    from cutaway.files.prefix import PrefixReader

    if (folder := Path(args.file).expanduser()).is_dir():
        return _show_folder(folder, as_json=args.json)
    with PrefixReader(Path(args.file).expanduser()) as file:
        document = _document(file)
    if args.json:
        streams.print_json(document)
        return 0
    blocks = f"{document['blocks']} KV blocks of {document['block_tokens']}"
    lines = {
        "model": document["model"], "tokens": f"{document['tokens']} in {blocks}",
        "size": megabytes(document["bytes"]), "text": _shorten(document["text"]),
        **document["computed_by"],
    }  # fmt: skip
    width = max(map(len, lines))
    print_lines(f"{name:<{width}}  {value}" for name, value in lines.items())
    return 0


def _document(file: "PrefixReader") -> dict[str, Any]:
    head = file.head
    return {
        "path": str(file.path), "model": head.model, "bytes": file.nbytes,
        "tokens": len(head.token_ids), "blocks": head.blocks, "block_tokens": head.block_tokens,
        "computed_by": {**head.computed_by}, "special": head.special, "text": head.text,
        "token_ids": list(head.token_ids),
    }  # fmt: skip


def _shorten(text: str | None) -> str:
    if text is None:
        return "(it was saved from token ids or messages)"
    if len(text) <= 2 * _ENDS:
        return repr(text)
    return f"{text[:_ENDS]!r} … {text[-_ENDS:]!r} ({len(text)} characters)"


def _show_folder(folder: Path, *, as_json: bool) -> int:
    from cutaway.cli.terminal.drawing import print_lines
    from cutaway.files.block_folder import stored_models

    models = stored_models(folder)
    if as_json:
        streams.print_json([model._asdict() for model in models])
        return 0
    print_lines([
        f"{model.model}: {model.blocks} blocks ({model.read_again} read again), "
        f"{megabytes(model.bytes)}, last used {_age(model.newest_s)} ago, "
        f"the oldest {_age(model.oldest_s)} ago"
        for model in models
    ] or [f"{folder}: no prompts"])  # fmt: skip
    return 0


def _age(seconds: float) -> str:
    """Return seconds in the largest unit of which there are at least two."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


show = Verb(_add_show_arguments, _show, _SHOW)


# -- clear -----------------------------------------------------------------------------------------

_CLEAR = """
examples:
  cutaway cache clear prompts
  rm -r prompts                    the same, and all else that is in the folder

Removes the files that --cache-dir wrote into the folder, of all models, and no others. Processes
that use the folder may go on: they compute the prompts again.
"""


def _add_clear_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache clear``."""
    parser.add_argument("folder", metavar="DIR", help="the folder of --cache-dir")
    parser.add_argument("-q", "--quiet", action="store_true", help="no line")


def _clear(args: Namespace) -> int:
    """Remove the folder's blocks, and print how many they were."""
    from cutaway.files.block_folder import clear_folder

    folder = Path(args.folder).expanduser()
    blocks, nbytes = clear_folder(folder)
    if not args.quiet:
        say(f"{folder}: {blocks} blocks removed, {megabytes(nbytes)}")
    return 0


clear = Verb(_add_clear_arguments, _clear, _CLEAR)


# -- check -----------------------------------------------------------------------------------------

_CHECK = """
examples:
  cutaway cache check book.prefix
  for file in *.prefix; do cutaway cache check "$file" || rm "$file"; done
  cutaway cache check book.prefix -m smollm2          a stranger's: computes a block of it, too
  cutaway cache check book.prefix -m smollm2 --all    computes all of it

A file that is damaged, or has another text's keys and values, is one sentence and exit code 2. The
hashes of a file find damage, but no forgery. With -m, a block chosen at random is computed from
those before it, which finds a file of another text; with --all the whole text is computed and
compared, which finds any. Whether a file belongs to a model is checked when it is used.
"""


def _add_check_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache check``."""
    from cutaway.cli.options import arguments

    parser.add_argument("file", metavar="FILE", help="the saved prefix")
    parser.add_argument(
        "--all", action="store_true", help="with -m: compute every block, as long as that takes"
    )
    arguments.add_loading_arguments(parser, "none: no block is computed")
    arguments.add_report_arguments(parser, "no progress, and no line")


def _check(args: Namespace) -> int:
    """Check the whole file; with -m MODEL, also compute blocks of it again. Return 0."""
    from cutaway.files.prefix import PrefixReader

    options = namespace.model_options(args)
    if (options or args.all) and "model" not in options:
        raise InputError("-m names the model that computes blocks again: add it, or ask for none")
    with PrefixReader(Path(args.file).expanduser()) as file:
        with Bar("checking", sum(file.head.block_bytes), show=not args.quiet, after=1) as bar:
            file.check(bar.update)
        tokens, blocks = len(file.head.token_ids), file.head.blocks
    computed = _compute_again(args, file.path) if options else 0
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


def _compute_again(args: Namespace, path: Path) -> int:
    """Compute blocks again and compare them with the file's; return their number."""
    from cutaway.methods.prefix import check_prefix

    return check_prefix(console.load(args), path, whole=args.all)


check = Verb(_add_check_arguments, _check, _CHECK)
