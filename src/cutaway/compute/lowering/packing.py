"""Packs a file's matrices into panels of 16 rows, and says how many bytes these take.

Knows neither the plan that reads the panels nor where a backend keeps them. compute/lowering knows
which matrices, or rows of a matrix, the ops of a graph read.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from cutaway.base import _native
from cutaway.compute.calls import Call, Floats
from cutaway.compute.lowering import WeightTable, matrix_shapes
from cutaway.compute.lowering.emit import Emitter, lower
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Matrix, Slice
from cutaway.compute.model.ops.linear import HeadsLinear, Linear
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.ops.rows import EmbedStored
from cutaway.files.weights import ModelFile, TensorBytes, TensorInfo

if TYPE_CHECKING:
    from cutaway.base.offload import Reads

Shapes = Mapping[Slice, tuple[int, int]]
"""Rows and columns of matrices, as ``matrix_shapes`` returns them."""
LANES = 16  # how many rows a panel has
_PIECE = 1 << 18  # bytes of a matrix that are packed in one piece, for each row of a panel
_AT_ONCE = 64 << 20  # bytes of pieces that are packed in one call
_AHEAD = 32 << 20  # bytes of the file that are read ahead of the packing


class PackedWeights(NamedTuple):
    """The weights that the ops of a graph read.

    matrices  matrices of a backend's type; a key is a tensor, and the rows of it that an op reads
    vectors   vectors in float32, by name
    stored    tables that stay in the file, from which rows are read when they are looked up
    """

    matrices: Mapping[Slice, Any]
    vectors: Mapping[str, Floats]
    stored: Mapping[str, _native.StoredTable]

    def lower(self, graph: Graph, context: int, **options: Any) -> Emitter:
        """Lower a graph to calls that name these weights by number; options: see ``emit.lower``."""
        table = weight_table(self.matrices, self.vectors, [*self.stored])
        return lower(graph, table, context, **options)


class Packing(NamedTuple):
    """A model whose weights were packed into one file: its matrices, and the calls of its plan."""

    graph: Graph
    file: ModelFile
    packed: Mapping[Slice, _native.Packed]
    calls: list[Call]


def weight_table(
    matrices: Mapping[Slice, Any], vectors: Mapping[str, Floats], stored: Sequence[str] = ()
) -> WeightTable:
    """Return the table of packed weights, whose numbers a plan's calls contain."""
    numbers = {
        part: Matrix(i, packed.rows, packed.cols, packed.is_float)
        for i, (part, packed) in enumerate(matrices.items())
    }
    return WeightTable(numbers, vectors, stored)


def pack_matrices(
    shapes: Shapes,
    file: ModelFile,
    pool: _native.Pool,
    on_progress: Callable[[int], None] = lambda _done: None,
    disk: int | None = None,
) -> dict[Slice, _native.Packed]:
    """Pack matrices into one arena; disk: the descriptor of a file for it, see ``Offload``."""
    arena = _native.Arena(sum(packed_sizes(shapes, file.tensors)), disk)
    return dict(pack(shapes, file, pool, on_progress, arena))


