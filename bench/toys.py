"""Measures what the toys of the package predict, what their texts cost, and how likely these are.

    python bench/toys.py --write docs/models-measured.md

Figures of the training are those of the file's description. Each toy continues one prompt, once for
each seed. Costs are for a hundred characters, since a token of toy-writer is a piece of a word and
that of the others a character; time is the processor's. The judge writes from left to right and
wrote none of the texts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from time import process_time
from typing import Any

from cutaway import LLM
from cutaway.files.hub.catalog import CATALOG, find_installed
from cutaway.files.weights import GGUFFile
from cutaway.requests.completion import Completion
from script import check_page, grid, parser_of, publish

PROMPT = "It is a truth universally acknowledged, that"
CHARACTERS = 64
TOKENS = 26
"""Tokens of toy-writer that have about as many characters."""
TRAINED = re.compile(r"([\d,]+) steps, ([\d,]+ \w+), ((?:at most )?[\d.]+) bits per character")
SAMPLING = {"temperature": 0.7, "top_p": 1.0}
"""Sampling of the writer and of masks; noise has a schedule of temperatures."""
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "toy-writer": ("left to right", {"max_tokens": TOKENS, **SAMPLING}),
    "toy-canvas": ("masks", {"max_tokens": CHARACTERS, "denoise": True, **SAMPLING}),
    "toy-noise": ("noise", {"max_tokens": CHARACTERS, "denoise": True}),
}


@dataclass
class Costs:
    """The texts of one toy, and their costs in all."""

    characters: int = 0
    passes: int = 0
    rows: int = 0
    ms: float = 0.0
    bits: float = 0.0

    def add(self, text: Completion, ms: float, judge: LLM) -> None:
        """Add a text, its processor time, and the judge's surprise at it."""
        steps, read = len(text.steps), len(text.prompt_token_ids)
        self.characters += len(text.text)
        self.passes += len(text.passes) or steps
        self.rows += sum(canvas_pass.rows for canvas_pass in text.passes) or read + steps - 1
        self.ms += ms
        self.bits -= judge.score(PROMPT, [text.text])[0].total / log(2)

    def per_hundred(self, number: float) -> float:
        """Return a cost for each hundred characters."""
        return 100 * number / self.characters


def measure(llm: LLM, judge: LLM, options: dict[str, Any], texts: int) -> Costs:
    """Write texts, after a first one that is not counted."""
    costs = Costs()
    llm.generate(PROMPT, **options, seed=0)
    for seed in range(1, texts + 1):
        started = process_time()
        text = llm.generate(PROMPT, **options, seed=seed)
        costs.add(text, 1e3 * (process_time() - started), judge)
    return costs


def trained(name: str) -> tuple[str, ...]:
    """Return a toy's steps, the text that it saw, and its bits per character."""
    path = find_installed(CATALOG[name])
    assert path is not None
    file = GGUFFile(path)
    figures = TRAINED.search(str(file.metadata["general.description"]))
    file.close()
    assert figures is not None
    return figures.groups()


def row(name: str, judge: LLM, texts: int) -> list[str]:
    """Measure one toy; return its row of the table."""
    way, options = WAYS[name]
    with LLM(name, threads=1, prefix_cache=False, progress=False) as llm:
        costs = measure(llm, judge, options, texts)
    per_hundred = (costs.per_hundred(n) for n in (costs.passes, costs.rows, costs.ms))
    figures = [f"{figure:,.0f}" for figure in per_hundred]
    return [f"`{name}`", way, *trained(name), *figures, f"{costs.bits / costs.characters:.2f}"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, model=False, write="docs/models-measured.md")
    parser.add_argument("--judge", default="smollm2")
    parser.add_argument("--texts", type=int, default=16, help="of each toy")
    args = parser.parse_args(argv)
    check_page(args.write, "toys")
    with LLM(args.judge, progress=False) as judge:
        head = (
            "toy", "way", "steps", "text seen", "bits per character", "passes", "rows",
            "ms of one core", f"bits per character, by {judge.name}",
        )  # fmt: skip
        rows = [row(name, judge, args.texts) for name in WAYS]
    found = [dict(zip(head, cells, strict=True)) for cells in rows]
    publish(grid(head, rows), found, args.write, "toys")


if __name__ == "__main__":
    main()
