"""Cold processes of two builds in turns: when the first text comes, and processor time.

    python bench/cold.py OLD_PYTHON MODEL.gguf [--rounds 20] [--threads N] [--new-tokens 16]

OLD_PYTHON is an interpreter that has the earlier build; this one has the later. Each process reads
a short prompt, writes a few tokens and ends. Every other round begins with the later build. The
figures are medians, and the median of the ratios of rounds with its quartiles. On a machine that
others use, processor time says more than the seconds to the first text. Install with `pip install`,
without -e: Python runs the hooks of an editable installation at each start.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles

from compare import TEXT
from peers.client import Cold, cold
from script import grid, parser_of

HEAD = ("of a cold process", "before", "after", "after by before")
Run = Callable[[], Cold]


def rounds_of(before: Run, after: Run, rounds: int) -> list[tuple[Cold, Cold]]:
    """Run both in turns; the first round warms up."""
    pairs = []
    for number in range(rounds + 1):
        if number % 2:
            later, earlier = after(), before()
        else:
            earlier, later = before(), after()
        pairs.append((earlier, later))
    return pairs[1:]


def row(title: str, figures: Sequence[tuple[float, float]]) -> list[str]:
    """Return a row of the table. figures: seconds of each round, before and after"""
    before, after = zip(*figures, strict=True)
    low, middle, high = quantiles([new / old for old, new in figures], n=4)
    return [
        title, f"{median(before):.3f} s", f"{median(after):.3f} s",
        f"**{middle:.2f}** ({low:.2f}–{high:.2f})",
    ]  # fmt: skip


def main() -> None:
    """Measure two builds, and print a table."""
    parser = parser_of(__doc__, model=False)
    parser.add_argument("old", metavar="OLD_PYTHON")
    parser.add_argument("model", metavar="MODEL.gguf", type=Path)
    parser.add_argument("--threads", default=str(len(os.sched_getaffinity(0))))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--new-tokens", default="16")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds must be at least 2, for quartiles")
    words = [
        "-m", "cutaway", "generate", "-m", str(args.model.resolve()), "--threads", args.threads,
        "--temperature", "0", "--max-tokens", args.new_tokens, "-q", TEXT,
    ]  # fmt: skip
    pairs = rounds_of(
        lambda: cold([args.old, *words]), lambda: cold([sys.executable, *words]), args.rounds
    )
    rows = [
        row("seconds to the first text", [(a.first_byte_s, b.first_byte_s) for a, b in pairs]),
        row("processor time", [(a.cpu_s, b.cpu_s) for a, b in pairs]),
    ]
    print(grid(HEAD, rows))
    print(f"\n{args.rounds} rounds; the load of the last minute was {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
