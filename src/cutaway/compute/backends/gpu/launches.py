"""Chooses the dispatches of a program that a step runs, and how many workgroups each has.

Knows how rows, logit rows, chunks and stored states decide this. ``run.py`` submits the chosen
dispatches, and ``record.py`` and measurements read them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from cutaway.compute.backends.gpu.program import SPLIT_ROWS, Dispatch, Program, divide_up


class StepSize(NamedTuple):
    """What decides which dispatches a step runs: two steps of equal size run the same dispatches.

    chunks  how many chunks of 256 tokens the row that sees most tokens sees
    runs    for each run of rows of one sequence, how many rows it has; (): one run has all rows
    stored  how many states the step stores
    """

    rows: int
    logits: int
    chunks: int = 1
    runs: tuple[int, ...] = ()
    stored: int = 0

    @property
    def attention(self) -> str:
        """How attention is computed, as ``Grid.when`` says; "tiled" rows read keys together."""
        if self.rows <= SPLIT_ROWS:
            return "split" if self.chunks > 1 else "joined"
        return "joined" if len(self.runs) == self.rows else "tiled"

    def tiles(self, size: int) -> int:
        """Return how many tiles the rows make; a tile has at most ``size`` rows of one sequence."""
        return sum(divide_up(rows, size) for rows in self.runs or (self.rows,))


class Launch(NamedTuple):
    """A dispatch that a step runs; op: the index of the dispatch, and of its numbers."""

    op: int
    dispatch: Dispatch
    grid: tuple[int, int, int]


def launches(
    program: Program, size: StepSize, first: int = 0, last: int | None = None
) -> Iterator[Launch]:
    """Yield those of the dispatches first … last - 1 that a step runs, in order."""
    skipped = {"split", "joined", "tiled"} - {size.attention}
    if not size.stored:
        skipped.add("stored")
    depth = {"": 1, "chunks": size.chunks, "sequences": len(size.runs) or 1}
    for op, dispatch in enumerate(program.dispatches[first:last], first):
        grid = dispatch.grid
        count = (size.logits if grid.late else size.rows) * grid.items
        if grid.when in skipped or not grid.few[0] <= count <= grid.few[1]:
            continue
        y = grid.y or divide_up(count, grid.per_row) + grid.extra
        if grid.when == "tiled":
            y = size.tiles(grid.per_row)
        yield Launch(op, dispatch, (grid.x, y, depth[grid.z]))
