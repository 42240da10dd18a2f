"""The plan of a model that a page runs, and its packed weights, in files.

Knows the parts of a plan's file and the models that a page's core cannot run; compute/lowering
knows which calls make a plan.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cutaway.base import _native
from cutaway.compute.calls import Floats, plain
from cutaway.compute.lowering import matrix_shapes, read_vectors
from cutaway.compute.lowering.compile import spell_out_orders
from cutaway.compute.lowering.emit import lower
from cutaway.compute.lowering.packing import (
    Packing,
    pack_matrices,
    weight_bytes,
    weight_table,
)
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Slice
from cutaway.compute.model.ops.rows import EmbedStored
from cutaway.errors import InputError
from cutaway.files.weights import ModelFile

Calls = list[list[Any]]
"""A call is its name, then its arguments: numbers, strings, booleans and lists of these."""


class PagePlan(NamedTuple):
    """The data that a page's core needs besides the packed weights.

    matrices  in the file's order, the format, rows, columns and factor of products of each matrix
    calls     calls that make the plan
    tap       calls that make a plan without fusions, whose tensors can all be read
    head      calls that make a plan of the ops after ``logit_rows``, on given rows
    """

    context: int
    matrices: list[tuple[str, int, int, float]]
    calls: Calls
    tap: Calls
    head: Calls


class Readable(NamedTuple):
    """The tensors and weights of a plan, by name.

    tensors   name -> (number of its buffer, width), in the tap's plan
    matrices  slice of the file's matrix -> (number, whether its products read unrounded floats)
    vectors   name -> norm or bias
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
) -> tuple[PagePlan, Readable, Packing]:
    """Pack a model's matrices into a file; return the plan that reads them, and its names.

    on_progress: called by ``pack_matrices``. InputError if the core cannot run the model.
    """
    vectors, pool = read_vectors(graph, file), _native.Pool(1)
    if graph.pooled_graph():
        raise InputError("the model computes vectors or scores, and a page writes texts")
    if any(isinstance(op, EmbedStored) for op in graph.ops):
        raise InputError(
            "the model needs a table of embeddings that stays in its file, which a page cannot run "
            "yet"
        )
    with weights.open("w+b") as disk:
        disk.truncate(weight_bytes(graph, file.tensors))
        packed = pack_matrices(matrix_shapes(graph), file, pool, on_progress, disk.fileno())
    graph, table = spell_out_orders(graph, vectors), weight_table(packed, vectors)
    calls = lower(graph, table, context).calls
    tap = lower(graph, table, context, apart=True, keeps_all=True)
    plan = PagePlan(
        context,
        [
            (file.tensors[name].format, matrix.rows, matrix.cols, matrix.factor)
            for (name, _, _), matrix in packed.items()
        ],
        as_lists(plain(calls)),
        as_lists(plain(tap.calls)),
        as_lists(plain(lower(graph.head_graph(), table, context).calls)),
    )
    read = {
        op.out.name: (tap.view(op.out.name)[0], op.out.width)
        for op in tap.c.ops
        if tap.has(op.out.name)
    }
    matrices = {part: (matrix.number, matrix.is_float) for part, matrix in table.matrices.items()}
    return plan, Readable(read, matrices, vectors), Packing(graph, file, packed, calls)


def as_lists(value: Any) -> Any:
    """Convert arrays and tuples to lists, at any depth."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
