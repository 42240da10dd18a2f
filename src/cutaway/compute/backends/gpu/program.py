"""A program: dispatches of kernels, with their numbers, their grids, and the tensors between them.

Knows how dispatches, tensors and tables are added; which a call becomes is known to ``compile.py``,
and how they are run to ``run.py``.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute import calls
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.memory import DeviceMemory
from cutaway.compute.backends.gpu.shaders import Kernel
from cutaway.compute.backends.gpu.weights import DeviceWeights
from cutaway.compute.backends.layout import keys_and_values
from cutaway.compute.calls import View

NONE = 0xFFFFFFFF  # in the place of a buffer or a vector that a kernel does without
SPLIT_ROWS = 8
"""The most rows of which each chunk of 256 tokens has a workgroup of its own in attention."""
THREADS = 64  # of a workgroup of most kernels


class At(NamedTuple):
    """A column of a tensor, whose place in memory is known once the tensors are laid out."""

    tensor: int
    column: int = 0


Numbers = dict[str, int | At]
"""An op's numbers, by their names in its kernel's file."""


class DeviceTensor(NamedTuple):
    """Rows that ops read and write.

    width      numbers of a row
    quantised  whether they are quant blocks
    rows       what it has a row for: each of the "rows", of the "logits", or of the "partials"
    """

    width: int
    quantised: bool = False
    rows: str = "rows"


class Grid(NamedTuple):
    """How many workgroups a dispatch has.

    x        the first number
    per_row  rows of a workgroup, by which the rows are divided for the second
    y        the second number where it has nothing to do with rows; 0: it has
    items    how many of what the second number counts each row has
    late     whether the rows are those whose logits are wanted
    z        "chunks", "sequences" or "" for 1
    few      the fewest and the most rows for which it is run
    when     "split" or "joined", as attention is; "stored" where states are; "" always
    """

    x: int
    per_row: int = 1
    y: int = 0
    items: int = 1
    late: bool = False
    z: str = ""
    few: tuple[int, int] = (1, NONE)
    when: str = ""


class Dispatch(NamedTuple):
    """A kernel with its op's numbers.

    weights  the buffer of packed matrices that it reads
    memory   the buffer of KV blocks or states that it reads or writes
    """

    kernel: Kernel
    numbers: Numbers
    grid: Grid
    weights: int = 0
    memory: int = 0


class Program:
    """The dispatches of a plan.

    tensors       its buffers, by number, and those that ops need beside them
    parts         where in the tables the matrices of linear ops are listed, whose outputs' places
                  are known later; and what is listed
    rotations     by how they are spelt: each with the floats of a row of all before it
    file_tables   by tensor: the table in the file whose rows a step looks up, and their width
    ends          by op: how many dispatches there are after it
    """

    def __init__(
        self, weights: DeviceWeights, memory: DeviceMemory, kv: str, bounds: Bounds
    ) -> None:
        """kv: as ``check_kv`` gave it; bounds: of batches, of which the plan's tables say more."""
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
        self._tables: list[NDArray[np.uint32]] = []
        self._table_words = 0
        self._shared: dict[str, int] = {}

    @property
    def tables(self) -> NDArray[np.uint32]:
        """All vectors and lists that kernels read, (n,) uint32."""
        return np.concatenate([*self._tables, np.zeros(1, np.uint32)])

    # -- what calls are made of ----------------------------------------------------------------

    def add(self, kernel: Kernel, numbers: Numbers, grid: Grid, **buffers: int) -> None:
        """Add a dispatch; buffers: ``weights`` or ``memory``."""
        self.dispatches.append(Dispatch(kernel, numbers, grid, **buffers))

    def add_by_number(
        self, name: str, numbers: Numbers, width: int, *, late: bool = False, kind: str = ""
    ) -> None:
        """Add a kernel of which each thread has a number of a row."""
        grid = Grid(divide_up(width, THREADS), late=late)
        self.add(Kernel(name, kind=kind), numbers | {"width": width}, grid)

    def add_tensor(self, width: int, *, quantised: bool = False, rows: str = "rows") -> int:
        """Add a tensor, and return its number."""
        self.tensors.append(DeviceTensor(width, quantised, rows))
        return len(self.tensors) - 1

    def share_tensor(
        self, name: str, width: int, *, rows: str = "rows", quantised: bool = False
    ) -> At:
        """Return floats that only neighbouring dispatches of one op read, and that ops share."""
        if name not in self._shared:
            self._shared[name] = self.add_tensor(width, rows=rows, quantised=quantised)
        number = self._shared[name]
        tensor = self.tensors[number]
        self.tensors[number] = tensor._replace(width=max(width, tensor.width))
        return At(number)

    def add_table(self, numbers: Any, dtype: type = np.float32) -> int:
        """Put numbers into the tables, and return where they begin; NONE where there are none."""
        words = np.ascontiguousarray(numbers, dtype).view(np.uint32).ravel()
        if not words.size:
            return NONE
        self._tables.append(words)
        self._table_words += words.size
        return self._table_words - words.size

    def view(self, name: str, view: View) -> Numbers:
        """A tensor's place and width, by the names that kernels have for them."""
        return {name: At(*view), f"{name}_width": self.tensors[view[0]].width}

    def rotation(self, rotation: calls.Rotation) -> Numbers:
        """Where a step's cosines and sines are, and how many pairs they rotate."""
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
    """What kernels read in the place of a tensor that there is not."""
    return {name: NONE, f"{name}_width": 0}


def divide_up(a: int, b: int) -> int:
    """Divide, and round up."""
    return -(-a // b)
