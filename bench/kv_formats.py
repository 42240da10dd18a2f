"""The costs and savings of formats of keys and values, compared with f16.

    python bench/kv_formats.py [-m MODEL] [--kv FORMAT …] [--text FILE] [--context 7000]
        [--repeats 5] [--backend cpu]

For each format, as --kv names it (q8_0, or q8_0,q4_0 of keys and of values), it prints the bytes of
a token; over the text, the KL divergence of the next token's distribution from f16's in nats, mean
and largest, and the share of positions with the same likeliest token; and the median milliseconds
of a decode step after --context tokens, the formats in turns. The last line is one JSON document.

The cpu backend rounds activations to 8 bits where weights are quantised, and any small change moves
some of these, which adds to its divergence. --backend reference rounds keys and values only.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from cutaway import LLM
from script import log_softmax, parser_of, step_seconds

TEXT = Path(__file__).resolve().parent.parent / "tests" / "data" / "river_bank.txt"
NEW = 16  # decode steps of a turn
KINDS = ("q8_0", "q5_1", "q4_0", "q8_0,q4_0")


def divergence(one: LLM, other: LLM, text: str) -> dict[str, Any]:
    ids = one.tokenize(text)[: one.model.context - 1]
    p, q = (log_softmax(llm.logits(ids)) for llm in (one, other))
    each = (np.exp(p) * (p - q)).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).mean()
    return {
        "positions": len(ids), "mean": each.mean(), "largest": each.max(), "same_likeliest": same,
    }  # fmt: skip


def step_ms(llm: LLM, prompt: list[int]) -> float:
    """Measure a decode step's median ms. The cache keeps all but the prompt's last block."""
    steps = llm.stream(prompt, temperature=0, ignore_eos=True, max_tokens=NEW + 1)
    next(steps)
    return 1e3 * median(step_seconds(steps))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--kv", nargs="+", default=KINDS)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--context", type=int, default=7000)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    kinds = [*dict.fromkeys(("f16", *args.kv))]
    models = {kv: LLM(args.model, backend=args.backend, kv=kv) for kv in kinds}
    text, plain = args.text.read_text(encoding="utf-8"), models["f16"]
    apart = {kv: divergence(plain, llm, text) for kv, llm in models.items()}
    prompt = np.random.default_rng(0).integers(100, 30000, args.context).tolist()
    for llm in models.values() if args.repeats else ():
        step_ms(llm, prompt)  # reads the prompt
    times: dict[str, list[float]] = {kv: [] for kv in models}
    for _ in range(args.repeats):
        for kv, llm in models.items():
            times[kv].append(step_ms(llm, prompt))
    sizes = {kv: llm.backend.kv.bytes_per_token for kv, llm in models.items()}
    ratios = {
        kv: median(b / a for a, b in zip(times["f16"], times[kv], strict=True))
        for kv in (models if args.repeats else ())
    }
    for kv, found in apart.items():
        time = f"{ratios[kv]:.2f} times the time of a step with f16" if args.repeats else ""
        print(
            f"{kv:10} {sizes[kv]:7,} bytes a token, KL from f16 {found['mean']:.2e} nats, at most "
            f"{found['largest']:.2e}; the same likeliest token at {found['same_likeliest']:.1%} of "
            f"{found['positions']} positions; {time}"
        )
    print(json.dumps({
        "benchmark": "kv_formats", "model": plain.name, "bytes_per_token": sizes,
        "kl": apart, "context": args.context, "step_ms": times, "ratios": ratios,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
