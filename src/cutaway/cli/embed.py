"""``cutaway embed``: vectors of texts, or how similar the texts are."""

from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import Bar
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import clip, print_report, table
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.methods.embedding import Embeddings

COMMON = "-m --file --out --prompt --pooling --dimensions --json"
EPILOG = """
examples:
  cutaway embed -m minilm "Paris is in France." "Berlin is in Germany." "I like ice cream."
  cutaway embed -m minilm --file sentences.txt --json > vectors.json
  cutaway embed -m minilm docs/*.md --out index.npz
  cutaway embed --pooling mean "the river bank" "a bank of the river"

Any model makes vectors: the mean of the last layer's rows if it sees the whole text (minilm), the
last row if it writes, unless the model's files say otherwise. --pooling overrides both; the output
says what was used. With --out the arguments are files, whose paragraphs become an index for
cutaway search; the same command continues an interrupted run. A model for late interaction
(ColBERT) makes a vector for each token; --prompt query reads texts as queries.
"""
_MATRIX = 12  # up to so many texts, all pairs are shown as a matrix
_CELLS = 44  # terminal cells of a text


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway embed``."""
    parser.add_argument(
        "texts", nargs="*", metavar="TEXT",
        help="none: each line of standard input is one; with --out: files",
    )  # fmt: skip
    parser.add_argument("--out", metavar="PATH", help="write an index (.npz) of files' paragraphs")
    parser.add_argument(
        "--prompt", metavar="NAME",
        help="one of the model's files, in front of each text (query, document); default: theirs",
    )  # fmt: skip
    parser.add_argument(
        "--task", metavar="NAME",
        help="one that the model has an adapter for (jina v3: retrieval.query, …); default: none",
    )  # fmt: skip
    parser.add_argument("--file", metavar="PATH", help="each line of this file is a text")
    parser.add_argument(
        "--pooling",
        metavar="HOW",
        help="mean, cls (the first row), last or weighted; default: see below",
    )
    parser.add_argument(
        "--normalize", action=BooleanOptionalAction, default=SUPPRESS,
        help="vectors of length 1; default: what the model's files say, or else yes",
    )  # fmt: skip
    parser.add_argument("--dimensions", type=int, metavar="N", help="only the first N numbers")
    parser.add_argument(
        "--truncate", action="store_true", help="cut texts that are longer than the model reads"
    )
    arguments.add_loading_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the vectors, one JSON document")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress while loading")


def run(args: Namespace) -> int:
    """Print how similar the texts are, or their vectors."""
    if args.out:
        return _index(args)
    texts = _texts(args)
    llm = console.load(args)
    if llm.model.pooling.late and args.pooling is None:
        return _print_matrices(args, llm, texts)
    embeddings = llm.embed(
        texts, args.pooling, getattr(args, "normalize", None), args.dimensions,
        prompt=args.prompt, task=args.task, truncate=args.truncate,
    )  # fmt: skip
    print_report(
        args,
        lambda: {"model": llm.name, **embeddings.to_dict()},
        lambda: _report(texts, embeddings),
    )
    return 0


def _print_matrices(args: Namespace, llm: Any, texts: list[str]) -> int:
    """Print the size of each text's matrix of token vectors; with --json, print the vectors."""
    from cutaway.methods.late_interaction import KINDS

    if args.task is not None:
        raise InputError("--task: a model for late interaction has no tasks; leave it out")
    if hasattr(args, "normalize"):
        raise InputError("--normalize: vectors of tokens always have length 1; leave it out")
    kind = args.prompt or "document"
    if kind not in KINDS:
        raise InputError(f"--prompt must be one of {', '.join(KINDS)}, not {kind!r}")
    matrices = llm.embed_tokens(texts, kind, args.dimensions, truncate=args.truncate)

    def report() -> list[str]:
        rows = [
            (clip(repr(text), _CELLS), str(count), f"{len(matrix)} × {matrix.shape[1]}")
            for text, count, matrix in zip(texts, matrices.tokens, matrices.vectors, strict=True)
        ]
        note = f"a vector for each token, read as {kind}; cutaway rerank compares them"
        return [*table([("text", "tokens", "vectors"), *rows]), "", note]

    print_report(args, lambda: {"model": llm.name, **matrices.to_dict()}, report)
    return 0


