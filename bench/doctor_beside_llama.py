"""The doctor's figures beside llama.cpp's, for the same files and the same text.

    python bench/doctor_beside_llama.py BASE QUANT [QUANT …] [--text FILE] [--tokens 512]
        [--peer-python PYTHON] [--write docs/doctor.md]

BASE and each QUANT are GGUF files. cutaway reads the text with ``Doctor``; llama.cpp (of
llama-cpp-python, in PYTHON) reads the same token ids, all in one window, and its logits give the
same figures by their definitions: what ``llama-perplexity --kl-divergence`` prints, which keeps
BASE's in 16 bits. Both engines round activations to 8 bits where weights are quantised, each in its
own way. The table goes between <!-- doctor-llama:begin --> and <!-- doctor-llama:end -->.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway import LLM
from cutaway.features.measure.doctor import Damage, Doctor, ModelChange, Positions
from script import check_page, grid, log_softmax, parser_of, publish

HERE = Path(__file__).resolve().parent
TEXT = HERE.parent / "tests" / "data" / "river_bank.txt"


def llama_log_probs(python: str, path: Path, ids: list[int]) -> NDArray[np.float64]:
    """llama.cpp's log-probabilities (n, vocab), from a process of its own."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        subprocess.run(
            [python, str(HERE / "peers" / "llama_logits.py"), str(path), str(out)],
            input=json.dumps({"text": ids, "prompt": ids[:2], "new": 1}),
            text=True, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        return log_softmax(np.load(out))


def positions(p: NDArray[Any], q: NDArray[Any], ids: list[int], top: int) -> Positions:
    """Compute the figures by their definitions, from both models' log-probabilities (n, vocab)."""
    p, q, following = p[:-1], q[:-1], np.array(ids[1:])
    every = np.arange(len(following))
    best = [np.argsort(-x, axis=-1, kind="stable")[:, :top] for x in (p, q)]
    overlap = [len({*a.tolist()} & {*b.tolist()}) / top for a, b in zip(*best, strict=True)]
    loss = p[every, following] - q[every, following]
    flipped = best[0][:, 0] != best[1][:, 0]
    return Positions((np.exp(p) * (p - q)).sum(-1), flipped, loss, np.array(overlap))


def row(engine: str, quant: Path, damage: Damage) -> list[str]:
    kl, p99, flips = damage.kl, damage.kl_p99, damage.flips
    ratio = damage.perplexity_ratio
    return [
        quant.name, engine, f"{kl.mean:.4f} [{kl.low:.4f}, {kl.high:.4f}]",
        f"{p99.mean:.3f} [{p99.low:.3f}, {p99.high:.3f}]",
        f"{flips.mean:.1%} [{flips.low:.1%}, {flips.high:.1%}]",
        f"{ratio.mean:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]", f"{damage.overlap.mean:.1%}",
    ]  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__, model=False, write="docs/doctor.md")
    parser.add_argument("base", type=Path)
    parser.add_argument("quants", type=Path, nargs="+", metavar="QUANT")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args()
    check_page(args.write, "doctor-llama")
    text = args.text.read_text(encoding="utf-8")
    with Doctor(args.base, text, tokens=args.tokens, window=args.tokens + 1) as doctor:
        [ids] = doctor.texts
        ours = [doctor.diagnose(ModelChange(quant=quant)).damage for quant in args.quants]
    with LLM(args.base, context=args.tokens + 1, progress=False) as llm:
        of_base = log_softmax(llm.logits([*ids]))
    theirs = llama_log_probs(args.peer_python, args.base, [*ids])
    between = Damage.from_positions(positions(of_base, theirs, [*ids], 10), 10)
    rows = [row("llama.cpp and cutaway, KL between them", args.base, between)]
    for quant, damage in zip(args.quants, ours, strict=True):
        of_quant = positions(theirs, llama_log_probs(args.peer_python, quant, [*ids]), [*ids], 10)
        rows += [
            row("cutaway", quant, damage),
            row("llama.cpp", quant, Damage.from_positions(of_quant, 10)),
        ]
    head = ["file", "engine", "KL, nats", "99th percentile", "flips", "perplexity ×", "top 10 kept"]
    found = {"tokens": len(ids), "rows": [dict(zip(head, each, strict=True)) for each in rows]}
    publish(grid(head, rows), found, args.write, "doctor-llama")


if __name__ == "__main__":
    main()
