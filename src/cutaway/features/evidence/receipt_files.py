"""Where the command line puts receipts of the texts that it writes."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import say
from cutaway.base.whole_files import whole_file
from cutaway.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cutaway.features.evidence.receipt import Receipt
    from cutaway.features.evidence.signing import PrivateKey
    from cutaway.requests.sync_llm import Stream

    Streams = Iterable[Stream]


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
    from cutaway.features.evidence.signing import PrivateKey

    return partial(_write_each, PrivateKey.read(path))


def _write_each(key: "PrivateKey", streams: "Streams") -> None:
    from cutaway.features.evidence.receipt import Receipt
    from cutaway.trace.write import end_of

    for stream in streams:
        assert stream.ended is not None
        receipt = Receipt.of(stream.head(), stream.steps, end_of(stream.ended), key)
        say(f"[receipt: {write(receipt)}]")