def _index(args: Namespace) -> int:
    """Write an index of the files' passages."""
    from cutaway.methods.index import Index, passages

    unsupported = ("file", "pooling", "prompt", "task", "json")
    if flags := [name for name in unsupported if getattr(args, name)]:
        raise InputError(f"--{flags[0]}: an index is made as the model's files say; leave it out")
    if not args.texts:
        raise InputError("--out: name the files whose paragraphs are to be indexed")
    texts = [passage for name in args.texts for passage in passages(Path(name))]
    if not texts:
        raise InputError("--out: the files hold no text")
    llm, out = console.load(args), Path(args.out)
    if llm.model.pooling.late:
        raise InputError(
            "--out: an index has one vector a text, and this model makes one for each token: "
            "make the index with another model, and name this one with cutaway search --rerank"
        )
    part = out.with_name(f"{out.name}.part")
    with Bar(f"embedding {len(texts)} passages", len(texts), show=not args.quiet) as bar:
        index = Index.build(
            llm, texts, model=getattr(args, "model", None) or llm.name, part=part,
            dimensions=args.dimensions, progress=bar.update,
        )  # fmt: skip
    index.save(out)
    part.unlink(missing_ok=True)
    width = index.vectors.shape[1]
    print(f"{out}: {len(texts)} passages of {len(args.texts)} files, {width} numbers each")
    return 0


def _texts(args: Namespace) -> list[str]:
    if args.texts and args.file:
        raise InputError("--file: texts are given already; leave out one of the two")
    if args.texts:
        return [namespace.read_text(text) for text in args.texts]
    lines = namespace.read_file(*((args.file, "--file") if args.file else ("-",)))
    texts = [line for line in lines.splitlines() if line.strip()]
    if not texts:
        raise InputError("there is no text: give one or more, each in quotes, or lines of a file")
    return texts


def _report(texts: list[str], embeddings: "Embeddings") -> list[str]:
    names = [clip(repr(text), _CELLS) for text in texts]
    numbers = [str(i) for i in range(1, len(texts) + 1)]
    alike = embeddings.similarities()
    if len(texts) == 1:
        lines = [" ".join(f"{number:.4f}" for number in embeddings.vectors[0])]
    elif len(texts) <= _MATRIX:
        rows = [
            (number, name, *(f"{cosine:6.3f}" for cosine in row))
            for number, name, row in zip(numbers, names, alike.tolist(), strict=True)
        ]
        lines = table([("", "cosine", *(number.rjust(6) for number in numbers)), *rows])
    else:
        alike[range(len(texts)), range(len(texts))] = -2  # not itself
        nearest = alike.argmax(axis=1).tolist()
        rows = [
            (number, name, f"{alike[i, j]:6.3f}", numbers[j], names[j])
            for i, (number, name, j) in enumerate(zip(numbers, names, nearest, strict=True))
        ]
        lines = table([("", "text", "cosine", "", "nearest"), *rows])
    return [*lines, "", _describe(embeddings)]


def _describe(embeddings: "Embeddings") -> str:
    reasons = {"files": "the model's files say so", "default": "by default", "asked": "as asked"}
    length = "length 1" if embeddings.normalized else "length as it comes"
    task = f"; task: {embeddings.task}" if embeddings.task else ""
    summary = (
        f"{embeddings.vectors.shape[1]} numbers each; pooling: {embeddings.pooling} "
        f"({reasons[embeddings.says[0]]}); {length} ({reasons[embeddings.says[1]]}){task}"
    )
    cut = ", ".join(str(i + 1) for i in embeddings.truncated)
    return summary + (f"; cut: {cut}" if cut else "")
