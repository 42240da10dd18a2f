"""``cutaway receipt log``: whether a log of receipts is whole."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from cutaway.cli.options import arguments
from cutaway.cli.terminal.drawing import print_report
from cutaway.errors import FormatError, InputError

EPILOG = """
examples:
  cutaway receipt log answers
  cutaway receipt log answers --head kept.json

Reads every receipt and every signed head of the folder. A log that was shortened or rewritten as a
whole agrees with itself: what shows it is a head that somebody kept elsewhere, as
'/v1/receipts' gives it. Exit code 0: whole; 1: damaged.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway receipt log``."""
    parser.add_argument("folder", help="the folder of 'cutaway serve --receipts'")
    parser.add_argument("--head", metavar="FILE", help="a signed head that was kept elsewhere")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Check, print, and return 0, or 1 where the log is damaged."""
    from cutaway.features.evidence.receipt import read_document
    from cutaway.features.evidence.receipt_log import check_log

    folder = Path(args.folder)
    if not (folder / "receipts.jsonl").exists():
        raise InputError(f"{folder}: there is no log of receipts")
    kept = [read_document(args.head)] if args.head else []
    try:
        found = check_log(folder, kept)
    except FormatError as error:
        why = str(error)
        print_report(args, lambda: {"whole": False, "why": why}, lambda: [why])
        return 1
    gaps = [entry.lost for entry in found if entry.lost]
    count, lost = len(found) - len(gaps), sum(gaps)
    print_report(
        args,
        lambda: {"whole": True, "receipts": count, "lost": lost},
        lambda: [f"{count} receipts, whole", *([_lost(lost, len(gaps))] if gaps else [])],
    )
    return 0


def _lost(lost: int, gaps: int) -> str:
    where = "a gap" if gaps == 1 else f"{gaps} gaps"
    return f"{lost} could not be written, as on a full disk: {where}, as the log's key signed"
