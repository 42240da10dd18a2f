"""The gain of the KV cache: milliseconds per token with it and without, as the text grows.

    python bench/kv_cache.py [-m MODEL] [--tokens 128]

Both loops write the same greedy text on the reference backend, in turns (A B A B); the
medians are compared. The last line is one JSON document.
"""

import json
from statistics import median
from typing import Any

from cutaway import LLM
from script import parser_of, step_seconds

PROMPT = "Once upon a time, in a village by the sea,"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    llm = LLM(args.model, backend="reference")
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": args.tokens}
    runs: dict[bool, list[list[float]]] = {True: [], False: []}
    for _ in range(2):
        for cached in (True, False):
            runs[cached].append(step_seconds(llm.stream(PROMPT, kv_cache=cached, **options)))
    rows = []
    print("tokens written   with cache    without    ratio")
    for end in range(args.tokens // 4, args.tokens + 1, args.tokens // 4):
        window = slice(end - args.tokens // 4, end)
        a, b = (median(t for run in runs[c] for t in run[window]) * 1e3 for c in (True, False))
        rows.append({"tokens": end, "cached_ms": a, "naive_ms": b, "ratio": b / a})
        print(f"{end:14d} {a:9.1f} ms {b:7.1f} ms {b / a:7.1f}×")
    print(json.dumps({"benchmark": "kv_cache", "model": llm.name, "rows": rows}))


if __name__ == "__main__":
    main()
