"""The plan of a model that a page runs, and its packed weights, in files.

Knows the parts of a plan's file and what a page's core cannot run; which calls make a plan is known
to compute/lowering.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cutaway.base import _native
from cutaway.compute.backends.cpu.packing import PackedWeights, pack_matrices
from cutaway.compute.calls import Floats, plain
from cutaway.compute.lowering import read_vectors
from cutaway.compute.lowering.compile import spell_out_orders
from cutaway.compute.lowering.emit import lower
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Slice
from cutaway.compute.model.ops.rows import EmbedStored
from cutaway.errors import InputError
from cutaway.files.weights import ModelFile

Calls = list[list[Any]]
"""A call is its name, then its arguments: numbers, words, truths and lists of these."""


class PagePlan(NamedTuple):
    """What a core needs with the packed weights.

    matrices  of each, as they lie: its format, rows, columns, and the factor of its products
    calls     that make the plan
    tap       that make the one whose tensors can be read, without fusions
    head      that make the one of the ops after ``logit_rows``, on rows that are given
    """

    context: int
    matrices: list[tuple[str, int, int, float]]
    calls: Calls
    tap: Calls
    head: Calls


class Readable(NamedTuple):
    """What is read by its name, with a plan.

    tensors   of the tap: the number of its buffer, and its width
    matrices  by their slices of the file's: their numbers, and whether they read unrounded floats
    vectors   norms and biases
    """

    tensors: dict[str, tuple[int, int]]
    matrices: dict[Slice, tuple[int, bool]]
    vectors: Mapping[str, Floats]


def write_plan(
    graph: Graph,
    file: ModelFile,
    weights: Path,
    context: int,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> tuple[PagePlan, Readable]:
    """Pack a model's matrices into a file; return the plan that reads them, and its names.

    InputError where the model needs what the core does not have.
    """
    vectors, pool = read_vectors(graph, file), _native.Pool(1)
    if graph.pooled_graph():
        raise InputError("the model computes vectors or scores, and a page writes texts")
    if any(isinstance(op, EmbedStored) for op in graph.ops):
        raise InputError(
            "the model needs a table of embeddings that stays in its file, which a page cannot run "
            "yet"
        )
    packed = pack_matrices(graph, file, pool, on_progress, _Into(weights))
    graph, table = spell_out_orders(graph, vectors), PackedWeights(packed, vectors, {}).table()
    tap = lower(graph, table, context, apart=True, keeps_all=True)
    plan = PagePlan(
        context,
        [
            (file.tensors[name].format, matrix.rows, matrix.cols, matrix.factor)
            for (name, _, _), matrix in packed.items()
        ],
        as_lists(plain(lower(graph, table, context).calls)),
        as_lists(plain(tap.calls)),
        as_lists(plain(lower(graph.head_graph(), table, context).calls)),
    )
    read = {
        op.out.name: (tap.view(op.out.name)[0], op.out.width)
        for op in tap.c.ops
        if tap.has(op.out.name)
    }
    matrices = {part: (matrix.number, matrix.is_float) for part, matrix in table.matrices.items()}
    return plan, Readable(read, matrices, vectors)


class _Into:
    """A file for packed weights, in the place of a folder to offload them to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def open(self, reads: Any) -> Iterator[int]:
        with self._path.open("w+b") as file:
            file.truncate(reads.size)
            yield file.fileno()


def as_lists(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
