"""``cutaway conform``: whether a server gives equal answers where it should."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.features.evidence.conform import Conformance, Pair

EPILOG = """
examples:
  cutaway conform http://localhost:8000
  cutaway conform http://localhost:8080 --size 8 --markdown table.md --junit conform.xml
  cutaway conform http://localhost:8000 --prompt "$(cat long.txt)"
  cutaway conform http://localhost:8000 --against http://localhost:8001

Any server with OpenAI's completions or chats is asked pairs of requests whose answers should be
equal, greedy and with a seed: again; several at once; beside other prompts; with parts of the
prompt in its cache; streamed; as samples of one request; with drafts, where a request can ask for
them (cutaway), or at another server of the same model (--against). It compares the texts and the
log-probabilities, as numbers. Where a pair differs, it looks for a smaller one that differs. A
server's key is read from the environment variable CUTAWAY_API_KEY. Exit code 1 if a pair differs.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway conform``."""
    parser.add_argument("url", metavar="URL", help="a server with OpenAI's protocol")
    parser.add_argument("--against", metavar="URL", help="another server of the same model")
    parser.add_argument("--server-model", metavar="NAME", default="", help="the model's name there")
    parser.add_argument("--prompt", metavar="TEXT", help="what is asked; default: two sentences")
    arguments.add_number(parser, "--max-tokens", 24, "tokens of an answer")
    arguments.add_number(parser, "--size", 4, "requests at once, and samples of one")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--junit", metavar="FILE", help="write every pair as JUnit's XML")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Ask, compare, print, and return 0, or 1 where a pair differs."""
    from cutaway.base.checks import check_int
    from cutaway.features.evidence.conform import PROMPT, conform
    from cutaway.features.evidence.conform_client import Client
    from cutaway.rerun.asking import Server

    size = check_int("--size", args.size, 2, 64)
    max_tokens = check_int("--max-tokens", args.max_tokens, 1, 4096)
    key = os.environ.get("CUTAWAY_API_KEY", "")
    client = Client(Server(args.url, key), args.server_model)
    other = Client(Server(args.against, key)) if args.against else None
    with console.progress(show=not args.quiet, after=1) as progress:
        conformance = conform(
            client, prompt=args.prompt or PROMPT, max_tokens=max_tokens, size=size, other=other,
            progress=progress,
        )  # fmt: skip
    _write(args.markdown, _markdown(conformance) + "\n")
    _write(args.junit, _junit(conformance))
    print_report(args, conformance.to_dict, lambda: _report(conformance))
    return 0 if conformance.all_equal else 1


def _write(path: str | None, text: str) -> None:
    if path is not None:
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error


def _report(conformance: "Conformance") -> Iterator[str]:
    yield f"{conformance.url}, {conformance.model}: {conformance.form}"
    yield ""
    head = ("WHAT DIFFERS", "SETTINGS", "EQUAL TEXTS", "EQUAL LOG-PROBABILITIES")
    yield from table([head, *conformance.rows()])
    for (check, name), pair in conformance.smallest.items():
        case = pair.case
        yield from ("", f"{check}, {name}; the smallest pair found ({pair.differs}):")
        yield f"  prompt {case.prompt!r}, {case.settings['max_tokens']} tokens"
        yield f"  {_parting(pair)}"
    yield ""
    wrong = sum(not pair.is_equal for _, pair in conformance.pairs)
    yield (
        f"{wrong} of {len(conformance.pairs)} pairs differ"
        if wrong
        else (f"all {len(conformance.pairs)} pairs are equal")
    )


def _markdown(conformance: "Conformance") -> str:
    """The table, as Markdown."""
    lines = ["| what differs | settings | equal texts | equal log-probabilities |"]
    lines += ["|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in conformance.rows())]
    return "\n".join(lines)


def _junit(conformance: "Conformance") -> str:
    """JUnit's XML: a test case for each pair, and a skipped one for each refusal."""
    from xml.etree import ElementTree as Xml

    failed = sum(not pair.is_equal for _, pair in conformance.pairs)
    suite = Xml.Element(
        "testsuite", name=f"cutaway conform {conformance.url}", tests=str(len(conformance.pairs)),
        failures=str(failed), skipped=str(len(conformance.refusals)),
    )  # fmt: skip
    for name, pair in conformance.pairs:
        case = Xml.SubElement(
            suite, "testcase", classname=f"{pair.check}.{name}", name=pair.differs
        )
        if not pair.is_equal:
            Xml.SubElement(case, "failure", message=_parting(pair))
    for (check, name), message in conformance.refusals.items():
        case = Xml.SubElement(suite, "testcase", classname=f"{check}.{name}", name=check)
        Xml.SubElement(case, "skipped", message=message)
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True)


def _parting(pair: "Pair") -> str:
    """Say where two answers first differ."""
    a, b = pair.first, pair.second
    if a.text != b.text:
        at = next((i for i, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y), None)
        at = min(len(a.text), len(b.text)) if at is None else at
        return f"texts part after {at} characters: {a.text[at:][:40]!r} and {b.text[at:][:40]!r}"
    x, y = a.logprobs or (), b.logprobs or ()
    if len(x) != len(y):
        return f"{len(x)} and {len(y)} log-probabilities of one text"
    differs = [i for i, (p, q) in enumerate(zip(x, y, strict=True)) if p != q]
    if not differs:
        return "nothing differs"
    largest = max(abs((x[i] or 0.0) - (y[i] or 0.0)) for i in differs)
    return f"equal texts, {len(differs)} log-probabilities differ, by up to {largest:.2g}"
