"""Which dispatches of a program a step runs, and how many workgroups each has.

Knows how rows, logit rows, chunks and stored states decide that; ``run.py`` submits what is chosen
here, and ``record.py`` and measurements read it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from cutaway.compute.backends.gpu.program import SPLIT_ROWS, Dispatch, Program


class StepSize(NamedTuple):
    """What decides which dispatches a step runs.

    chunks     of 256 tokens that the row which sees farthest sees
    sequences  runs of rows that are of one sequence
    stored     how many states the step stores
    """

    rows: int
    logits: int
    chunks: int = 1
    sequences: int = 1
    stored: int = 0


class Launch(NamedTuple):
    """A dispatch that a step runs; op: its index in the program, and that of its numbers."""

    op: int
    dispatch: Dispatch
    grid: tuple[int, int, int]


def launches(
    program: Program, size: StepSize, first: int = 0, last: int | None = None
) -> Iterator[Launch]:
    """Yield what a step runs of the dispatches first … last - 1, in order."""
    is_split = size.chunks > 1 and size.rows <= SPLIT_ROWS
    skipped = {"joined" if is_split else "split", "" if size.stored else "stored"}
    depth = {"": 1, "chunks": size.chunks, "sequences": size.sequences}
    for op, dispatch in enumerate(program.dispatches[first:last], first):
        grid = dispatch.grid
        count = (size.logits if grid.late else size.rows) * grid.items
        if (grid.when and grid.when in skipped) or not grid.few[0] <= count <= grid.few[1]:
            continue
        yield Launch(op, dispatch, (grid.x, grid.y or -(-count // grid.per_row), depth[grid.z]))
