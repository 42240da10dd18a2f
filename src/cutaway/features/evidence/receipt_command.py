"""``cutaway receipt VERB``: a signed record of a run, which others can check."""

import json
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.counting import count_from_1
from cutaway.base.progress import say
from cutaway.base.whole_files import whole_file
from cutaway.cli.options.parser import Parser, Verb, run_command
from cutaway.cli.terminal import console
from cutaway.errors import FormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cutaway.features.evidence.receipt import Receipt
    from cutaway.features.evidence.receipt_check import ReceiptCheck
    from cutaway.features.evidence.signing_keys import PrivateKey
    from cutaway.requests.sync_llm import Stream

    Streams = Iterable[Stream]

VERBS = {
    "key": "make a key that signs",
    "sign": "make a receipt of a recorded run",
    "verify": "check a receipt: its signature, its contents, and the model's own bits",
    "log": "check a log of receipts",
}
"""Name -> help; each verb is a ``Verb`` below. A verb imports heavy modules when it runs."""

_EXAMPLES = """
examples:
  cutaway receipt key me.pem
  cutaway generate "The sky is" --receipt me.pem
  cutaway receipt verify receipt-1f2e3d4c5b6a.json --trust me.pem.pub
  cutaway receipt verify receipt-1f2e3d4c5b6a.json --steps 8
  cutaway serve --receipts answers --receipt-key me.pem
  cutaway receipt log answers

A receipt does not prove when a text was written, nor that its prompt is the one that somebody saw,
nor that no other texts were drawn and thrown away. It proves that whoever signed it names this
model, these settings and this text; and the model, on any processor, proves that they belong
together. 'cutaway receipt VERB --help' explains a verb.
"""


def run(argv: list[str]) -> int:
    """Run the verb that the arguments begin with."""
    about = "Sign what a run depended on and computed, and check what others signed."
    parser = Parser("cutaway receipt", about)
    return run_command(parser, "verb", __name__, VERBS, argv, examples=_EXAMPLES)


# -- key -------------------------------------------------------------------------------------------

_KEY = """
examples:
  cutaway receipt key me.pem

Writes me.pem, which signs and which nobody else should read, and me.pem.pub, which checks: give
that to others. Any Ed25519 key in PEM without a password serves as well, such as one of
'openssl genpkey -algorithm ed25519'.
"""


def _add_key_arguments(parser: ArgumentParser) -> None:
    """Add the argument of ``cutaway receipt key``."""
    parser.add_argument("file", help="the file to write; it must not exist")


def _key(args: Namespace) -> int:
    """Write a new Ed25519 key, and its public half beside it."""
    from cutaway.features.evidence.signing_keys import PrivateKey

    public = Path(f"{args.file}.pub")
    if public.exists():
        raise InputError(f"{public}: the file exists already; name another")
    key = PrivateKey.create(args.file)
    public.write_text(key.public.hex + "\n")
    say(f"{args.file} signs; {public} checks: {key.public.hex}")
    return 0


key = Verb(_add_key_arguments, _key, _KEY)


# -- sign ------------------------------------------------------------------------------------------

_SIGN = """
examples:
  cutaway receipt sign run.jsonl --key me.pem

Writes receipt-ROOT.json into this folder, where ROOT begins the receipt's own name, and prints the
file's name. Its size is that of the prompt's ids and three numbers a token.
"""


def _add_sign_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway receipt sign``."""
    from cutaway.cli.options import arguments

    arguments.add_trace(parser)
    parser.add_argument("--key", metavar="FILE", required=True, help="the key that signs")


def _sign(args: Namespace) -> int:
    """Sign, print the file's name, and return 0."""
    from cutaway.features.evidence.receipt import Receipt
    from cutaway.features.evidence.signing_keys import PrivateKey
    from cutaway.trace import Trace

    key, trace = PrivateKey.read(args.key), Trace.read(args.file)
    if trace.end is None:
        raise InputError(f"{args.file}: the run has no end, and a receipt is of a whole run")
    print(write(Receipt.sign_run(trace.head, trace.steps, trace.end, key)))
    return 0


