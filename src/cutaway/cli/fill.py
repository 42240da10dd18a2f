"""``cutaway fill``: candidates for each mask of a text, or the text's pseudo-likelihood."""

import sys
from argparse import ArgumentParser, Namespace
from math import log
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import Style, print_report, quote, table, text_of
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.methods.filling import FillCandidate, Filled
    from cutaway.methods.scoring import PseudoLikelihood
    from cutaway.text import Tokenizer

COMMON = "-m --top --targets --score --json -q"
EPILOG = """
examples:
  cutaway fill "Paris is the [MASK] of France."
  cutaway fill "Paris is the [MASK] of France." --targets capital,city,"largest city"
  cutaway fill "The [MASK] chased the [MASK]." --top 3
  cutaway fill -m path/to/bert "Paris is the [MASK] of France." --json
  cutaway fill -m path/to/bert "Paris is the capital of France." --score word_l2r

A model that sees the whole text (BERT, RoBERTa, DistilBERT) says what it expects in place of each
mask, and which candidates of several masks go together. For a model that writes, the scores follow
by Bayes' rule from the text before the mask and the text after it. They are exact among the
candidates considered; the share of all continuations that these are is printed.
"""
_BAR = 20  # cells of the longest bar


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway fill``."""
    parser.add_argument("text", help="a text with [MASK] in it; - reads standard input")
    arguments.add_number(parser, "--top", 5, "candidates for each mask")
    parser.add_argument(
        "--targets", metavar="A,B,…",
        help="score these instead, with commas between them; each whole, also of several tokens",
    )  # fmt: skip
    parser.add_argument(
        "--candidates", type=int, default=64, metavar="K",
        help="how many are considered with a model that writes, and how many beginnings of several "
        "masks together; default 64",
    )  # fmt: skip
    parser.add_argument(
        "--score", metavar="METRIC",
        help="of a text without masks: its pseudo-log-likelihood, each token while it is masked; "
        "original, or word_l2r, where those after it in its word are masked, too",
    )  # fmt: skip
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser, "print the candidates only")


def run(args: Namespace) -> int:
    """Print a table for each mask."""
    text = namespace.read_text(args.text)
    targets = None if args.targets is None else args.targets.split(",")
    if args.score is not None and targets is not None:
        raise InputError("--score reads the whole text, without --targets: leave one out")
    llm, style = console.load(args), Style.from_stream(sys.stdout)
    if args.score is not None:
        scored = llm.pseudo_likelihood(text, args.score)
        print_report(args, scored.to_dict, lambda: _scores(scored, llm.tokenizer, style))
    else:
        answer = llm.fill(text, args.top, targets, candidates=args.candidates)
        print_report(args, answer.to_dict, lambda: _report(answer, style))
    return 0


def _scores(scored: "PseudoLikelihood", tokenizer: "Tokenizer", style: Style) -> list[str]:
    """Return a line with the surprise of each token when it is masked, and a line with the sum."""
    bits = [-logprob / log(2) for logprob in scored.logprobs]
    highest = max(bits) or 1.0
    rows = [
        (f"{cost:6.2f}", quote(text_of(tokenizer, [token_id])), style.bar(cost / highest, _BAR))
        for token_id, cost in zip(scored.token_ids, bits, strict=True)
    ]
    total = f"{sum(bits):.2f} bits in all, log-likelihood {scored.total:.3f} ({scored.metric})"
    return [*table([("  bits", "masked", ""), *rows]), "", total]


def _report(answer: "Filled", style: Style) -> list[str]:
    lines = []
    for number, candidates in enumerate(answer.masks, 1):
        several = f" {number}" if len(answer.masks) > 1 else ""
        lines += [f"mask{several}", *_table(candidates, style), ""]
    if answer.joint:
        rows = [
            (f"{joint.score:6.2%}", " | ".join(repr(c.text) for c in joint.candidates))
            for joint in answer.joint
        ]
        lines += ["together", *table(rows), ""]
    if answer.covered is not None:
        lines.append(
            "exact by Bayes' rule among candidates that hold "
            f"{answer.covered:.1%} of the probability"
        )
    return lines if lines[-1] else lines[:-1]


def _table(candidates: "tuple[FillCandidate, ...]", style: Style) -> list[str]:
    best = max(candidate.score for candidate in candidates) or 1.0
    return table(
        [
            (
                f"{candidate.score:6.2%}",
                repr(candidate.text),
                style.bar(candidate.score / best, _BAR),
            )
            for candidate in candidates
        ]
    )
