"""Which dispatches of a program a step runs, and how many workgroups each has.

Knows how rows, logit rows, chunks and stored states decide that; ``run.py`` submits what is chosen
here, and ``record.py`` and measurements read it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from cutaway.compute.backends.gpu.program import SPLIT_ROWS, Dispatch, Program, divide_up


class StepSize(NamedTuple):
    """What decides which dispatches a step runs: steps of one size run the same.

    chunks  of 256 tokens that the row which sees farthest sees
    runs    how many rows of one sequence follow each other, for each such run; (): all of them
    stored  how many states the step stores
    """

    rows: int
    logits: int
    chunks: int = 1
    runs: tuple[int, ...] = ()
    stored: int = 0

    @property
    def attention(self) -> str:
        """Which kernel attends, as ``Grid.when``: rows of one sequence read the same keys."""
        if self.rows <= SPLIT_ROWS:
            return "split" if self.chunks > 1 else "joined"
        return "joined" if len(self.runs) == self.rows else "tiled"

    def tiles(self, size: int) -> int:
        """Return how many tiles the rows have, if one has at most this many, of one sequence."""
        return sum(divide_up(rows, size) for rows in self.runs or (self.rows,))


class Launch(NamedTuple):
    """A dispatch that a step runs; op: its index in the program, and that of its numbers."""

    op: int
    dispatch: Dispatch
    grid: tuple[int, int, int]


def launches(
    program: Program, size: StepSize, first: int = 0, last: int | None = None
) -> Iterator[Launch]:
    """Yield what a step runs of the dispatches first … last - 1, in order."""
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
