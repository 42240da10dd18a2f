"""``cutaway search``: the passages of an index that are nearest to a query."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import clip, print_report, table
from cutaway.errors import InputError
from cutaway.methods.index import Hit, Index

if TYPE_CHECKING:
    from cutaway.methods.reranking import Reranking

COMMON = "-m --top --rerank --json"
EPILOG = """
examples:
  cutaway embed -m minilm docs/*.md --out index.npz
  cutaway search index.npz "how are bits kept the same"
  cutaway search index.npz "how are bits kept the same" --rerank ./ms-marco-MiniLM-L6-v2

Every vector of the index is compared; the model is the one that made it. With --rerank the nearest
passages are read again, each together with the words, by a model that ranks.
"""
_CELLS = 72  # terminal cells of a passage


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway search``."""
    parser.add_argument("index", metavar="INDEX", help="a file of cutaway embed --out")
    parser.add_argument("query", metavar="WORDS", help="what is looked for; - reads from stdin")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many; default 5")
    parser.add_argument("--rerank", metavar="MODEL", help="a model that orders the nearest again")
    parser.add_argument(
        "--candidates", type=int, default=50, metavar="N",
        help="how many passages that model reads; default 50",
    )  # fmt: skip
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser, "no progress while loading")


def run(args: Namespace) -> int:
    """Print the passages, the nearest first."""
    for name in ("top", "candidates"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name} must be 1 or more, not {getattr(args, name)}")
    index, query = Index.open(args.index), namespace.read_text(args.query)
    if getattr(args, "model", None) is None:
        args.model = index.about["model"]
    with console.load(args) as llm:
        index.check(llm)
        count = max(args.top, args.candidates) if args.rerank else args.top
        hits = index.search(llm, query, count)
    ranking = None
    if args.rerank:
        args.model = args.rerank
        with console.load(args) as ranker:
            texts = [hit.passage.text for hit in hits]
            ranking = ranker.rerank(query, texts, top=args.top, truncate=True)
    results = hits if ranking is None else [hits[result.index] for result in ranking.results]
    print_report(
        args, lambda: _document(index, results, ranking), lambda: _report(index, results, ranking)
    )
    return 0


def _document(index: Index, hits: list[Hit], ranking: "Reranking | None") -> dict[str, object]:
    documents = [hit.to_dict() for hit in hits]
    for document, result in zip(documents, ranking.results if ranking else (), strict=False):
        document["relevance"] = result.relevance
    return {"model": index.about["model"], "texts": len(index.passages), "results": documents}


def _report(index: Index, hits: list[Hit], ranking: "Reranking | None") -> list[str]:
    rows = []
    for i, hit in enumerate(hits):
        place = f"{hit.passage.file}:{hit.passage.line}" if hit.passage.file else ""
        text = clip(repr(" ".join(hit.passage.text.split())), _CELLS)
        relevance = (f"{ranking.results[i].relevance:.4f}",) if ranking else ()
        rows.append((*relevance, f"{hit.cosine:.3f}", place, text))
    head = (*(("relevance",) if ranking else ()), "cosine", "where", "passage")
    summary = f"of {len(index.passages)} passages, by {index.about['model']}"
    return [*table([head, *rows]), "", summary]
