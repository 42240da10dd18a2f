"""Packs a file's matrices into panels of 16 rows, in one arena, and makes plans that read them.

compute/lowering knows which matrices, or rows of one, the ops of a graph read.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from cutaway.base import _native
from cutaway.compute.calls import Floats, plain
from cutaway.compute.lowering import WeightTable, matrix_shapes
from cutaway.compute.lowering.emit import Emitter, lower
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Matrix, Slice
from cutaway.compute.model.ops.linear import HeadsLinear, Linear
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.ops.rows import EmbedStored
from cutaway.files.weights import ModelFile, TensorInfo

if TYPE_CHECKING:
    from cutaway.base.offload import Reads

_AT_ONCE = 1 << 18  # bytes of a matrix that are packed in one piece, for each row of a panel
_LANES = 16  # rows of a panel
_AHEAD = 32 << 20  # bytes of the file that are read ahead of the packing


class PackedWeights(NamedTuple):
    """The weights that the ops of a graph read.

    matrices  by the tensor and the rows of it that an op reads
    vectors   in float32, by name
    stored    tables that stay in the file, whose rows are read when they are looked up
    """

    matrices: dict[Slice, _native.Packed]
    vectors: dict[str, Floats]
    stored: dict[str, _native.StoredTable]

    def table(self) -> WeightTable:
        """Return the table of weights whose numbers a plan's calls contain."""
        matrices = {
            part: Matrix(i, packed.rows, packed.cols, packed.is_float)
            for i, (part, packed) in enumerate(self.matrices.items())
        }
        return WeightTable(matrices, self.vectors, [*self.stored])

    def plan(self, plan: _native.Plan, graph: Graph, **options: Any) -> Emitter:
        """Add a graph's ops to an empty plan; options: see ``lower``."""
        emitter = lower(graph, self.table(), plan.context, **options)
        plan.add(plain(emitter.calls), [*self.matrices.values()], [*self.stored.values()])
        return emitter


class Disk(Protocol):
    """A file for packed matrices instead of memory: see ``Offload``."""

    def open(self, reads: "Reads") -> AbstractContextManager[int]:
        """Return the descriptor of a file of ``reads.size`` bytes, to be written in the block."""


def pack_matrices(
    graph: Graph,
    file: ModelFile,
    pool: _native.Pool,
    on_progress: Callable[[int], None] = lambda _done: None,
    offload: Disk | None = None,
) -> dict[Slice, _native.Packed]:
    """Pack every matrix that an op multiplies by or looks up, in the order of the ops."""
    shapes = matrix_shapes(graph)
    sizes = {p: _native.packed_bytes(file.tensors[p[0]].format, *shapes[p]) for p in shapes}
    size = sum(sizes.values())
    with offload.open(reads_of(graph, file.tensors)) if offload else nullcontext() as disk:
        return _pack(_native.Arena(size, disk), shapes, file, pool, on_progress)


def read_stored(graph: Graph, file: ModelFile) -> dict[str, _native.StoredTable]:
    """Return the tables whose rows are read from the file, token by token; it stays open."""
    names = [op.weights["weight"] for op in graph.ops if isinstance(op, EmbedStored)]
    return {name: _native.StoredTable(file.info(name).format, file.raw(name)) for name in names}


def stored_bytes(graph: Graph, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of the tables of ``read_stored``, which take no memory."""
    names = {op.weights["weight"] for op in graph.ops if isinstance(op, EmbedStored)}
    return sum(tensors[name].nbytes for name in names)


def weight_bytes(graph: Graph, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of all matrices once they are packed."""
    shapes = matrix_shapes(graph).items()
    return sum(_native.packed_bytes(tensors[part[0]].format, *shape) for part, shape in shapes)


def _pack(
    arena: _native.Arena,
    shapes: dict[Slice, tuple[int, int]],
    file: ModelFile,
    pool: _native.Pool,
    on_progress: Callable[[int], None],
) -> dict[Slice, _native.Packed]:
    packed, done, expected = dict[Slice, _native.Packed](), 0, 0
    coming = iter(dict.fromkeys(part[0] for part in shapes))
    for name, parts in groupby(shapes, lambda part: part[0]):
        while expected < done + file.tensors[name].nbytes + _AHEAD and (soon := next(coming, None)):
            file.expect(soon)
            expected += file.tensors[soon].nbytes
        format, raw = file.tensors[name].format, file.raw(name)
        row = raw.nbytes // prod(file.tensors[name].shape[:-1])  # bytes
        step = max(_AT_ONCE // row, 1) * _LANES  # rows
        factors = file.factors(name)
        for part in parts:
            _, first, last = part
            rows, cols = shapes[part]
            factor = 1.0 if factors is None else float(factors[first // rows % len(factors)])
            packed[part] = arena.reserve(format, rows, cols, factor)
            for at in range(first, last, step):
                begin, end = at * row, min(at + step, last) * row
                if isinstance(raw, _native.FileBytes):  # each thread reads what it packs
                    arena.fill(pool, packed[part], raw.part(begin, end), at - first)
                else:
                    arena.fill(pool, packed[part], raw[begin:end], at - first)
                on_progress(done := done + end - begin)
    return packed


def reads_of(graph: Graph, tensors: Mapping[str, TensorInfo]) -> "Reads":
    """Return the bytes of all matrices, and of those that a row multiplies by."""
    from cutaway.base.offload import Reads  # few models are larger than memory

    shapes, always, experts, active = matrix_shapes(graph), 0, 0, 0.0
    for op in graph.ops:
        size = sum(
            _native.packed_bytes(tensors[part[0]].format, *shapes[part])
            for part in op.matrices(graph.shapes)
        )
        if isinstance(op, Experts):
            experts += size
            active += size * op.mixture.used / graph.shapes[op.weights["up"]][0]
        elif isinstance(op, (Linear, HeadsLinear)):
            always += size
    return Reads(weight_bytes(graph, tensors), always, experts, int(active))


class Weights:
    """Packed matrices and vectors, by name."""

    def __init__(
        self, matrices: Mapping[Slice, _native.Packed], vectors: Mapping[str, Floats]
    ) -> None:
        self._vectors, self._parts = vectors, dict[str, list[tuple[int, int, _native.Packed]]]()
        for (name, first, last), packed in matrices.items():
            self._parts.setdefault(name, []).append((first, last, packed))
        for parts in self._parts.values():
            parts.sort(key=lambda part: part[:2])

    def rows(self, name: str, first: int, last: int | None) -> Floats:
        """See ``Inspectable.weight``."""
        if name in self._vectors:
            return self._vectors[name][first:last]
        parts = self._parts[name]
        last = parts[-1][1] if last is None else last
        pieces = [
            packed.decode(max(first, a) - a, min(last, b) - a)
            for a, b, packed in parts
            if a < last and first < b
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def is_float(self, name: str) -> bool:
        """Whether a matrix reads activations unrounded."""
        return bool(self._parts[name][0][2].is_float)
