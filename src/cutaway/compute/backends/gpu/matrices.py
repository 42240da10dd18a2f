"""Linear ops as dispatches: the matrices of an op share one if they have one layout and buffer.

Knows for how many rows each kernel is made, and which numbers of a matrix the kernel reads.
"""

from collections.abc import Sequence

import numpy as np

from cutaway.compute import calls
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.program import NONE, At, Grid, Numbers, Program, divide_up
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits
from cutaway.compute.backends.gpu.weights import PackedMatrix

STORE, ADD, GATE = 0, 1, 2  # what a kernel does with products; the same numbers as in parts.wgsl
_FLOAT_ROWS = (1, 8)  # rows of a thread in linear_float, whose workgroup has four teams of threads
_ONE_MATRIX = ("EXPERTS", "false")
_PLAIN, _QUANTISES = ("QUANTISES", "false"), ("QUANTISES", "true")

Part = list[int | At]
"""A matrix's eight numbers, in the order of ``Part`` in parts.wgsl."""
Layout = tuple[str, int, int, int]
"""What the matrices of a dispatch have in common: format, columns, words of a panel, buffer."""


def add_linear(program: Program, call: calls.LinearCall, act: int = -1) -> None:
    """Add a linear op: one or more matrices on one input.

    act: the tensor to which the kernels of few rows write quant blocks of a gate's result; see
         ``can_quantise``
    """
    gate = call.finish.gate
    if gate and not _lie_together([program.matrices[part.matrix] for part in call.parts]):
        _add_gate_apart(program, call, gate[0])
        return
    groups: dict[Layout, list[Part]] = {}
    for part in call.parts:
        m, bias = program.matrices[part.matrix], program.add_table(part.bias)
        column = part.column if shaders.is_float(m.format) else part.column // 32
        for piece in m.pieces:
            first = 16 * piece.first
            key = (m.format, m.cols, m.panel_words, piece.buffer)
            out = At(part.out[0], part.out[1] + first)
            groups.setdefault(key, []).append(
                [
                    piece.word, piece.count, min(m.rows - first, 16 * piece.count), out,
                    program.tensors[part.out[0]].width, column, float_bits(m.factor),
                    bias if bias == NONE else bias + first,
                ]
            )  # fmt: skip
    for layout, parts in groups.items():
        _add_multiply(program, call, layout, parts, act)


def can_quantise(program: Program, call: calls.LinearCall) -> bool:
    """Whether the kernel of few rows can also quantise its result, which must be a gate's."""
    matrices = [program.matrices[part.matrix] for part in call.parts]
    first = matrices[0]
    is_gate = bool(call.finish.gate) and _lie_together(matrices)
    return is_gate and not shaders.is_float(first.format) and first.rows % 32 == 0


def _lie_together(matrices: Sequence[PackedMatrix]) -> bool:
    """Whether one dispatch can read all these matrices."""
    layouts = {(m.format, m.cols) for m in matrices}
    buffers = [piece.buffer for m in matrices for piece in m.pieces]
    return len(layouts) == 1 and len(buffers) == len(matrices) and len({*buffers}) == 1


def _add_gate_apart(program: Program, call: calls.LinearCall, kind: str) -> None:
    """Add a gate and its up matrix separately, then the elementwise op that joins them."""
    gate, up = call.parts
    width = program.matrices[gate.matrix].rows
    beside = program.share_tensor("up", width)
    parts = [gate, up._replace(out=(beside.tensor, 0))]
    add_linear(program, call._replace(finish=calls.Finish(), parts=parts))
    numbers = program.view("a", gate.out) | program.view("b", (beside.tensor, 0))
    numbers |= program.view("out", gate.out) | {"number": 0, "spread": 0}
    program.add_by_number("elementwise", numbers, width, late=call.late, kind=kind)


def _add_multiply(
    program: Program, call: calls.LinearCall, layout: Layout, parts: list[Part], act: int
) -> None:
    format, cols, panel_words, buffer = layout
    kind = call.finish.gate[0] if call.finish.gate else ""
    numbers: Numbers = list_parts(program, parts) | {
        "panel_words": panel_words, "mode": GATE if kind else int(call.finish.adds),
        "late": int(call.late), "count": len(parts), "choices": 0, "used": 1, "spread": 0,
        "weighs": 0, "number": 0, "sorted": 0,
    } | list_quants(program, act)  # fmt: skip
    panels = [part[1] for part in parts if isinstance(part[1], int)]
    groups = panels[0] if kind else sum(divide_up(count, 2) for count in panels)
    if shaders.is_float(format):
        numbers |= program.view("x", call.x.floats) | {"columns": cols}
        fewest = 1
        for rows in _FLOAT_ROWS:
            span = (fewest, NONE if rows == _FLOAT_ROWS[-1] else 4 * rows)
            fewest = 4 * rows + 1
            constants = (("ROWS", f"{rows}u"), ("TEAMS", "4u"), _ONE_MATRIX)
            grid = Grid(groups, 4 * rows, late=call.late, few=span)
            program.add(
                Kernel("linear_float", constants, format, kind), numbers, grid, weights=buffer
            )
        return
    numbers |= {"x": At(call.x.act), "x_width": program.tensors[call.x.act].width // 32}
    numbers["columns"] = cols // 32
    fewest = 1
    for rows in shaders.FEW_ROWS:
        constants = (("ROWS", f"{rows}u"), _ONE_MATRIX, _PLAIN if act < 0 else _QUANTISES)
        kernel = Kernel("linear_few", constants, format, kind)
        x = groups if act < 0 else groups // 2
        grid = Grid(x, rows, late=call.late, few=(fewest, rows))
        program.add(kernel, numbers, grid, weights=buffer)
        fewest = rows + 1
    grid = Grid(groups, 32, late=call.late, few=(fewest, NONE))
    program.add(Kernel("linear_many", (_ONE_MATRIX,), format, kind), numbers, grid, weights=buffer)


def list_quants(program: Program, act: int) -> Numbers:
    """Return where quant blocks go, and how many a row has, by the names of these in kernels."""
    if act < 0:
        return {"quants": NONE, "quant_blocks": 0}
    return {"quants": At(act), "quant_blocks": program.tensors[act].width // 32}


def list_parts(program: Program, parts: list[Part]) -> Numbers:
    """Add a list of matrices to the program's tables, and return where it begins."""
    at = program.add_table(np.zeros(8 * len(parts)), np.uint32)
    program.parts.append((at, [number for part in parts for number in part]))
    return {"parts": at}
