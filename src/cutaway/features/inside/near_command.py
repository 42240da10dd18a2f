"""``cutaway near``: the similarity of two texts, with each token's share and each word's effect."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table

if TYPE_CHECKING:
    from cutaway.methods.nearness import Nearness


COMMON = "-m --top --no-words --json"
EPILOG = """
examples:
  cutaway near -m minilm "Paris is in France." "Where is the capital of France?"
  cutaway near -m minilm --top 20 "the river bank" "a bank of the river"
  cutaway near -m reranker.gguf "capital of France" "Paris is the capital of France."
  cutaway near -m minilm --json "the river bank" "money in the bank" > near.json

What two texts are compared by is the model's own: the cosine of their vectors or, of a query and a
document in this order, a reranker's score. Where it is a sum over pairs of tokens (vectors that are
means, MaxSim) each pair's exact share is printed; all shares add up to it. Then each word is left
out, and the score computed again.
"""
_SCORES = {
    "cosine": "cosine", "head": "score", "maxsim": "MaxSim", "answers": "log P(yes) - log P(no)",
}  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway near``."""
    parser.add_argument("first", metavar="TEXT", help="one text; for a reranker the query")
    parser.add_argument("second", metavar="TEXT", help="the other; for a reranker the document")
    parser.add_argument("--top", type=int, default=8, metavar="N", help="how many pairs; default 8")
    parser.add_argument(
        "--no-words", action="store_true", help="leave no words out, which takes a run for each"
    )
    parser.add_argument(
        "--method", choices=["head", "maxsim", "answers", "cosine"],
        help="what texts are compared by; default: the first of these that the model has",
    )  # fmt: skip
    parser.add_argument(
        "--instruction", metavar="TEXT", help="what makes a document relevant, for a model asked "
        "for yes or no",
    )  # fmt: skip
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser, "no progress while loading")


def run(args: Namespace) -> int:
    """Print the score, its shares, and the score without each word; return 0."""
    texts = namespace.read_text(args.first), namespace.read_text(args.second)
    llm = console.load(args)
    nearness = llm.near(
        *texts, words=not args.no_words, method=args.method, instruction=args.instruction
    )
    print_report(
        args, lambda: {"model": llm.name, **nearness.to_dict()}, lambda: _report(nearness, args.top)
    )
    return 0


def _report(nearness: "Nearness", top: int) -> list[str]:
    lines = [f"{_SCORES[nearness.method]} {nearness.score:.4f}"]
    lines += _shares(nearness, top) if nearness.shares is not None else []
    if nearness.left_out:
        words = [
            (f"{without.score:.4f}", f"{without.score - nearness.score:+.4f}",
             "second" if without.which else "first", repr(without.word))
            for without in sorted(nearness.left_out, key=lambda without: without.score)
        ]  # fmt: skip
        lines += ["", *table([("without", "change", "text", "word"), *words])]
    return lines


def _shares(nearness: "Nearness", top: int) -> list[str]:
    """Write the shares of the score: of the largest pairs of tokens, and of each token."""
    pairs = [
        (f"{share:+.4f}", repr(nearness.tokens[0][i]), repr(nearness.tokens[1][j]))
        for i, j, share in nearness.pairs(top)
    ]
    rest_share = nearness.score - sum(share for _, _, share in nearness.pairs(top))
    rest_row = (f"{rest_share:+.4f}", "all others", "")
    lines = ["", *table([("share", "first", "second"), *pairs, rest_row])]
    for names, shares, ordinal in zip(
        nearness.tokens, nearness.of_tokens(), ("first", "second"), strict=True
    ):
        tokens = [(f"{s:+.4f}", repr(n)) for n, s in zip(names, shares, strict=True)]
        lines += ["", *table([("share", f"token of the {ordinal}"), *tokens])]
    return lines
