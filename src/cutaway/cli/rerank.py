"""``cutaway rerank``: documents in the order of their relevance for a query."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import clip, print_report, table
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.methods.reranking import Reranking

COMMON = "-m --file --top --method --instruction --json"
EPILOG = """
examples:
  cutaway rerank -m ./bge-reranker-base "Where is Paris?" "Paris is in France." "I like ice cream."
  cutaway rerank -m minilm --file lines.txt --top 5 "the capital of France"
  cutaway rerank "Where is Paris?" "Paris is in France." "I like ice cream."

A model with a head that scores pairs of texts (a cross-encoder) uses it; one that writes is asked
for yes or no, as Qwen3-Reranker was trained; one that makes vectors compares them, of texts or of
each of their tokens (ColBERT).
"""
_CELLS = 60  # terminal cells of a document


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway rerank``."""
    parser.add_argument("query", metavar="QUERY", help="what is looked for; - reads it from stdin")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", help="the texts to be ordered")
    parser.add_argument("--file", metavar="PATH", help="each line of this file is a document")
    parser.add_argument("--top", type=int, metavar="N", help="only the N most relevant")
    parser.add_argument(
        "--method",
        metavar="HOW",
        help="head, maxsim, answers or cosine; default: what the model has",
    )
    parser.add_argument(
        "--instruction", metavar="TEXT", help="what makes a document relevant, for answers"
    )
    parser.add_argument(
        "--truncate", action="store_true", help="cut documents that are too long for the model"
    )
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser, "no progress while loading")


def run(args: Namespace) -> int:
    """Print the documents, the most relevant first."""
    documents, query = _documents(args), namespace.read_text(args.query)
    llm = console.load(args)
    ranking = llm.rerank(
        query, documents, top=args.top, method=args.method, instruction=args.instruction,
        truncate=args.truncate,
    )  # fmt: skip
    print_report(
        args,
        lambda: {
            "model": llm.name, **ranking.to_dict(),
            "documents": [documents[result.index] for result in ranking.results],
        },
        lambda: report(documents, ranking),
    )  # fmt: skip
    return 0


def _documents(args: Namespace) -> list[str]:
    if args.documents and args.file:
        raise InputError("--file: documents are given already; leave out one of the two")
    if args.documents:
        return [*args.documents]
    if not args.file:
        raise InputError("there is no document: give one or more, each in quotes, or --file PATH")
    lines = namespace.read_file(args.file, "--file").splitlines()
    if not (documents := [line for line in lines if line.strip()]):
        raise InputError(f"--file: {args.file} has no line of text")
    return documents


def report(documents: list[str], ranking: "Reranking") -> list[str]:
    """Return a table of the ranked documents, and a line that says what the scores are."""
    measures = {
        "head": "the model's head, as 1 / (1 + e^-score)", "cosine": "the cosine of vectors",
        "answers": 'the probability of "yes"',
        "maxsim": "the mean cosine of the query's tokens with the nearest of the document",
    }  # fmt: skip
    rows = [
        (
            f"{result.relevance:9.4f}",
            str(result.index + 1),
            clip(repr(documents[result.index]), _CELLS),
        )
        for result in ranking.results
    ]
    cut = f"; cut: {', '.join(str(i + 1) for i in ranking.cut)}" if ranking.cut else ""
    summary = f"relevance: {measures[ranking.method]}; {ranking.tokens} tokens read{cut}"
    return [*table([("relevance", "", "document"), *rows]), "", summary]
