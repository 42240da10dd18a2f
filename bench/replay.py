"""The speed of replaying an interrupted text, beside writing it and beside reading a prompt.

    python bench/replay.py [-m MODEL] [--prompt 200] [--tokens 500] [--rounds 5]
        [--write docs/scale.md]

A prompt of random tokens is continued once. Then, in turns, the text is written again, written with
a replay of all its tokens but the last, and read together with its prompt as one prompt. Figures
are tokens a second, medians of the rounds; the prefix cache has the prompt and nothing else.
--write puts the table between <!-- replay:begin --> and <!-- replay:end -->. The last line is one
JSON document.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from cutaway import LLM
from script import check_page, grid, parser_of, publish

SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1, "top_p": 0.9},
    "sampled, with penalties": {"temperature": 1, "top_p": 0.9, "repetition_penalty": 1.1},
}
WAYS = ("written", "replayed", "read as a prompt")


def per_second(tokens: int, work: Callable[[], object]) -> float:
    """Time the work; return its tokens a second."""
    started = perf_counter()
    work()
    return tokens / (perf_counter() - started)


def measured(
    llm: LLM, prompt: int, tokens: int, rounds: int, sampler: Mapping[str, Any]
) -> dict[str, float]:
    """Measure each way; return medians."""
    ids = np.random.default_rng(0).integers(100, llm.tokenizer.vocab_size, prompt).tolist()
    asked = {**sampler, "seed": 1, "ignore_eos": True, "max_tokens": tokens}
    whole = llm.generate(ids, **asked)
    told = whole.token_ids
    works: dict[str, Callable[[], object]] = {
        "written": lambda: llm.generate(ids, **asked),
        "replayed": lambda: llm.generate(ids, **asked, replay=told[:-1]),
        "read as a prompt": lambda: llm.generate([*ids, *told], max_tokens=1),
    }
    each: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, work in works.items():
            blocks = llm.engine.blocks
            blocks.release(blocks.allocate(blocks.free))  # nothing stays in the prefix cache
            llm.generate(ids, max_tokens=1)
            each[way].append(per_second(tokens, work))
    assert llm.generate(ids, **asked, replay=told[:-1]).fingerprint == whole.fingerprint
    return {way: median(values) for way, values in each.items()}


def markdown(found: Mapping[str, Mapping[str, float]]) -> str:
    head = ["tokens a second", *WAYS, "replayed / written", "replayed / read"]
    rows = []
    for name, each in found.items():
        cells = [f"{each[way]:,.0f}" for way in WAYS]
        cells += [f"{each['replayed'] / each[way]:.1f}" for way in ("written", "read as a prompt")]
        rows.append([name, *cells])
    return grid(head, rows)


def parse(argv: list[str] | None) -> Namespace:
    parser = parser_of(__doc__, write="docs/scale.md")
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    check_page(args.write, "replay")
    with LLM(args.model, progress=False) as llm:
        found = {
            name: measured(llm, args.prompt, args.tokens, args.rounds, sampler)
            for name, sampler in SAMPLERS.items()
        }
    document = {"benchmark": "replay", "tokens_per_second": found}
    publish(markdown(found), document, args.write, "replay")


if __name__ == "__main__":
    main()
