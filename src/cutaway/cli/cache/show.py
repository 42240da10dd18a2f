"""``cutaway cache show``: what a saved prefix says of itself. Needs no model."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from cutaway.base.progress import megabytes
from cutaway.cli.terminal import streams
from cutaway.files.prefix import PrefixReader

EPILOG = """
examples:
  cutaway cache show book.prefix
  cutaway cache show book.prefix --json     the whole text, all token ids

What the file says is checked; 'cutaway cache check' reads the keys and values too.
"""
_ENDS = 60  # characters shown of each end of a text


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway cache show``."""
    parser.add_argument("file", metavar="FILE", help="the saved prefix")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: Namespace) -> int:
    """Print it on standard output."""
    from cutaway.cli.terminal.drawing import print_lines

    with PrefixReader(Path(args.file).expanduser()) as file:
        said = _document(file)
    if args.json:
        streams.print_json(said)
        return 0
    blocks = f"{said['blocks']} KV blocks of {said['block_tokens']}"
    lines = {
        "model": said["model"], "tokens": f"{said['tokens']} in {blocks}",
        "size": megabytes(said["bytes"]), "text": _shortened(said["text"]), **said["computed_by"],
    }  # fmt: skip
    width = max(map(len, lines))
    print_lines(f"{name:<{width}}  {value}" for name, value in lines.items())
    return 0


def _document(file: PrefixReader) -> dict[str, Any]:
    head = file.head
    return {
        "path": str(file.path), "model": head.model, "bytes": file.nbytes,
        "tokens": len(head.token_ids), "blocks": head.blocks, "block_tokens": head.block_tokens,
        "computed_by": {**head.computed_by}, "special": head.special, "text": head.text,
        "token_ids": list(head.token_ids),
    }  # fmt: skip


def _shortened(text: str | None) -> str:
    if text is None:
        return "(it was saved from token ids or messages)"
    if len(text) <= 2 * _ENDS:
        return repr(text)
    return f"{text[:_ENDS]!r} … {text[-_ENDS:]!r} ({len(text)} characters)"
