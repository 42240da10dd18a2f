"""``cutaway receipt sign``: the receipt of a run that was recorded.

Also where other commands put receipts of the texts that they write.
"""

import json
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import say
from cutaway.base.whole_files import whole_file
from cutaway.cli.options import arguments
from cutaway.errors import InputError
from cutaway.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cutaway.features.evidence.receipt import PrivateKey, Receipt
    from cutaway.requests.sync_llm import Stream

    Streams = Iterable[Stream]


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
    from cutaway.features.evidence.receipt import PrivateKey, Receipt

    key, trace = PrivateKey.read(args.key), Trace.read(args.file)
    if trace.end is None:
        raise InputError(f"{args.file}: the run has no end, and a receipt is of a whole run")
    print(write(Receipt.of(trace.head, trace.steps, trace.end, key)))
    return 0


# -- receipts of texts as they are written ---------------------------------------------------------


def write(receipt: "Receipt") -> Path:
    """Into the folder of now, under the first digits of its root. CutawayError where it cannot."""
    path = Path(f"receipt-{receipt.root[:12]}.json")
    text = json.dumps(receipt.document, ensure_ascii=False, indent=None)
    with whole_file(path) as out:
        out.write(text.encode("utf-8", "surrogatepass") + b"\n")
    return path


def signer(path: str, options: "Mapping[str, Any]") -> "Callable[[Streams], None]":
    """What writes the receipts of texts that have ended, and says where.

    InputError where the key cannot be read, or the texts will not be ones of which there are
    receipts: so that nobody waits for a text to learn it.
    """
    for name in ("align", "suffix"):
        if name in options:
            raise InputError(f"--receipt: --{name} chooses among texts; leave out one of the two")
    from cutaway.features.evidence.receipt import PrivateKey

    return partial(_write_each, PrivateKey.read(path))


def _write_each(key: "PrivateKey", streams: "Streams") -> None:
    from cutaway.features.evidence.receipt import Receipt
    from cutaway.trace.write import end_of

    for stream in streams:
        assert stream.ended is not None
        receipt = Receipt.of(stream.head(), stream.steps, end_of(stream.ended), key)
        say(f"[receipt: {write(receipt)}]")
