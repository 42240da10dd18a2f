"""The costs and savings of the approximate caches of canvases, compared with the exact cache.

    python bench/canvas_caches.py [-m toy-canvas] [--prompt TEXT] [--cells 96] [--block 16]
        [--seeds 8] [--write docs/denoise.md]

For every cell that a pass computed with "prefix" or with "dual", the table has the KL divergence,
in nats, of its distribution from the exact distribution on the same canvas, and how often the
likeliest token is the same. Then come rows, and median milliseconds a pass, the caches in turns.
The last line is one JSON document; --write puts the table between <!-- caches:begin --> and
<!-- caches:end -->. The vocabulary may have 1,000 tokens at most, since each pass records all.
"""

from argparse import Namespace
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway import LLM, Completion
from cutaway.engine import Pass, PassCell
from script import check_page, grid, log_softmax, parser_of, publish

CACHES = ("exact", "prefix", "dual")
PROMPT = "It is a truth universally acknowledged, that "


def revealed(llm: LLM, cache: str, seed: int, args: Namespace, **more: Any) -> Completion:
    made: Completion = llm.denoise(
        args.prompt, cache=cache, block=args.block, max_tokens=args.cells, seed=seed,
        temperature=0.7, ignore_eos=True, **more,
    )  # fmt: skip
    return made


def states(llm: LLM, made: Completion) -> Iterator[tuple[Pass, list[int]]]:
    """Yield each pass, and the token ids of prompt and canvas before it."""
    mask = llm.tokenizer.mask_id
    assert mask is not None
    text = [*made.prompt_token_ids, *[mask] * len(made.token_ids)]
    for one in made.passes:
        yield one, list(text)
        for position, token_id in one.tokens_after.items():
            text[position] = mask if token_id is None else token_id


def recorded(cell: PassCell, vocab: int) -> NDArray[np.float64]:
    """The recorded logits of a cell in its pass, (vocab,)."""
    assert cell.observed is not None
    logits = np.full(vocab, -np.inf)
    for candidate in cell.observed.candidates:
        logits[candidate.id] = candidate.logit
    return logits


def price(llm: LLM, cache: str, args: Namespace) -> dict[str, float]:
    """Compare a cache with exact logits, over all passes but each block's first, which is exact."""
    vocab, shift = llm.tokenizer.vocab_size, int(llm.config.shift)
    apart: list[float] = []
    same: list[bool] = []
    for seed in range(args.seeds):
        made = revealed(llm, cache, seed, args, candidates=vocab, ledger=True)
        begun: set[tuple[int, int]] = set()
        for one, text in states(llm, made):
            if one.block in begun:
                exact = llm.logits(text)
                for cell in one.cells:
                    p = log_softmax(exact[cell.position - shift])
                    q = log_softmax(recorded(cell, vocab))
                    apart.append(float((np.exp(p) * (p - q)).sum()))
                    same.append(bool(p.argmax() == q.argmax()))
            begun.add(one.block)
    return {
        "cells": len(apart), "mean": float(np.mean(apart)), "largest": max(apart),
        "same_likeliest": float(np.mean(same)),
    }  # fmt: skip


def times(llm: LLM, args: Namespace) -> dict[str, list[float]]:
    """Measure milliseconds a pass for each cache, in turns."""
    each: dict[str, list[float]] = {cache: [] for cache in CACHES}
    for seed in range(args.seeds):
        for cache in CACHES:
            made = revealed(llm, cache, seed, args)
            each[cache].append(1e3 * median(one.phases.run for one in made.passes))
    return each


def main() -> None:
    parser = parser_of(__doc__, write="docs/denoise.md")
    parser.set_defaults(model="toy-canvas")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--cells", type=int, default=96)
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    check_page(args.write, "caches")
    llm = LLM(args.model)
    if llm.tokenizer.vocab_size > 1000:
        parser.error("the model has more than 1,000 tokens, which a pass does not record")
    ms = times(llm, args)
    rows = {
        cache: sum(one.rows for one in revealed(llm, cache, 0, args).passes) for cache in CACHES
    }
    prices = {cache: price(llm, cache, args) for cache in CACHES[1:]}
    head = (
        "cache",
        "rows",
        "ms a pass",
        "KL from exact, nats: mean, largest",
        "same likeliest token",
    )
    lines = [("exact", f"{rows['exact']:,}", f"{median(ms['exact']):.2f}", "0", "100 %")]
    for cache, apart in prices.items():
        ratio = median(a / b for a, b in zip(ms["exact"], ms[cache], strict=True))
        speed = f"{median(ms[cache]):.2f} ({ratio:.2f} times as fast)"
        kl = f"{apart['mean']:.3f}, {apart['largest']:.2f}"
        lines.append((cache, f"{rows[cache]:,}", speed, kl, f"{apart['same_likeliest']:.1%}"))
    found = {
        "benchmark": "canvas_caches", "model": llm.name, "cells": args.cells, "block": args.block,
        "rows": rows, "ms": ms, "prices": prices,
    }  # fmt: skip
    publish(grid(head, lines), found, args.write, "caches")


if __name__ == "__main__":
    main()
