"""The cost of a trace: the time of a step with a trace into a file, and without.

    python bench/trace_cost.py [-m MODEL] [--tokens 200] [--candidates 20] [--rounds 7]

The same text is written both ways, in turns (A B A B). A run's figure is its median step. The cost
is the median of the rounds' ratios, less one, with the lowest and the highest; the cost in
processor time is computed in the same way. The last line is one JSON document.
"""

import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, NamedTuple

from cutaway import LLM
from script import parser_of, step_seconds

PROMPT = "Once upon a time, in a village by the sea,"


class Run(NamedTuple):
    """The seconds of the median step, and the processor seconds of a token."""

    step: float
    processor: float


def timed(llm: LLM, tokens: int, **recording: Any) -> Run:
    options: dict[str, Any] = {"seed": 1, "ignore_eos": True, "max_tokens": tokens}
    with llm.stream(PROMPT, **options, **recording) as stream:
        next(stream)  # the prompt is read
        busy, seconds = process_time(), step_seconds(stream)
        return Run(median(seconds), (process_time() - busy) / tokens)


def rounds(llm: LLM, count: int, tokens: int, candidates: int) -> list[tuple[Run, Run, int]]:
    """Run all rounds; return (run without a trace, run with one, the file's bytes) of each."""
    found = []
    with TemporaryDirectory() as folder:
        for i in range(count):
            path = Path(folder, f"{i}.jsonl")
            bare = timed(llm, tokens)
            found.append((bare, timed(llm, tokens, trace=path, candidates=candidates), path))
        return [(bare, traced, path.stat().st_size) for bare, traced, path in found]


def report(done: list[tuple[Run, Run, int]], tokens: int) -> dict[str, Any]:
    """The medians over the rounds, and the lowest and the highest cost."""
    costs = [traced.step / bare.step - 1 for bare, traced, _ in done]
    return {
        "without_ms": median(bare.step for bare, _, _ in done) * 1e3,
        "with_ms": median(traced.step for _, traced, _ in done) * 1e3,
        "cost": median(costs),
        "cost_range": [min(costs), max(costs)],
        "processor_cost": median(t.processor / b.processor - 1 for b, t, _ in done),
        "bytes_per_token": done[0][2] / tokens,
    }


def main(argv: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args(argv)
    llm = LLM(args.model)
    rounds(llm, 1, 8, args.candidates)  # a first round, to warm up
    found = report(rounds(llm, args.rounds, args.tokens, args.candidates), args.tokens)
    low, high = found["cost_range"]
    print(f"without a trace {found['without_ms']:.2f} ms a token, with {found['with_ms']:.2f}")
    print(
        f"cost {found['cost']:.1%} ({low:.1%} to {high:.1%}), {found['processor_cost']:.1%} of "
        f"processor time; {found['bytes_per_token']:.0f} bytes a token"
    )
    print(json.dumps({"benchmark": "trace_cost"} | vars(args) | {"model": llm.name} | found))


if __name__ == "__main__":
    main()
