"""A plan's calls as dispatches: which kernel computes each call, with which numbers, in which grid.

Knows where numbers lie and the calls that are one kernel each; matrices, attention, states and
experts are added by the modules of these names. What a kernel computes is known to its file in
wgsl/ alone, and how dispatches are run to ``run.py``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute import calls
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.memory import Memory
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits
from cutaway.compute.backends.gpu.weights import Weights
from cutaway.compute.backends.layout import keys_and_values
from cutaway.compute.calls import Call, View

NONE = 0xFFFFFFFF  # in the place of a buffer or a vector that a kernel does without
SPLIT_ROWS = 8
"""The most rows of which each chunk of 256 tokens has a workgroup of its own in attention."""
THREADS = 64  # of a workgroup of most kernels
_EMBED_BY = ("token", "position", "type")  # in the order of embed.wgsl


class At(NamedTuple):
    """A column of a tensor, whose place in memory is known once the tensors are laid out."""

    tensor: int
    column: int = 0


Numbers = dict[str, int | At]
"""An op's numbers, by their names in its kernel's file."""


class Tensor(NamedTuple):
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
        self, plan: Sequence[Call], weights: Weights, memory: Memory, kv: str, bounds: Bounds
    ) -> None:
        """kv: as ``check_kv`` gave it; bounds: of batches, of which the plan's tables say more."""
        self.bounds = bounds
        self.weights, self.memory = weights, memory
        self.matrices = [*weights.matrices.values()]
        self.kv_formats = keys_and_values(kv)
        self.tensors: list[Tensor] = []
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
        adders = _adders()
        for call in plan:
            adders[type(call)](self, call)
            if not isinstance(call, calls.AddBuffer | calls.SetInput | calls.SetOutput):
                self.ends.append(len(self.dispatches))
        self.tensors[self.output[0]] = self.tensors[self.output[0]]._replace(rows="logits")

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
        self.tensors.append(Tensor(width, quantised, rows))
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


# -- calls that are one kernel each ----------------------------------------------------------------


def _add_buffer(program: Program, call: calls.AddBuffer) -> None:
    program.add_tensor(call.width, quantised=call.quantised)


def _set_input(program: Program, call: calls.SetInput) -> None:
    program.input = call.x


def _set_output(program: Program, call: calls.SetOutput) -> None:
    program.output = call.x


def _embed_rows(program: Program, call: calls.EmbedRows) -> None:
    m = program.matrices[call.matrix]
    if call.by == "token":
        program.bounds = program.bounds._replace(vocab=m.rows)
    if call.by == "type":
        program.bounds = program.bounds._replace(types=m.rows)
    is_float = shaders.is_float(m.format)
    for piece in m.pieces:
        numbers = program.view("out", call.out) | {
            "list": _EMBED_BY.index(call.by), "matrix": piece.word, "panel_words": m.panel_words,
            "columns": m.cols, "factor": float_bits(m.factor), "first": piece.first * 16,
            "last": (piece.first + piece.count) * 16,
        }  # fmt: skip
        kernel = Kernel("embed_float" if is_float else "embed", format=m.format)
        grid = Grid(divide_up(m.cols, THREADS if is_float else 4 * THREADS))
        program.add(kernel, numbers, grid, weights=piece.buffer)


def _embed_stored(program: Program, call: calls.EmbedStoredCall) -> None:
    source = program.add_tensor(call.cols)
    program.file_tables[source] = call.table, call.cols
    numbers = program.view("a", (source, 0)) | program.view("out", call.out)
    numbers |= {"a_size": call.cols, "b": 0, "b_width": 0, "b_size": 0}
    program.add_by_number("join", numbers, call.cols)


def _gather(program: Program, call: calls.Gather) -> None:
    numbers = program.view("x", call.x) | program.view("out", call.out)
    program.add_by_number("gather", numbers, call.width, late=True)


def _join(program: Program, call: calls.JoinCall) -> None:
    (a, a_size), (b, b_size) = call.a, call.b
    numbers = program.view("a", a) | program.view("b", b) | program.view("out", call.out)
    numbers |= {"a_size": a_size, "b_size": b_size}
    program.add_by_number("join", numbers, call.groups * (a_size + b_size), late=call.late)


def _reorder(program: Program, call: calls.ReorderCall) -> None:
    numbers = program.view("x", call.x) | program.view("out", call.out)
    numbers["order"] = program.add_table(call.order, np.int32)
    program.add_by_number("reorder", numbers, len(call.order), late=call.late)


def _normalise(program: Program, call: calls.Normalise) -> None:
    norm, (floats, act) = call.norm, call.out
    size = norm.group if norm.weight.size else call.width
    numbers = program.view("x", call.x) | {
        "norm": bool(norm.weight.size) + bool(norm.bias.size), "size": size,
        "weight": program.add_table(norm.weight), "bias": program.add_table(norm.bias),
        "eps": float_bits(norm.eps), "apart": size if norm.weight.size == call.width else 0,
        "quants": At(act) if act >= 0 else NONE,
        "quant_blocks": program.tensors[act].width // 32 if act >= 0 else 0,
    }  # fmt: skip
    numbers |= program.view("out", floats) if floats[0] >= 0 else no_view("out")
    program.add(Kernel("normalise"), numbers, Grid(call.width // size, late=call.late))


def _rotate(program: Program, call: calls.RotateCall) -> None:
    numbers = program.view("x", call.x) | program.view("out", call.out)
    numbers |= program.rotation(call.rotation) | {"heads": call.heads, "head_dim": call.head_dim}
    program.add(Kernel("rotate"), numbers, Grid(call.heads))


def _elementwise(program: Program, call: calls.Elementwise) -> None:
    numbers = program.view("a", call.a) | program.view("out", call.out)
    numbers |= program.view("b", call.b if call.b[0] >= 0 else call.a)
    numbers |= {"number": float_bits(call.number), "spread": int(call.spread)}
    program.add_by_number("elementwise", numbers, call.width, late=call.late, kind=call.kind)


def _adders() -> dict[type, Callable[[Program, Any], None]]:
    """Return what adds each kind of call to a program."""
    from cutaway.compute.backends.gpu.attention import add_attention
    from cutaway.compute.backends.gpu.experts import add_experts
    from cutaway.compute.backends.gpu.matrices import add_linear
    from cutaway.compute.backends.gpu.states import add_conv, add_delta_net, add_mamba

    return {
        calls.AddBuffer: _add_buffer,
        calls.SetInput: _set_input,
        calls.SetOutput: _set_output,
        calls.EmbedRows: _embed_rows,
        calls.EmbedStoredCall: _embed_stored,
        calls.Gather: _gather,
        calls.JoinCall: _join,
        calls.ReorderCall: _reorder,
        calls.Normalise: _normalise,
        calls.RotateCall: _rotate,
        calls.Elementwise: _elementwise,
        calls.LinearCall: add_linear,
        calls.AttendCall: add_attention,
        calls.ExpertsCall: add_experts,
        calls.ConvCall: add_conv,
        calls.DeltaNetCall: add_delta_net,
        calls.Mamba: add_mamba,
    }
