"""The cost of quantising, without and with an importance matrix.

    python bench/importance.py MODEL.gguf [--calibration FILE …] [--text FILE] [--formats q3_k_m …]
        [--chunks 8]

MODEL is not quantised. It reads the calibration texts (by default the pages in docs/ except one),
and is quantised to each format without and with the matrix. The table has the sizes and, over the
first 512 tokens of --text (by default the excepted page), the mean KL divergence of the next
token's distribution from MODEL's, in nats, both on the cpu backend. The last line is one JSON
document.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cutaway import LLM
from cutaway.features.measure.importance import collect
from cutaway.files.weights.gguf import GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.quantised import QuantisedFile
from script import log_softmax, parser_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
FORMATS = ("q4_k_m", "iq4_xs", "q4_0", "q3_k_m", "q2_k")
TOKENS = 512


def main() -> None:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--calibration", type=Path, nargs="+", default=sorted(DOCS.glob("*.md"))[:-1]
    )
    parser.add_argument("--text", type=Path, default=sorted(DOCS.glob("*.md"))[-1])
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--chunks", type=int, default=8)
    args = parser.parse_args()
    read = "".join(path.read_text(encoding="utf-8") for path in args.calibration)
    with LLM(args.model) as llm:
        ids = llm.tokenize(args.text.read_text(encoding="utf-8"))[:TOKENS]
        plain = log_softmax(llm.logits(ids))
        importance = collect(llm.model, read, chunks=args.chunks)
    found: dict[str, list[float]] = {}
    with GGUFFile(args.model) as source, TemporaryDirectory() as place:
        for format in args.formats:
            for weights in (None, importance):
                made = QuantisedFile(source, format, importance=weights)
                write_gguf(path := Path(place) / "made.gguf", made)
                with LLM(path) as llm:
                    apart = (np.exp(plain) * (plain - log_softmax(llm.logits(ids)))).sum(-1).mean()
                found.setdefault(format, [path.stat().st_size]).append(float(apart))
            size, without, with_it = found[format]
            print(
                f"{format:8} {size / 1e6:6.0f} MB   KL {without:.4f}, with importance {with_it:.4f}"
            )
            sys.stdout.flush()
    print(json.dumps({
        "benchmark": "importance", "model": args.model.name, "chunks": importance.chunks,
        "positions": len(ids), "bytes_kl_and_kl_with_importance": found,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
