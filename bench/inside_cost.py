"""The cost of a look inside a step, part by part, compared with the step itself.

    python bench/inside_cost.py [-m MODEL] [--contexts 512,2000] [--without 60,120] [--rounds 7]
        [--write docs/inside.md]

A text of random tokens is written and recorded. Then the script looks into its last steps, one
after the other, with all earlier tokens in the prefix cache. Then each token before a step is left
out, for texts as long as --without says. A figure is the median of the rounds, in milliseconds.
--write puts the tables between <!-- inside:begin --> and <!-- inside:end -->. The last line is one
JSON document.
"""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from cutaway import LLM
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import inside
from cutaway.trace import Trace
from script import check_page, grid, parser_of, publish, step_seconds

STEP = "beside: one decode step"


def milliseconds(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return (perf_counter() - started) * 1e3


def recorded(llm: LLM, context: int, tokens: int, path: Path) -> tuple[Trace, float]:
    """Record a text after ``context`` tokens; return its trace and its median step in ms."""
    ids = np.random.default_rng(0).integers(100, llm.tokenizer.vocab_size, context).tolist()
    with llm.stream(ids, seed=1, ignore_eos=True, max_tokens=tokens, trace=path) as stream:
        next(stream)  # the prompt is read
        seconds = step_seconds(stream)
    return Trace.read(path), median(seconds) * 1e3


def looked(llm: LLM, trace: Trace, step: int) -> dict[str, float]:
    """Measure the milliseconds of each part of a look, without the earlier parts that it needs."""
    found = {}
    started = perf_counter()
    look = inside(llm, trace, step)
    found["the row and its keys and values"] = (perf_counter() - started) * 1e3
    found["weights, checked against the heads' outputs"] = milliseconds(lambda: look.weights)
    found["logit attribution: parts, heads, positions"] = milliseconds(look.logit_attribution)
    found["the lens, and the draw after each layer"] = milliseconds(look.lens)
    found["together"] = sum(found.values())
    found["writes"] = milliseconds(lambda: look.writes)
    return found


def measured(llm: LLM, context: int, rounds: int) -> dict[str, float]:
    """Return medians, without the first look, which also makes a plan."""
    with TemporaryDirectory() as folder:
        trace, step = recorded(llm, context, rounds + 5, Path(folder, "run.jsonl"))
    looked(llm, trace, 4)
    each = [looked(llm, trace, 5 + i) for i in range(rounds)]
    return {part: median(one[part] for one in each) for part in each[0]} | {STEP: step}


def left_out(llm: LLM, context: int, rounds: int) -> dict[str, float]:
    """Time leaving out each token before a step. The other tokens are in the prefix cache; each
    round has another text."""
    with TemporaryDirectory() as folder:
        trace, step = recorded(llm, context, rounds + 1, Path(folder, "run.jsonl"))
    each = [milliseconds(partial(ablate, llm, trace, i)) for i in range(rounds)]
    return {"each token left out": median(each), STEP: step}


def markdown(found: dict[int, dict[str, float]]) -> str:
    head = ["milliseconds", *(f"{context:,} tokens" for context in found)]
    parts = next(iter(found.values()))
    return grid(head, ([part, *(f"{each[part]:.1f}" for each in found.values())] for part in parts))


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def parse(argv: list[str] | None) -> Namespace:
    parser = parser_of(__doc__, write="docs/inside.md")
    parser.add_argument("--contexts", type=numbers, default=[512, 2000])
    parser.add_argument("--without", type=numbers, default=[60, 120])
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    check_page(args.write, "inside")
    with LLM(args.model) as llm:
        found = {context: measured(llm, context, args.rounds) for context in args.contexts}
        less = {context: left_out(llm, context, args.rounds) for context in args.without}
    document = {"benchmark": "inside_cost", "milliseconds": found, "without": less}
    publish(f"{markdown(found)}\n\n{markdown(less)}", document, args.write, "inside")


if __name__ == "__main__":
    main()