def pack(
    shapes: Shapes,
    file: ModelFile,
    pool: _native.Pool,
    on_progress: Callable[[int], None] = lambda _done: None,
    arena: _native.Arena | None = None,
) -> Iterator[tuple[Slice, _native.Packed]]:
    """Pack matrix after matrix; arena: the arena of all; None gives each an arena of its own.

    Matrices in one arena are packed when the iterator has ended.
    """
    packing, expected = _Packing(pool, on_progress), 0
    coming = iter(dict.fromkeys(part[0] for part in shapes))
    for name, parts in groupby(shapes, lambda part: part[0]):
        end = packing.nbytes + file.tensors[name].nbytes
        while expected < end + _AHEAD and (soon := next(coming, None)):
            file.expect(soon)
            expected += file.tensors[soon].nbytes
        format, raw = file.tensors[name].format, file.raw(name)
        row = raw.nbytes // prod(file.tensors[name].shape[:-1])  # bytes
        factors = file.factors(name)
        for part in parts:
            _, first, last = part
            rows, cols = shapes[part]
            factor = 1.0 if factors is None else float(factors[first // rows % len(factors)])
            into = arena or _native.Arena(_native.packed_bytes(format, rows, cols))
            packed = into.reserve(format, rows, cols, factor)
            packing.add(into, packed, _part(raw, first * row, last * row))
            if not (arena and isinstance(raw, _native.FileBytes)):  # the tensor may be large
                packing.finish()
            yield part, packed
    packing.finish()


def _part(raw: TensorBytes, begin: int, end: int) -> TensorBytes:
    """Return some bytes; those in a file are read by the threads that pack them."""
    return raw.part(begin, end) if isinstance(raw, _native.FileBytes) else raw[begin:end]


class _Packing:
    """Packs pieces of matrices, many in one call, which needs the interpreter lock again only once.

    While weights are packed, another thread makes the tokenizer, and may hold the lock for 5 ms.

    nbytes  of the file, packed or still to be
    """

    def __init__(self, pool: _native.Pool, on_progress: Callable[[int], None]) -> None:
        self._pool, self._on_progress = pool, on_progress
        self._arena: _native.Arena | None = None
        self._pieces: list[tuple[_native.Packed, TensorBytes, int]] = []
        self.nbytes = self._done = 0

    def add(self, arena: _native.Arena, packed: _native.Packed, source: TensorBytes) -> None:
        """Add a matrix, with its bytes as the file has them."""
        row = source.nbytes // packed.rows
        self._arena, step = arena, max(_PIECE // row, 1) * LANES
        for at in range(0, packed.rows, step):
            piece = _part(source, at * row, min(at + step, packed.rows) * row)
            self._pieces.append((packed, piece, at))
            self.nbytes += piece.nbytes
            if self.nbytes - self._done >= _AT_ONCE:
                self.finish()

    def finish(self) -> None:
        """Pack what was added."""
        if self._arena and self._pieces:
            self._arena.fill(self._pool, self._pieces)
            self._pieces, self._done = [], self.nbytes
            self._on_progress(self._done)


def packed_sizes(shapes: Shapes, tensors: Mapping[str, TensorInfo]) -> list[int]:
    """Return the bytes that each matrix has once it is packed."""
    return [_native.packed_bytes(tensors[part[0]].format, *shape) for part, shape in shapes.items()]


def read_stored(
    graph: Graph, file: ModelFile, but: Container[str] = ()
) -> dict[str, _native.StoredTable]:
    """Return the tables whose rows are read from the file, token by token; the file stays open."""
    names = [name for name in _file_tables(graph) if name not in but]
    return {name: _native.StoredTable(file.info(name).format, file.raw(name)) for name in names}


def stored_bytes(graph: Graph, tensors: Mapping[str, TensorInfo]) -> int:
    """Return the bytes of the tables of ``read_stored``, which take no memory."""
    return sum(tensors[name].nbytes for name in _file_tables(graph))


def _file_tables(graph: Graph) -> set[str]:
    return {op.weights["weight"] for op in graph.ops if isinstance(op, EmbedStored)}


def weight_bytes(graph: Graph, tensors: Mapping[str, TensorInfo]) -> int:
    """Return the bytes that all matrices have once they are packed."""
    return sum(packed_sizes(matrix_shapes(graph), tensors))


def reads_of(graph: Graph, tensors: Mapping[str, TensorInfo]) -> "Reads":
    """Return the bytes of all matrices, and of those that a row multiplies by."""
    from cutaway.base.offload import Reads  # few models are larger than memory

    shapes, always, experts, active = matrix_shapes(graph), 0, dict[str, int](), 0.0
    for op in graph.ops:
        size = sum(
            _native.packed_bytes(tensors[part[0]].format, *shapes[part])
            for part in op.matrices(graph.shapes)
        )
        if isinstance(op, Experts):
            experts[op.weights["up"]] = size  # once, even if layers run again
            active += size * op.mixture.used / graph.shapes[op.weights["up"]][0]
        elif isinstance(op, (Linear, HeadsLinear)):
            always += size
    return Reads(weight_bytes(graph, tensors), always, sum(experts.values()), int(active))
