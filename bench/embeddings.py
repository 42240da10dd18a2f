"""Embedding speed beside sentence-transformers and llama.cpp: the same model, in turns, as ratios.

    python bench/embeddings.py [-m minilm] [--sentences-python PYTHON] [--llama-python PYTHON]
        [--fastembed-python PYTHON] [--rounds 5] [--seconds 1] [--threads N] [--formats f32,q8_0]
        [--tokens 128,512 [--count 64]] [--write docs/embed.md]

Peers are optional: sentence-transformers (torch, float32), fastembed (ONNX Runtime, float32, with
a model that this script exports) and llama-cpp-python, each in the interpreter that its option
names. cutaway and llama.cpp read the same GGUF files, which this script writes from the folder.
Each engine loads once, in a process of its own, and is measured in turn (A B C A B C): with short
and with long texts, one at a time and 64 at once, or with --count texts of --tokens tokens. Ratios
are medians over the rounds.

First the vectors are compared, over a few hundred texts of many languages and lengths.
--write puts the table between <!-- embeddings:begin --> and <!-- embeddings:end -->. The last line
is JSON.
"""

import json
import os
import random
import sys
from argparse import Namespace
from pathlib import Path
from shutil import copytree
from statistics import median
from subprocess import run
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.loading.parts import open_as
from cutaway.files import hub
from cutaway.files.weights.gguf_writer import write_gguf
from peers.client import PeerError, Worker
from script import check_page, grid, parser_of, publish, words

SENTENCES = (
    "Paris is the capital of France.", "How do I reset my password?", "The cat sat on the mat.",
    "Interest rates rose by 0.25 percentage points.", "A man is playing a guitar on stage.",
)  # fmt: skip
OTHERS = (
    *SENTENCES, "Der schnelle braune Fuchs springt über den faulen Hund.", "Äpfel, Birnen und Öl.",
    "Où est la bibliothèque municipale ?", "¿Dónde está la estación de tren?", "x",
    "日本の首都は東京です。", "Москва — столица России.", "今天天气很好。", "😀 naïve café",
    "SELECT name FROM users WHERE id = 7;", "عاصمة مصر هي القاهرة.", "ไม่เป็นไร", "Χαίρετε!",
)  # fmt: skip
SHORT = [f"{SENTENCES[i % 5]} {i}" for i in range(64)]
LONG = [" ".join(SHORT[(i + j) % 64] for j in range(16)) for i in range(64)]
WORDS = [
    "the",
    "river",
    "runs",
    "by",
    "a",
    "green",
    "house",
    "and",
    "we",
    "went",
    "home",
    "to",
    "read",
    "old",
    "books",
    "at",
    "night",
]
Cases = dict[str, tuple[list[str], int]]
CASES: Cases = {
    "short, one at a time": (SHORT[:8], 1), "short, 64 at once": (SHORT, 64),
    "long, one at a time": (LONG[:4], 1), "long, 64 at once": (LONG, 64),
}  # fmt: skip


def mixed(count: int) -> list[str]:
    """Make texts in many languages, of one sentence to twenty."""
    draw = random.Random(7)
    more = count - len(OTHERS)
    sizes = [draw.choice((1, 2, 2, 3, 4, 6, 9, 20)) for _ in range(more)]
    return [*OTHERS, *(" ".join(draw.choice(OTHERS) for _ in range(size)) for size in sizes)]


def start(args: Namespace, folder: Path, place: Path) -> dict[str, Worker]:
    """Start the engines that are installed; return them by name."""
    wanted = [("sentence-transformers, f32", args.sentences_python, "sentences", folder)]
    if args.fastembed_python:
        export = [args.sentences_python, Path(__file__).parent / "peers" / "export_onnx.py"]
        run([*export, folder, place / "onnx"], check=True, stdout=sys.stderr)
        wanted.append(("fastembed, f32", args.fastembed_python, "fastembed", place / "onnx"))
    for form in args.formats:
        file = place / f"{form}.gguf"
        with open_as(folder, None if form == "f32" else form) as model:
            write_gguf(file, model)
        wanted.append((f"cutaway, {form}", sys.executable, "cutaway_embed", file))
        wanted.append((f"llama.cpp, {form}", args.llama_python, "llama_embed", file))
    found = {}
    for name, python, engine, path in sorted(wanted, key=lambda one: "cutaway" not in one[0]):
        try:
            if python:
                found[name] = Worker(python, engine, path, args.threads)
        except PeerError as error:
            print(f"left out: {name} ({error})", file=sys.stderr)
    return found


