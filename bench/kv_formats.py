"""What keys and values as q8_0 cost and save, beside f16.

    python bench/kv_formats.py [-m MODEL] [--text FILE] [--context 7000] [--repeats 5]
        [--backend cpu]

It prints the bytes of a token; over the text, the KL divergence of the next token's distribution
from f16's in nats, mean and largest, and the share of positions with the same likeliest token; and
the median milliseconds of a decode step after --context tokens, the formats in turns (A B A B). The
last line is one JSON document.

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


def divergence(one: LLM, other: LLM, text: str) -> dict[str, Any]:
    ids = one.tokenize(text)[: one.model.context - 1]
    p, q = (log_softmax(llm.logits(ids)) for llm in (one, other))
    each = (np.exp(p) * (p - q)).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).mean()
    return {
        "positions": len(ids), "mean": each.mean(), "largest": each.max(), "same_likeliest": same,
    }  # fmt: skip


def step_ms(llm: LLM, prompt: list[int]) -> float:
    """Of the prompt's prefix all but the last block is kept from turn to turn."""
    steps = llm.stream(prompt, temperature=0, ignore_eos=True, max_tokens=NEW + 1)
    next(steps)
    return 1e3 * median(step_seconds(steps))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--context", type=int, default=7000)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    models = {kv: LLM(args.model, backend=args.backend, kv=kv) for kv in ("f16", "q8_0")}
    apart = divergence(models["f16"], models["q8_0"], args.text.read_text(encoding="utf-8"))
    prompt = np.random.default_rng(0).integers(100, 30000, args.context).tolist()
    for llm in models.values():
        step_ms(llm, prompt)  # reads the prompt
    times: dict[str, list[float]] = {kv: [] for kv in models}
    for _ in range(args.repeats):
        for kv, llm in models.items():
            times[kv].append(step_ms(llm, prompt))
    ratio = median(a / b for a, b in zip(times["f16"], times["q8_0"], strict=True))
    for kv, llm in models.items():
        size = llm.backend.kv.bytes_per_token
        print(f"{kv:5} {size:9,} bytes a token, {median(times[kv]):7.2f} ms a step")
    print(
        f"KL from f16 {apart['mean']:.2e} nats, at most {apart['largest']:.2e}; the same likeliest "
        f"token at {apart['same_likeliest']:.2%} of {apart['positions']} positions; "
        f"f16 takes {ratio:.2f} times the time of q8_0 after {args.context} tokens"
    )
    sizes = {kv: llm.backend.kv.bytes_per_token for kv, llm in models.items()}
    print(json.dumps({
        "benchmark": "kv_formats", "model": models["f16"].name, "bytes_per_token": sizes,
        "kl": apart, "context": args.context, "step_ms": times, "ratio": ratio,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
