"""Does llama.cpp predict and write the same from the same file?

    python bench/agreement.py [-m MODEL …] [--text FILE] [--peer-python PYTHON]
        [--write docs/models-measured.md]

Three engines read the same text and give the logits of every position: cutaway's `reference`, which
computes with float32 throughout, cutaway's `cpu`, and llama.cpp (llama-cpp-python, in PYTHON). The
last two round activations to 8 bits where weights are quantised, each in its own way. So every file
is read twice: as it is, and with its weights dequantised to F32, where only keys and values are
rounded. The table has the KL divergence from `reference` in nats (the mean over the positions), the
share of positions with the same likeliest token as `reference`, and how many greedy tokens the two
share before the first that differs. --write puts it between <!-- agreement:begin --> and
<!-- agreement:end -->.
"""

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway import LLM
from cutaway.files import hub
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.quantised import QuantisedFile
from script import check_page, grid, log_softmax, parser_of, publish

HERE = Path(__file__).resolve().parent
NEW, PROMPT = 64, 12  # number of greedy tokens, and of the text's tokens before them
TEXT = """The Mole had been working very hard all the morning, spring-cleaning his little home.
First with brooms, then with dusters; then on ladders and steps and chairs, with a brush and a pail
of whitewash; till he had dust in his throat and eyes, and splashes of whitewash all over his black
fur, and an aching back and weary arms. Spring was moving in the air above and in the earth below
and around him, penetrating even his dark and lowly little house with its spirit of divine
discontent and longing."""


@dataclass
class Reader:
    """One engine's results: log-probabilities of a text, (n, vocab), and its greedy tokens."""

    name: str
    log_probs: NDArray[np.float64]
    greedy: list[int]


def read_ours(path: Path, backend: str, text: str) -> tuple[Reader, dict[str, Any]]:
    """Read the text with cutaway; return the results, and the request for the other engine."""
    llm = LLM(path, backend=backend, context=2048, progress=False)
    ids = llm.tokenize(" ".join(text.split()))
    prompt = ids[:PROMPT]
    new = NEW if backend == "cpu" else 1
    done = llm.generate(prompt, temperature=0, max_tokens=new, ignore_eos=True)
    reader = Reader(f"cutaway `{backend}`", log_softmax(llm.logits(ids)), list(done.token_ids))
    return reader, {"text": ids, "prompt": prompt, "new": NEW}


def read_theirs(path: Path, request: dict[str, Any], python: str) -> Reader:
    """Read the text with llama.cpp, in a process of its own."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        command = [python, str(HERE / "peers" / "llama_logits.py"), str(path), str(out)]
        done = subprocess.run(
            command, input=json.dumps(request), text=True, stdout=subprocess.PIPE, check=True
        )
        return Reader("llama.cpp", log_softmax(np.load(out)), json.loads(done.stdout))


def compared(path: Path, text: str, python: str) -> dict[str, Any]:
    """The figures of one file."""
    exact, request = read_ours(path, "reference", text)
    ours, _ = read_ours(path, "cpu", text)
    theirs = read_theirs(path, request, python)
    share = np.exp(exact.log_probs)
    figures: dict[str, Any] = {"model": path.stem, "positions": len(share)}
    for reader in (ours, theirs):
        kl = (share * (exact.log_probs - reader.log_probs)).sum(axis=1)
        same = exact.log_probs.argmax(1) == reader.log_probs.argmax(1)
        figures[reader.name] = {"kl": float(kl.mean()), "same_best": float(same.mean())}
    pairs = zip(ours.greedy, theirs.greedy, strict=True)
    figures["greedy_equal"] = next((i for i, (a, b) in enumerate(pairs) if a != b), NEW)
    difference = np.abs(ours.log_probs - theirs.log_probs)
    figures["largest_difference"] = float((difference * (share > 1e-4)).max())
    return figures


def markdown(rows: list[dict[str, Any]]) -> str:
    head = (
        "file", "positions", "KL of cutaway `cpu`", "KL of llama.cpp", "best token: cutaway",
        "llama.cpp", "greedy tokens equal",
    )  # fmt: skip
    cells = []
    for row in rows:
        both = row["cutaway `cpu`"], row["llama.cpp"]
        kl, best = (
            [f"{one['kl']:.2g}" for one in both],
            [f"{one['same_best']:.1%}" for one in both],
        )
        cells.append(
            [row["model"], row["positions"], *kl, *best, f"{row['greedy_equal']} of {NEW}"]
        )
    return grid(head, cells)


def parse() -> Namespace:
    parser = parser_of(__doc__, model=False, write="docs/models-measured.md")
    parser.add_argument("-m", "--model", action="append", metavar="NAME|PATH")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    return parser.parse_args()


def main() -> None:
    args = parse()
    check_page(args.write, "agreement")
    text = args.text.read_text() if args.text else TEXT
    paths = [hub.resolve(name) for name in args.model or ("smollm2", "gemma3-270m")]
    rows = []
    for path in paths:
        rows.append(compared(path, text, args.peer_python))
        with TemporaryDirectory() as folder, GGUFFile(path) as file:
            plain = Path(folder) / f"{path.stem} as F32.gguf"
            write_gguf(plain, QuantisedFile(file, "F32"), lambda _: None)
            rows.append(compared(plain, text, args.peer_python))
    publish(markdown(rows), rows, args.write, "agreement")


if __name__ == "__main__":
    main()