def compared(workers: dict[str, Worker], place: Path, count: int) -> dict[str, tuple[float, float]]:
    """For each engine, the least and the median cosine with sentence-transformers' vectors."""
    vectors: dict[str, NDArray[np.float64]] = {}
    for name, worker in workers.items():
        worker.ask(do="vectors", texts=mixed(count), to=str(place / "vectors.npy"))
        found = np.load(place / "vectors.npy").astype(np.float64)
        vectors[name] = found / np.linalg.norm(found, axis=1, keepdims=True)
    first = next((name for name in vectors if name.startswith("sentence")), None)
    if first is None:
        return {}
    each = {name: (found * vectors[first]).sum(axis=1) for name, found in vectors.items()}
    return {name: (float(c.min()), float(np.median(c))) for name, c in each.items()}


def read_whole(folder: Path, place: Path) -> Path:
    """Copy the folder, without a limit that cuts texts below the model's context."""
    copied = place / "model"
    copytree(folder, copied)
    most = json.loads((copied / "config.json").read_text())["max_position_embeddings"]
    file = copied / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_seq_length": most}))
    return copied


def long_as(tokens: int, count: int) -> list[str]:
    """Make texts of so many tokens, including the two that BERT puts around them."""
    draw = random.Random(tokens)
    return [" ".join(draw.choices(WORDS, k=tokens - 2)) for _ in range(count)]


def measured(
    workers: dict[str, Worker], cases: Cases, rounds: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    """Measure texts per second in each round, by case and engine, without the first round."""
    figures: dict[str, dict[str, list[float]]] = {case: {} for case in cases}
    for i in range(rounds + 1):
        print(f"round {i} of {rounds} …", file=sys.stderr, flush=True)
        for case, (texts, at_once) in cases.items():
            for name, worker in workers.items():
                took = worker.ask(
                    do="embed", texts=texts, at_once=at_once, seconds=seconds if i else 0.1
                )
                if i:
                    figures[case].setdefault(name, []).append(at_once / median(took))
    return figures


def table(
    figures: dict[str, dict[str, list[float]]], agree: dict[str, tuple[float, float]]
) -> tuple[str, dict[str, dict[str, float]]]:
    """Return Markdown, and by peer and case how many times as fast cutaway's best format is."""
    names = [*next(iter(figures.values()))]
    rows = []
    ratios: dict[str, dict[str, float]] = {}
    best = [name for name in names if name.startswith("cutaway")][-1]
    for case, each in figures.items():
        cells = [case]
        for name in names:
            shown = f"{median(each[name]):,.0f}"
            if not name.startswith("cutaway"):
                ratio = median(a / b for a, b in zip(each[best], each[name], strict=True))
                ratios.setdefault(name, {})[case] = ratio
                shown += f" ({ratio:.1f}×)"
            cells.append(shown)
        rows.append(cells)
    if agree:
        cosines = [f"{agree[n][1]:.6f} ({agree[n][0]:.4f})" for n in names]
        rows.append(["cosine, median (least)", *cosines])
    text = grid(["texts per second", *names], rows)
    return f"{text}\n\n(n×): how many times as fast `{best}` is.", ratios


def main() -> None:
    parser = parser_of(__doc__, write="docs/embed.md")
    parser.set_defaults(model="minilm")
    parser.add_argument("--sentences-python", default="")
    parser.add_argument("--llama-python", default="")
    parser.add_argument("--fastembed-python", default="")
    parser.add_argument("--tokens", type=words, default=[], help="of texts at once")
    parser.add_argument("--count", type=int, default=64, help="of these texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--formats", type=words, default=["f32", "q8_0"])
    parser.add_argument("--texts", type=int, default=300, help="whose vectors are compared")
    args = parser.parse_args()
    check_page(args.write, "embeddings")
    with TemporaryDirectory() as place:
        folder, cases = hub.resolve(args.model), CASES
        if args.tokens:
            folder = read_whole(folder, Path(place))
            cases = {
                f"{n} tokens, {args.count} at once": (long_as(int(n), args.count), args.count)
                for n in args.tokens
            }
        workers = start(args, folder, Path(place))
        try:
            agree = compared(workers, Path(place), args.texts)
            figures = measured(workers, cases, args.rounds, args.seconds)
        finally:
            for worker in workers.values():
                worker.close()
    text, ratios = table(figures, agree)
    publish(text, {"ratios": ratios, "cosines": agree}, args.write, "embeddings")


if __name__ == "__main__":
    main()
