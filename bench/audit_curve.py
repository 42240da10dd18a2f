"""How many tokens an audit needs until other weights, settings or luck show.

    python bench/audit_curve.py [-m MODEL] [--texts 24] [--tokens 96] [--write docs/luck.md]

MODEL is first written in F16, and then quantised to the compared formats. Q8_0 draws the texts at
temperature 1, each with a seed of its own. They are audited under other settings: the table has the
share of texts with a token, among their first N, that the luck does not draw; and the largest
false-alarm rate.
The last line is one JSON document; the table goes between <!-- audit-curve:begin --> and
<!-- audit-curve:end -->.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cutaway import LLM
from cutaway.features.evidence.audit import Audit, audit
from script import check_page, grid, parser_of, publish

BOOK = Path(__file__).resolve().parent.parent / "tests" / "data" / "river_bank.txt"
COUNTS = (1, 4, 16, 32, 64, 96)
SETTINGS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}


def shown(done: list[Audit], count: int) -> float:
    """The share of texts with a mismatch among their first ``count`` tokens."""
    return sum(not all(t.matches for t in one.tokens[:count]) for one in done) / len(done)


def main() -> None:
    parser = parser_of(__doc__, write="docs/luck.md")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    check_page(args.write, "audit-curve")
    parts = BOOK.read_text(encoding="utf-8").split()
    apart = (len(parts) - 12) // args.texts
    prompts = [" ".join(parts[apart * i : apart * i + 12]) for i in range(args.texts)]
    with TemporaryDirectory() as folder:
        base = str(Path(folder) / "base.gguf")
        command = [sys.executable, "-m", "cutaway", "quantize", args.model or "smollm2", base]
        subprocess.run([*command, "--to", "f16", "-q"], check=True)
        models = {kind: LLM(base, quantize=kind, progress=False) for kind in ("q8_0", "q4_0")}
        models["f16"] = LLM(base, progress=False)
    eight = models["q8_0"]
    long: dict[str, Any] = {"max_tokens": args.tokens, "ignore_eos": True}
    texts = [
        eight.generate(prompt, seed=n, **SETTINGS, **long).token_ids
        for n, prompt in enumerate(prompts)
    ]
    asked: dict[str, tuple[LLM, int, dict[str, Any]]] = {
        "Q8_0, as it was drawn": (eight, 0, {}),
        "F16 of the same model": (models["f16"], 0, {}),
        "Q4_0 of the same model": (models["q4_0"], 0, {}),
        "temperature 0.9": (eight, 0, {"temperature": 0.9}),
        "another seed": (eight, 1000, {}),
    }
    rows, figures = [], {}
    for name, (llm, more, other) in asked.items():
        done = [
            audit(llm, prompt, ids, n + more, **SETTINGS | other)
            for n, (prompt, ids) in enumerate(zip(prompts, texts, strict=True))
        ]
        curve = [shown(done, count) for count in COUNTS if count <= args.tokens]
        matches = sum(one.matches for one in done) / sum(len(one.tokens) for one in done)
        alarm = max(one.false_alarm for one in done)
        figures[name] = {"curve": curve, "matches": matches, "false_alarm": alarm}
        rows.append([name, *(f"{x:.0%}" for x in curve), f"{matches:.1%}", f"{alarm:.0e}"])
    head = ["audited as", *(f"{n} tokens" for n in COUNTS if n <= args.tokens)]
    table = grid([*head, "matches", "largest false alarm"], rows)
    found = {"benchmark": "audit_curve", "texts": len(texts), "figures": figures}
    publish(table, found, args.write, "audit-curve")


if __name__ == "__main__":
    main()
