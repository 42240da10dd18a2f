"""Two builds of cutaway in turns, in two processes: what a change of the kernels brings.

    python bench/builds.py OLD_PYTHON MODEL.gguf … [--isa avx2,avx512] [--rounds 15]
        [--seconds 0.3] [--threads N] [--measure decode64,batch8,batch32,prefill,prefill4096]

OLD_PYTHON is an interpreter that has the earlier build: of another worktree, say, with `pip install
-e` into an environment of its own. This interpreter has the later one. Each is measured for a short
time, many times in turns, so that a machine that others use slows down both; the figure is the
median of the ratios of turns, in brackets its quartiles, and the ratio of the best turns.
"""

import os
import sys
from argparse import Namespace
from pathlib import Path
from statistics import median, quantiles

from peers.client import Worker
from peers.goals import METRICS
from peers.table import Metric
from script import grid, parser_of, words

USUAL = "decode64,batch8,batch32,prefill,prefill4096"
HEAD = ("model", "tier", "measured", "before", "after", "after by before", "of the best")


def turns(workers: list[Worker], metric: Metric, args: Namespace) -> list[list[float]]:
    """Figures of a metric: of each round, before and after. The first round warms up."""
    command = metric.command or {}
    rounds = [
        [metric.figure(worker.ask(**command, seconds=args.seconds)) for worker in workers]
        for _ in range(args.rounds + 1)
    ]
    return rounds[1:]


def row(path: Path, tier: str, metric: Metric, rounds: list[list[float]]) -> list[str]:
    """A row of the table."""
    before, after = zip(*rounds, strict=True)
    ratios = [new / old for old, new in rounds]
    low, middle, high = quantiles(ratios, n=4)
    return [
        path.stem, tier, metric.title, metric.shown(median(before)), metric.shown(median(after)),
        f"**{middle:.2f}** ({low:.2f}–{high:.2f})", f"{max(after) / max(before):.2f}",
    ]  # fmt: skip


def measure(path: Path, tier: str, args: Namespace) -> list[list[str]]:
    """The rows of a model on a tier ("" for the best)."""
    os.environ["CUTAWAY_ISA"] = tier
    workers = [
        Worker(python, "cutaway", path, args.threads) for python in (args.old, sys.executable)
    ]
    metrics = [metric for metric in METRICS if metric.name in args.measure and metric.command]
    rows = []
    for metric in metrics:
        rows.append(row(path, tier, metric, turns(workers, metric, args)))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    for worker in workers:
        worker.close()
    return rows


def main() -> None:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("old", metavar="OLD_PYTHON")
    parser.add_argument("models", metavar="MODEL.gguf", type=Path, nargs="+")
    parser.add_argument("--isa", type=words, default=[""], help="tiers, as in avx2,avx512")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each turn")
    parser.add_argument("--measure", type=words, default=words(USUAL))
    args = parser.parse_args()
    rows = [row for path in args.models for tier in args.isa for row in measure(path, tier, args)]
    print(grid(HEAD, rows))


if __name__ == "__main__":
    main()