sign = Verb(_add_sign_arguments, _sign, _SIGN)


# -- receipts of texts as they are written ---------------------------------------------------------


def write(receipt: "Receipt") -> Path:
    """Write a receipt into the working directory, named by the first digits of its root.

    CutawayError where it cannot be written.
    """
    path = Path(f"receipt-{receipt.root[:12]}.json")
    text = json.dumps(receipt.document, ensure_ascii=False, indent=None)
    with whole_file(path) as out:
        out.write(text.encode("utf-8", "surrogatepass") + b"\n")
    return path


def signer(path: str, options: "Mapping[str, Any]") -> "Callable[[Streams], None]":
    """Make a function that writes the receipts of finished texts, and prints each file's name.

    InputError, before any text is written, where the key cannot be read or an option chooses among
    texts.
    """
    for name in ("align", "suffix"):
        if name in options:
            raise InputError(f"--receipt: --{name} chooses among texts; leave out one of the two")
    from cutaway.features.evidence.signing_keys import PrivateKey

    return partial(_write_each, PrivateKey.read(path))


def _write_each(key: "PrivateKey", streams: "Streams") -> None:
    from cutaway.features.evidence.receipt import Receipt
    from cutaway.trace.write import end_of

    for stream in streams:
        assert stream.ended is not None
        receipt = Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), key)
        say(f"[receipt: {write(receipt)}]")


# -- verify ----------------------------------------------------------------------------------------

_VERIFY = """
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


def _add_verify_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway receipt verify``."""
    from cutaway.cli.options import arguments

    parser.add_argument("file", help="the receipt")
    parser.add_argument("--trust", metavar="FILE", help="the public key that must have signed")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--steps", type=int, metavar="N", help="compute N steps drawn by lot, not all"
    )
    extent.add_argument("--no-model", action="store_true", help="check signature and chain alone")
    arguments.add_model_arguments(parser)
    arguments.add_report_arguments(parser)


def _verify(args: Namespace) -> int:
    """Check, print, and return 0, or 1 where something differs."""
    from cutaway.cli.terminal.drawing import print_report

    try:
        receipt, head = _read(args)
        _check_signer(args, receipt, head)
    except FormatError as error:
        message = str(error)
        print_report(args, lambda: {"valid": False, "why": message}, lambda: [message])
        return 1
    checked = None if args.no_model else _compute_again(args, receipt)
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
    """FormatError where ``--trust`` names a key, and another signed the receipt or its log."""
    from cutaway.features.evidence.signing_keys import PublicKey

    if args.trust is None:
        return
    trusted = PublicKey.read(args.trust).hex
    for signer in (receipt.public_key, *([head["public_key"]] if head else [])):
        if signer != trusted:
            raise FormatError(f"{signer[:16]}… signed, and not the trusted key {trusted[:16]}…")


def _compute_again(args: Namespace, receipt: "Receipt") -> "ReceiptCheck":
    if args.steps is not None and not 1 <= args.steps <= len(receipt.steps):
        raise InputError(f"--steps must be 1 to {len(receipt.steps)}, the steps of the receipt")
    llm = console.load(args)
    from secrets import randbits

    from cutaway.features.evidence.receipt_check import check_all, check_some

    with console.progress(show=not args.quiet) as progress:
        if args.steps is None:
            return check_all(llm, receipt, progress=progress)
        return check_some(llm, receipt, args.steps, randbits(64), progress=progress)


