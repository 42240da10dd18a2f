"""``cutaway receipt key``: a new Ed25519 key, and its public half beside it."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from cutaway.base.progress import say
from cutaway.errors import InputError

EPILOG = """
examples:
  cutaway receipt key me.pem

Writes me.pem, which signs and which nobody else should read, and me.pem.pub, which checks: give
that to others. Any Ed25519 key in PEM without a password serves as well, such as one of
'openssl genpkey -algorithm ed25519'.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument of ``cutaway receipt key``."""
    parser.add_argument("file", help="the file to write; it must not exist")


def run(args: Namespace) -> int:
    """Write both files and return 0."""
    from cutaway.features.evidence.receipt import PrivateKey

    public = Path(f"{args.file}.pub")
    if public.exists():
        raise InputError(f"{public}: the file exists already; name another")
    key = PrivateKey.create(args.file)
    public.write_text(key.public.hex + "\n")
    say(f"{args.file} signs; {public} checks: {key.public.hex}")
    return 0
