"""Packs a file's matrices into panels of 16 rows, in one arena; reads its vectors as numbers.

Knows which matrices, or rows of one, the ops of a graph read.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cutaway.base import _native
from cutaway.compute.backends.cpu.compile import (
    ExpertMatrices,
    Stored,
    Vector,
)
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Slice
from cutaway.compute.model.ops.linear import HeadsLinear, Linear
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.ops.rows import EmbedStored
from cutaway.files.weights import ModelFile, TensorInfo

if TYPE_CHECKING:
    from cutaway.base.offload import Reads

_AT_ONCE = 1 << 18  # bytes of a matrix for each row of a panel, packed in one piece
_LANES = 16  # rows of a panel
_AHEAD = 32 << 20  # bytes of the file that are read ahead of the packing


class PackedWeights(NamedTuple):
    """The weights that the ops of a graph read.

    matrices  by the rows that an op reads
    experts   all matrices of a tensor of experts, by its name
    vectors   as numbers, by name
    stored    what stays in the file, whose bytes are read as they are wanted
    """

    matrices: dict[Slice, _native.Packed]
    experts: dict[str, ExpertMatrices]
    vectors: dict[str, Vector]
    stored: dict[str, Stored]


class Disk(Protocol):
    """Where packed matrices go instead of memory: see ``Offload``."""

    def open(self, reads: "Reads") -> AbstractContextManager[int]:
        """The descriptor of a file of ``reads.size`` bytes, to be written in the block."""


def pack_matrices(
    graph: Graph,
    file: ModelFile,
    pool: _native.Pool,
    on_progress: Callable[[int], None] = lambda _done: None,
    offload: Disk | None = None,
) -> tuple[dict[Slice, _native.Packed], dict[str, ExpertMatrices]]:
    """Pack every matrix that an op multiplies by or looks up, in the order of the ops.

    The second result has the matrices of experts, of which there may be thousands, by tensor.
    """
    experts = {name for op in graph.ops if op.is_stacked for name in op.matrix_names}
    shapes = _shapes(graph)
    sizes = {p: _native.packed_bytes(file.tensors[p[0]].format, *shapes[p]) for p in shapes}
    size = sum(sizes.values())
    with offload.open(reads_of(graph, file.tensors)) if offload else nullcontext() as disk:
        packed = _pack(_native.Arena(size, disk), shapes, file, pool, on_progress)
    return packed, {name: [packed[p] for p in shapes if p[0] == name] for name in experts}


def read_stored(graph: Graph, file: ModelFile) -> dict[str, Stored]:
    """The matrices that are read by token from the file, which stays open for that."""
    names = [op.weights["weight"] for op in graph.ops if isinstance(op, EmbedStored)]
    return {name: (file.info(name).format, file.raw(name)) for name in names}


def stored_bytes(graph: Graph, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of these matrices, which need no memory."""
    names = {op.weights["weight"] for op in graph.ops if isinstance(op, EmbedStored)}
    return sum(tensors[name].nbytes for name in names)


def weight_bytes(graph: Graph, tensors: Mapping[str, TensorInfo]) -> int:
    """Memory of the matrices, once they are packed."""
    shapes = _shapes(graph).items()
    return sum(_native.packed_bytes(tensors[part[0]].format, *shape) for part, shape in shapes)


def _shapes(graph: Graph) -> dict[Slice, tuple[int, int]]:
    """Rows and columns of each matrix, or part of one, in the order of the ops."""
    wanted = dict.fromkeys(part for op in graph.ops for part in op.matrices(graph.shapes))
    return {part: (part[2] - part[1], graph.shapes[part[0]][-1]) for part in wanted}


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
    """Bytes of matrices that a row multiplies by."""
    from cutaway.base.offload import Reads  # few models are larger than memory

    shapes, always, experts, chosen = _shapes(graph), 0, 0, 0.0
    for op in graph.ops:
        size = sum(
            _native.packed_bytes(tensors[part[0]].format, *shapes[part])
            for part in op.matrices(graph.shapes)
        )
        if isinstance(op, Experts):
            experts += size
            chosen += size * op.mixture.used / graph.shapes[op.weights["up"]][0]
        elif isinstance(op, (Linear, HeadsLinear)):
            always += size
    return Reads(weight_bytes(graph, tensors), always, experts, int(chosen))


def read_vectors(graph: Graph, file: ModelFile) -> dict[str, Vector]:
    """What a graph reads as numbers: norms, biases, divisors of frequencies, convolutions.

    Biases of experts are a row for each.
    """
    found = dict[str, Vector]()
    for name in dict.fromkeys(name for op in graph.ops for name in op.vectors):
        found[name] = file.dequantize(name)
    return found
