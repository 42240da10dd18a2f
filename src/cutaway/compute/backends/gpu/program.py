"""A program: dispatches of kernels, with their numbers, their grids, and the tensors between them.

Knows how dispatches, tensors and tables are added; ``compile.py`` knows which dispatches compute a
call, and ``run.py`` knows how they are run.
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

NONE = 0xFFFFFFFF  # stands for a tensor or a vector that is missing
SPLIT_ROWS = 8
"""The most rows for which attention gives each chunk of 256 tokens a workgroup of its own."""
THREADS = 64  # threads of a workgroup, in most kernels


class At(NamedTuple):
    """A column of a tensor, whose place in memory is known once the tensors are laid out."""

    tensor: int
    column: int = 0


Numbers = dict[str, int | At]
"""The numbers of an op that its kernel reads, by their names in the kernel's file."""


class DeviceTensor(NamedTuple):
    """A tensor that ops read and write.

    width      how many numbers a row has
    quantised  whether the numbers are in quant blocks
    rows       how many rows there are: one for each of the batch's "rows", of its "logits", or of
               the "partials" of attention
    """

    width: int
    quantised: bool = False
    rows: str = "rows"


class Grid(NamedTuple):
    """How many workgroups a dispatch has in each dimension, and when it runs.

    x        how many workgroups the first dimension has
    per_row  how many rows one workgroup of the second dimension computes; if attention is "tiled",
             it may compute fewer, since its rows are of one sequence
    y        how many workgroups the second dimension has; 0: rows · items / per_row, rounded up
    extra    how many more workgroups the second dimension has
    items    how many items each row has: 1, or one for each expert that it chose
    late     whether the rows are only those whose logits are wanted
    z        how many workgroups the third dimension has: as many as the step has "chunks" or
             "sequences"; "": 1
    few      the fewest and the most rows · items with which the dispatch runs
    when     it runs only if attention is "split", "joined" or "tiled", or only if the step stores
             states ("stored"); "": it always runs
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
    """A kernel with the numbers of its op.

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

    tensors       the plan's buffers, by number, then the tensors that ops share
    parts         the lists of linear ops' matrices: where each list begins in the tables, and its
                  numbers; tensors in it get their places later
    rotations     a rotation's ``repr`` -> the rotation, and how many floats the rotations before it
                  take in a row
    file_tables   a tensor -> the number of the stored table whose rows a step looks up for it, and
                  the width of these rows
    ends          for each op, how many dispatches there are up to its last one
    tiles         for each list of tiles, the most rows that a tile has
    """

    def __init__(
        self, weights: DeviceWeights, memory: DeviceMemory, kv: str, bounds: Bounds
    ) -> None:
        """kv: what ``check_kv`` returned; bounds: a batch's, to which embeddings add later."""
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
        """Return all vectors and lists that kernels read: (n,) uint32."""
        return np.concatenate([*self._tables, np.zeros(1, np.uint32)])

    # -- how calls are added -------------------------------------------------------------------

    def add(self, kernel: Kernel, numbers: Numbers, grid: Grid, **buffers: int) -> None:
        """Add a dispatch; buffers: ``weights`` or ``memory``, see ``Dispatch``."""
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
        """Return a tensor that dispatches of one op use; ops that use the same name share it."""
        if name not in self._shared:
            self._shared[name] = self.add_tensor(width, rows=rows, quantised=quantised)
        number = self._shared[name]
        tensor = self.tensors[number]
        self.tensors[number] = tensor._replace(width=max(width, tensor.width))
        return At(number)

    def add_table(self, numbers: Any, dtype: type = np.float32) -> int:
        """Add numbers to the tables; return where they begin, or NONE if there are no numbers."""
        words = np.ascontiguousarray(numbers, dtype).view(np.uint32).ravel()
        if not words.size:
            return NONE
        self._tables.append(words)
        self._table_words += words.size
        return self._table_words - words.size

    def list_tiles(self, rows: int) -> int:
        """Return the number of the list whose tiles have at most this many rows."""
        if rows not in self.tiles:
            self.tiles.append(rows)
        return self.tiles.index(rows)

    def view(self, name: str, view: View) -> Numbers:
        """Return a tensor's place and width, by the names that these have in kernels."""
        return {name: At(*view), f"{name}_width": self.tensors[view[0]].width}

    def ending(self, call: calls.Elementwise | None, x: View) -> Numbers:
        """Return the numbers of the elementwise op that ends a kernel; x: the kernel's result."""
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
