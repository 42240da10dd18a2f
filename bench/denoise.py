"""The cost of a text as a canvas, compared with the loop, for the same weights.

    python bench/denoise.py [-m MODEL] [--prompt 64] [--cells 64] [--rounds 3]
        [--write docs/denoise.md]

An autoregressive model is loaded three more times, as if its tokens attended to the whole text, or
up to the end of their block of 4 or of 8. Its texts then make no sense; the cost is exact, since
the work is that of a diffusion model of the same size. In each round every way of writing is timed
just after the loop, with a prompt of random tokens; a ratio is the median over the rounds. --write
puts the table between <!-- denoise:begin --> and <!-- denoise:end -->. The last line is one JSON
document.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cutaway import LLM
from cutaway.files import hub
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from script import check_page, grid, parser_of, publish

MASK = 0  # any token costs the same
ATTENTIONS = ("causal", "bidirectional", "4", "8")


class Way(NamedTuple):
    """A way to write. rule: of the canvas; None: the loop. share: of the cells a pass reveals."""

    title: str
    attention: str
    share: int = 1
    rule: Mapping[str, Any] | None = None


class Run(NamedTuple):
    """One text's cost. step: median seconds of a step; rows: computed, the prompt's included."""

    seconds: float
    step: float
    passes: int
    rows: int


LOOP = Way("the loop", "causal")
NOISE = {
    "rule": "diffusion-gemma", "steps": None, "max_passes": 8,
    "stability_threshold": None, "confidence_threshold": None,  # all passes run
}  # fmt: skip
WAYS = (
    Way("canvas, one cell a pass", "bidirectional", 1, {}),
    Way("canvas, 2 cells a pass", "bidirectional", 2, {}),
    Way("canvas, 4 cells a pass", "bidirectional", 4, {}),
    Way("blocks of 32, 4 cells a pass", "bidirectional", 4, {"block": 32}),
    Way("blocks of 8, 4 cells a pass", "bidirectional", 4, {"block": 8}),
    Way("blocks of 8, 4 cells a pass, cache prefix (approximate)", "bidirectional", 4,
        {"block": 8, "cache": "prefix"}),
    Way("blocks of 8, 4 cells a pass, cache dual (approximate)", "bidirectional", 4,
        {"block": 8, "cache": "dual"}),
    Way("canvas of noise, 8 passes", "bidirectional", 1, NOISE),
    Way("sees blocks of 4, one cell a pass", "4", 1, {}),
    Way("sees blocks of 4, 2 cells a pass", "4", 2, {}),
    Way("sees blocks of 4, 4 cells a pass", "4", 4, {}),
    Way("sees blocks of 8, 2 cells a pass", "8", 2, {}),
    Way("sees blocks of 8, 4 cells a pass", "8", 4, {}),
    Way("sees blocks of 8, 8 cells a pass", "8", 8, {}),
)  # fmt: skip


def seen_as(source: Path, attention: str, folder: Path) -> Path:
    """Write a copy of a model's file with another attention in its metadata."""
    file, path = GGUFFile(source), folder / f"sees-{attention}.gguf"
    prefix = file.metadata["general.architecture"]
    said = {"cutaway.block_size": int(attention)} if attention.isdecimal() else {}
    said |= {f"{prefix}.attention.causal": False, "tokenizer.ggml.mask_token_id": MASK}
    file.metadata = MappingProxyType({**file.metadata, **said})
    write_gguf(path, file)
    file.close()
    return path


@contextmanager
def models(name: str | None, attentions: set[str]) -> Iterator[dict[str, LLM]]:
    """Load the model once for each attention, without a prefix cache."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        source = Path(hub.resolve(name or "smollm2"))
        yield {
            attention: stack.enter_context(
                LLM(
                    source if attention == "causal" else seen_as(source, attention, folder),
                    prefix_cache=False, progress=False,
                )
            )
            for attention in ATTENTIONS
            if attention in attentions
        }  # fmt: skip


def written(llm: LLM, way: Way, prompt: list[int], cells: int) -> Run:
    """Write one text, and time it from the request to its end."""
    options: dict[str, Any] = {"seed": 1, "ignore_eos": True, "max_tokens": cells}
    if way.rule is not None:
        options["denoise"] = {"steps": cells // way.share, **way.rule}
    started = perf_counter()
    done = llm.generate(prompt, **options)
    seconds = perf_counter() - started
    made = done.passes or done.steps
    rows = sum(one.rows for one in done.passes) or len(prompt) + cells - 1
    step = median(one.phases.schedule + one.phases.run + one.phases.sample for one in made)
    return Run(seconds, step, len(made), rows)


def measured(
    llms: Mapping[str, LLM], ways: tuple[Way, ...], prompt: list[int], cells: int, rounds: int
) -> tuple[list[Run], list[list[tuple[Run, Run]]]]:
    """Return the loop's runs, and for each way its runs, each with the loop's run just before."""
    loops: list[Run] = []
    found: list[list[tuple[Run, Run]]] = [[] for _ in ways]
    for way in (LOOP, *ways):  # warms up the loop and all ways
        written(llms[way.attention], way, prompt, 8)
    for _ in range(rounds):
        for way, pairs in zip(ways, found, strict=True):
            loops.append(written(llms["causal"], LOOP, prompt, cells))
            pairs.append((loops[-1], written(llms[way.attention], way, prompt, cells)))
    return loops, found


def row_of(way: Way, runs: list[Run], ratios: list[float], cells: int) -> dict[str, Any]:
    first = runs[0]
    return {
        "way": way.title,
        "passes": first.passes,
        "rows": first.rows,
        "ms_a_pass": median(run.step for run in runs) * 1e3,
        "tokens_per_s": cells / median(run.seconds for run in runs),
        "times_the_loop": median(ratios),
        "range": [min(ratios), max(ratios)],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        low, high = row["range"]
        times = "1" if low == high == 1 else f"{row['times_the_loop']:.2f} ({low:.2f}–{high:.2f})"
        speeds = f"{row['ms_a_pass']:.1f}", f"{row['tokens_per_s']:.1f}"
        cells.append((row["way"], f"{row['passes']:,}", f"{row['rows']:,}", *speeds, times))
    head = ("way", "passes", "rows", "ms a pass", "tokens/s", "time, of the loop's")
    return grid(head, cells)


def parse(argv: list[str] | None) -> Namespace:
    parser = parser_of(__doc__, write="docs/denoise.md")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    check_page(args.write, "denoise")
    with models(args.model, set(ATTENTIONS)) as llms:
        name, vocab = llms["causal"].name, llms["causal"].tokenizer.vocab_size
        prompt = np.random.default_rng(0).integers(min(100, vocab // 2), vocab, args.prompt)
        loops, found = measured(llms, WAYS, prompt.tolist(), args.cells, args.rounds)
    rows = [row_of(LOOP, loops, [1.0], args.cells)]
    for way, pairs in zip(WAYS, found, strict=True):
        ratios = [run.seconds / loop.seconds for loop, run in pairs]
        rows.append(row_of(way, [run for _, run in pairs], ratios, args.cells))
    said = f"{name}, {args.cells} tokens after {args.prompt}, {args.rounds} rounds:"
    document = {"benchmark": "denoise", "model": name, "cells": args.cells, "rows": rows}
    publish(f"{said}\n\n{markdown(rows)}", document, args.write, "denoise")


if __name__ == "__main__":
    main()