def _report(
    args: Namespace, receipt: "Receipt", head: dict[str, Any] | None, checked: "ReceiptCheck | None"
) -> list[str]:
    owner = "the trusted key" if args.trust else "whose key, only you can know"
    lines = [f"signed by {receipt.public_key[:16]}… ({owner}); contents as signed"]
    if head:
        lines.append(f"the log of {head['size']} entries has it")
    if checked is None:
        return [*lines, "not computed again (--no-model): all of it is the signer's word"]
    if mismatch := checked.mismatch:
        at = "" if mismatch.step is None else f"step {count_from_1(mismatch.step)}, "
        signed, now = map(_short, (mismatch.recorded, mismatch.now))
        return [*lines, f"{at}{mismatch.what} differs: {signed} signed, {now} now"]
    return [
        *lines,
        _count_computed(checked),
        *_explain_end(receipt, checked),
        _signer_says(checked),
    ]


def _count_computed(checked: "ReceiptCheck") -> str:
    if checked.of == 0:
        return "it has no steps: nothing could be computed again"
    if checked.steps == checked.of:
        return f"{checked.of} steps computed again, no bit differs"
    return (
        f"{checked.steps} of {checked.of} steps computed again, no bit differs; "
        f"one wrong step is missed with probability {checked.miss():.3f}, ten with "
        f"{checked.miss(min(10, checked.of)):.3f}"
    )


def _explain_end(receipt: "Receipt", checked: "ReceiptCheck") -> list[str]:
    """Say which tokens the model did not draw, and why the text ends."""
    from cutaway.features.evidence.receipt import ENDS

    forced = f"its first {checked.forced} tokens are the request's (forced), and not drawn"
    return [*([forced] if checked.forced else []), ENDS[receipt.end.reason]]


def _signer_says(checked: "ReceiptCheck") -> str:
    """List the fields that only the signer knows, except those that are 0, false or empty."""
    fields = (f"{path} {_short(value)}" for path, value in checked.signer_says.items() if value)
    return f"the signer says, and nothing here shows: {', '.join(fields)}"


def _short(value: Any) -> str:
    """Write a value as JSON on one line, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


verify = Verb(_add_verify_arguments, _verify, _VERIFY)


# -- log -------------------------------------------------------------------------------------------

_LOG = """
examples:
  cutaway receipt log answers
  cutaway receipt log answers --head kept.json

Reads every receipt and every signed head of the folder. A log that was shortened or rewritten as a
whole agrees with itself: what shows it is a head that somebody kept elsewhere, as
'/v1/receipts' gives it. Exit code 0: whole; 1: damaged.
"""


def _add_log_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway receipt log``."""
    from cutaway.cli.options import arguments

    parser.add_argument("folder", help="the folder of 'cutaway serve --receipts'")
    parser.add_argument("--head", metavar="FILE", help="a signed head that was kept elsewhere")
    arguments.add_report_arguments(parser)


def _log(args: Namespace) -> int:
    """Check, print, and return 0, or 1 where the log is damaged."""
    from cutaway.cli.terminal.drawing import print_report
    from cutaway.features.evidence.receipt import read_document
    from cutaway.features.evidence.receipt_log import check_log

    folder = Path(args.folder)
    if not (folder / "receipts.jsonl").exists():
        raise InputError(f"{folder}: there is no log of receipts")
    kept_heads = [read_document(args.head)] if args.head else []
    try:
        entries = check_log(folder, kept_heads)
    except FormatError as error:
        message = str(error)
        print_report(args, lambda: {"whole": False, "why": message}, lambda: [message])
        return 1
    gap_sizes = [entry.lost_count for entry in entries if entry.lost_count]
    count, lost_count = len(entries) - len(gap_sizes), sum(gap_sizes)
    print_report(
        args,
        lambda: {"whole": True, "receipts": count, "lost": lost_count},
        lambda: [
            f"{count} receipts, whole",
            *([_describe_gaps(lost_count, len(gap_sizes))] if gap_sizes else []),
        ],
    )
    return 0


def _describe_gaps(lost_count: int, gaps: int) -> str:
    gap_text = "a gap" if gaps == 1 else f"{gaps} gaps"
    return (
        f"{lost_count} could not be written, as on a full disk: {gap_text}, as the log's key signed"
    )


log = Verb(_add_log_arguments, _log, _LOG)
