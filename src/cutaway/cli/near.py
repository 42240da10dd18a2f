"""``cutaway near``: why two texts are near."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli import arguments, console, namespace
from cutaway.cli.terminal.drawing import print_report, table

if TYPE_CHECKING:
    from cutaway.methods.nearness import Nearness

COMMON = "-m --top --no-words --json"
EPILOG = """
examples:
  cutaway near -m minilm "Paris is in France." "Where is the capital of France?"
  cutaway near -m minilm --top 20 "the river bank" "a bank of the river"
  cutaway near -m minilm --json "the river bank" "money in the bank" > near.json

A vector that is a mean is a sum, so each pair of tokens has an exact share of the cosine; all
shares add up to it. Then each word is left out, and the cosine computed again.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway near``."""
    parser.add_argument("first", metavar="TEXT", help="one text")
    parser.add_argument("second", metavar="TEXT", help="the other")
    parser.add_argument("--top", type=int, default=8, metavar="N", help="how many pairs; default 8")
    parser.add_argument(
        "--no-words", action="store_true", help="leave no words out, which takes a run for each"
    )
    arguments.add_loading_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress while loading")


def run(args: Namespace) -> int:
    """Print the shares."""
    texts = namespace.read_text(args.first), namespace.read_text(args.second)
    llm = console.load(args)
    found = llm.near(*texts, words=not args.no_words)
    print_report(
        args, lambda: {"model": llm.name, **found.to_dict()}, lambda: _report(found, args.top)
    )
    return 0


def _report(found: "Nearness", top: int) -> list[str]:
    lines = [f"cosine {found.cosine:.4f}", ""]
    pairs = [
        (f"{share:+.4f}", repr(found.tokens[0][i]), repr(found.tokens[1][j]))
        for i, j, share in found.pairs(top)
    ]
    rest = found.cosine - sum(share for _, _, share in found.pairs(top))
    lines += table([("share", "first", "second"), *pairs, (f"{rest:+.4f}", "all others", "")])
    for names, shares, which in zip(
        found.tokens, found.of_tokens(), ("first", "second"), strict=True
    ):
        tokens = [(f"{s:+.4f}", repr(n)) for n, s in zip(names, shares, strict=True)]
        lines += ["", *table([("share", f"token of the {which}"), *tokens])]
    if found.left_out:
        words = [
            (f"{one.cosine:.4f}", f"{one.cosine - found.cosine:+.4f}",
             "second" if one.which else "first", repr(one.word))
            for one in sorted(found.left_out, key=lambda one: one.cosine)
        ]  # fmt: skip
        lines += ["", *table([("without", "change", "text", "word"), *words])]
    return lines
