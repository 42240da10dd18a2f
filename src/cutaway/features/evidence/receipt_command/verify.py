"""``cutaway receipt verify``: the signature, the contents, and with the model every bit."""

import json
import secrets
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from cutaway.cli.options import arguments
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report
from cutaway.errors import FormatError, InputError

if TYPE_CHECKING:
    from cutaway.features.evidence.receipt import Receipt
    from cutaway.features.evidence.receipt_check import ReceiptCheck

EPILOG = """
examples:
  cutaway receipt verify receipt-1f2e3d4c5b6a.json --trust me.pem.pub
  cutaway receipt verify receipt-1f2e3d4c5b6a.json --steps 8
  cutaway receipt verify receipt-1f2e3d4c5b6a.json --no-model --json
  CUTAWAY_ISA=generic cutaway receipt verify receipt-1f2e3d4c5b6a.json -m model.gguf

First the chain of hashes and the signature, then the model computes every step again, at the rate
of a prompt: each step's logits to the last bit, and the token that the luck draws from them.
Every other field is compared with what follows from settings and tokens, or stands in a last line,
as what the signer says and nothing shows. --steps N computes only N steps, drawn now; it tells how
likely one wrong step is missed. A file that a server gave ('/v1/receipts/ID') is checked with its
proof that the log has it. Whose key it is that signed, only you can know: --trust names it. Exit
code 0: all holds; 1: something differs; 2: it cannot be computed again, as with another model.
"""

_MOST_SHOWN = 80  # characters of a field


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway receipt verify``."""
    parser.add_argument("file", help="the receipt")
    parser.add_argument("--trust", metavar="FILE", help="the public key that must have signed")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--steps", type=int, metavar="N", help="compute N steps drawn by lot, not all")
    how.add_argument("--no-model", action="store_true", help="check signature and chain alone")
    arguments.add_model_arguments(parser)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Check, print, and return 0, or 1 where something differs."""
    try:
        receipt, head = _read(args)
        _check_signer(args, receipt, head)
    except FormatError as error:
        why = str(error)
        print_report(args, lambda: {"valid": False, "why": why}, lambda: [why])
        return 1
    checked = None if args.no_model else _computed(args, receipt)
    document = {
        "valid": checked is None or checked.same, "root": receipt.root,
        "public_key": receipt.public_key, "trusted": args.trust is not None, "text": receipt.text,
        "log": head, "model": checked and checked.to_dict(),
    }  # fmt: skip
    print_report(args, lambda: document, lambda: _report(args, receipt, head, checked))
    return 0 if document["valid"] else 1


def _read(args: Namespace) -> tuple["Receipt", dict[str, Any] | None]:
    from cutaway.features.evidence.receipt import Receipt, read_document
    from cutaway.features.evidence.receipt_log import check_inclusion

    document = read_document(args.file)
    if isinstance(document, dict) and document.keys() == {"receipt", "log"}:
        receipt = Receipt.from_json(document["receipt"])
        return receipt, check_inclusion(receipt, document["log"])
    return Receipt.from_json(document), None


def _check_signer(args: Namespace, receipt: "Receipt", head: dict[str, Any] | None) -> None:
    """FormatError unless the trusted key signed, where one is named."""
    from cutaway.features.evidence.receipt import PublicKey

    if args.trust is None:
        return
    trusted = PublicKey.read(args.trust).hex
    for signer in (receipt.public_key, *([head["public_key"]] if head else [])):
        if signer != trusted:
            raise FormatError(f"{signer[:16]}… signed, and not the trusted key {trusted[:16]}…")


def _computed(args: Namespace, receipt: "Receipt") -> "ReceiptCheck":
    if args.steps is not None and not 1 <= args.steps <= len(receipt.steps):
        raise InputError(f"--steps must be 1 to {len(receipt.steps)}, the steps of the receipt")
    llm = console.load(args)
    from cutaway.features.evidence.receipt_check import check_all, check_some

    with console.progress(show=not args.quiet) as progress:
        if args.steps is None:
            return check_all(llm, receipt, progress=progress)
        return check_some(llm, receipt, args.steps, secrets.randbits(64), progress=progress)


def _report(
    args: Namespace, receipt: "Receipt", head: dict[str, Any] | None, checked: "ReceiptCheck | None"
) -> list[str]:
    of = "the trusted key" if args.trust else "whose key, only you can know"
    lines = [f"signed by {receipt.public_key[:16]}… ({of}); contents as signed"]
    if head:
        lines.append(f"the log of {head['size']} entries has it")
    if checked is None:
        return [*lines, "not computed again (--no-model): all of it is the signer's word"]
    if found := checked.mismatch:
        at = "" if found.step is None else f"step {found.step}, "
        signed, now = map(_short, (found.recorded, found.now))
        return [*lines, f"{at}{found.what} differs: {signed} signed, {now} now"]
    return [*lines, _computed_again(checked), *_given(receipt, checked), _signer_says(checked)]


def _computed_again(checked: "ReceiptCheck") -> str:
    if checked.of == 0:
        return "it has no steps: nothing could be computed again"
    if checked.steps == checked.of:
        return f"{checked.of} steps computed again, no bit differs"
    return (
        f"{checked.steps} of {checked.of} steps computed again, no bit differs; "
        f"one wrong step is missed with probability {checked.miss():.3f}, ten with "
        f"{checked.miss(min(10, checked.of)):.3f}"
    )


def _given(receipt: "Receipt", checked: "ReceiptCheck") -> list[str]:
    """What a reader could take for the model's doing, and is not; and why the text ends."""
    from cutaway.features.evidence.receipt import ENDS

    forced = f"its first {checked.forced} tokens are the request's (forced), and not drawn"
    return [*([forced] if checked.forced else []), ENDS[receipt.end.reason]]


def _signer_says(checked: "ReceiptCheck") -> str:
    """The signer's word, field by field; those that are 0, false or empty are left out."""
    told = (f"{path} {_short(value)}" for path, value in checked.signer_says.items() if value)
    return f"the signer says, and nothing here shows: {', '.join(told)}"


def _short(value: Any) -> str:
    """As JSON, on one line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
