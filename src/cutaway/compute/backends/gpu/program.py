"""A program: dispatches of kernels, with their numbers, their grids, and the tensors between them.

Knows how dispatches, tensors and tables are added; ``compile.py`` knows which dispatches compute a
call, and ``run.py`` how they run.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute import calls
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.memory import DeviceMemory
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits
from cutaway.compute.backends.gpu.weights import DeviceWeights
from cutaway.compute.backends.layout import keys_and_values
from cutaway.compute.calls import View

NONE = 0xFFFFFFFF  # in place of a tensor or a vector that is missing
SPLIT_ROWS = 8
"""The most rows for which attention gives each chunk of 256 tokens a workgroup of its own."""
THREADS = 64  # of a workgroup of most kernels


class At(NamedTuple):
    """A column of a tensor, whose place in memory is known once the tensors are laid out."""

    tensor: int
    column: int = 0


Numbers = dict[str, int | At]
"""The numbers that a kernel reads of its op, by their names in the kernel's file."""


class DeviceTensor(NamedTuple):
    """A tensor that ops read and write.

    width      numbers of a row
    quantised  whether the numbers are in quant blocks
    rows       how many rows it has: "rows" as the batch, or as many as "logits" or "partials"
    """

    width: int
    quantised: bool = False
    rows: str = "rows"


class Grid(NamedTuple):
    """How many workgroups a dispatch has in each dimension, and when it runs.

    x        workgroups of the first dimension
    per_row  how many rows one workgroup of the second dimension computes; if attention is "tiled",
             at most, since they are of one sequence
    y        workgroups of the second dimension; 0: rows · items / per_row, rounded up
    extra    further workgroups of the second dimension
    items    how many items each row has: 1, or the experts that it chose
    late     whether the rows are only those whose logits are wanted
    z        workgroups of the third dimension: "chunks", "sequences" or "" for 1
    few      the fewest and the most rows · items with which it runs
    when     "split", "joined" or "tiled": attention is; "stored": the step stores states;
             "": always
    """

    x: int
    per_row: int = 1
    y: int = 0
    extra: int = 0
    items: int = 1
    late: bool = False
    z: str = ""
    few: tuple[int, int] = (1, NONE)
    when: str = ""


class Dispatch(NamedTuple):
    """A kernel with its op's numbers.

    weights  the index of the buffer of packed matrices that it reads
    memory   the index of the buffer of KV blocks or states that it reads or writes
    """

    kernel: Kernel
    numbers: Numbers
    grid: Grid
    weights: int = 0
    memory: int = 0


class Program:
    """The dispatches of a plan.

    tensors       the plan's buffers, by number, and those that ops share
    parts         lists of linear ops' matrices: where each begins in the tables, and its numbers,
                  whose tensors get their places later
    rotations     by ``repr``: each with how many floats the rotations before it take for a row
    file_tables   by tensor: the number of the stored table whose rows a step looks up; their width
    ends          by op: the number of dispatches up to its last
    tiles         by list of tiles: how many rows a tile has at most
    """

    def __init__(
        self, weights: DeviceWeights, memory: DeviceMemory, kv: str, bounds: Bounds
    ) -> None:
        """kv: as ``check_kv`` returned it; bounds: of batches, before the plan's embeddings."""
        self.bounds = bounds
        self.weights, self.memory = weights, memory
        self.matrices = [*weights.matrices.values()]
        self.kv_formats = keys_and_values(kv)
        self.tensors: list[DeviceTensor] = []
        self.dispatches: list[Dispatch] = []
        self.rotations: dict[str, tuple[calls.Rotation, int]] = {}
        self.file_tables: dict[int, tuple[int, int]] = {}
        self.parts: list[tuple[int, list[int | At]]] = []
        self.input: View | None = None
        self.output: View = (0, 0)
        self.ends: list[int] = []
        self.num_states = 0
        self.tiles: list[int] = []
        self._tables: list[NDArray[np.uint32]] = []
        self._table_words = 0
        self._shared: dict[str, int] = {}

    @property
    def tables(self) -> NDArray[np.uint32]:
        """All vectors and lists that kernels read, (n,) uint32."""
        return np.concatenate([*self._tables, np.zeros(1, np.uint32)])

    # -- how calls are added -------------------------------------------------------------------

    def add(self, kernel: Kernel, numbers: Numbers, grid: Grid, **buffers: int) -> None:
        """Add a dispatch; buffers: ``weights`` or ``memory``."""
        self.dispatches.append(Dispatch(kernel, numbers, grid, **buffers))

    def add_by_number(
        self, name: str, numbers: Numbers, width: int, *, late: bool = False, kind: str = ""
    ) -> None:
        """Add a kernel in which each thread computes one number of a row."""
        grid = Grid(divide_up(width, THREADS), late=late)
        self.add(Kernel(name, kind=kind), numbers | {"width": width}, grid)

    def add_tensor(self, width: int, *, quantised: bool = False, rows: str = "rows") -> int:
        """Add a tensor, and return its number."""
        self.tensors.append(DeviceTensor(width, quantised, rows))
        return len(self.tensors) - 1

    def share_tensor(
        self, name: str, width: int, *, rows: str = "rows", quantised: bool = False
    ) -> At:
        """Return a tensor between dispatches of one op; ops that give it this name share it."""
        if name not in self._shared:
            self._shared[name] = self.add_tensor(width, rows=rows, quantised=quantised)
        number = self._shared[name]
        tensor = self.tensors[number]
        self.tensors[number] = tensor._replace(width=max(width, tensor.width))
        return At(number)

    def add_table(self, numbers: Any, dtype: type = np.float32) -> int:
        """Add numbers to the tables; return where they begin, NONE if there are no numbers."""
        words = np.ascontiguousarray(numbers, dtype).view(np.uint32).ravel()
        if not words.size:
            return NONE
        self._tables.append(words)
        self._table_words += words.size
        return self._table_words - words.size

    def list_tiles(self, rows: int) -> int:
        """Return the number of the list of tiles of at most this many rows."""
        if rows not in self.tiles:
            self.tiles.append(rows)
        return self.tiles.index(rows)

    def view(self, name: str, view: View) -> Numbers:
        """Return a tensor's place and width, by their names in kernels."""
        return {name: At(*view), f"{name}_width": self.tensors[view[0]].width}

    def ending(self, call: calls.Elementwise | None, x: View) -> Numbers:
        """Return what kernels read of the elementwise op in which they end; x: their result."""
        if call is None:
            missing = no_view("other") | no_view("result")
            return missing | {"is_second": 0, "number": 0}
        is_second = call.b == x
        other = call.a if is_second else call.b
        return (self.view("other", other) if other[0] >= 0 else no_view("other")) | {
            **self.view("result", call.out),
            "is_second": int(is_second),
            "number": float_bits(call.number),
        }

    def rotation(self, rotation: calls.Rotation) -> Numbers:
        """Return where a rotation's cosines and sines begin, and how many pairs they rotate."""
        key = repr(rotation)
        if key not in self.rotations:
            before = sum(2 * len(other.frequencies) for other, _ in self.rotations.values())
            self.rotations[key] = rotation, before
        return {
            "angles": self.rotations[key][1],
            "pairs": len(rotation.frequencies),
            "rotate_half": int(rotation.rotate_half),
        }


def no_view(name: str) -> Numbers:
    """Return the place and width that kernels read of a missing tensor."""
    return {name: NONE, f"{name}_width": 0}


def divide_up(a: int, b: int) -> int:
    """Divide, and round up."""
    return -(-a // b)
