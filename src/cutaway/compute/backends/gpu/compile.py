"""Turns a plan's calls into a program: which kernel computes each call, with which numbers.

Knows the calls that are one kernel each; the modules matrices, attention, states and experts add
the other calls. Only a kernel's file in wgsl/ knows what the kernel computes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cutaway.compute import calls
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.attention import add_attention
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.experts import add_experts
from cutaway.compute.backends.gpu.fusing import Fusion, fuse
from cutaway.compute.backends.gpu.matrices import add_linear, list_quants
from cutaway.compute.backends.gpu.memory import DeviceMemory
from cutaway.compute.backends.gpu.program import (
    NONE,
    THREADS,
    Grid,
    Numbers,
    Program,
    divide_up,
    no_view,
)  # fmt: skip
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits
from cutaway.compute.backends.gpu.states import (
    add_conv,
    add_delta_net,
    add_mamba,
    add_mamba1,
    add_wkv,
)
from cutaway.compute.backends.gpu.weights import DeviceWeights
from cutaway.compute.calls import Call

_EMBED_BY = ("token", "position", "type")  # in the order of embed.wgsl


def compile_plan(
    plan: Sequence[Call], weights: DeviceWeights, memory: DeviceMemory, kv: str, bounds: Bounds,
    *, fuses: bool = True,
) -> Program:  # fmt: skip
    """Return the program of a plan; see ``Program``.

    fuses: whether one kernel may compute several calls, see ``fuse``; if not, each op ends where
    the plan says, so that its result can be edited before other ops read it
    """
    program = Program(weights, memory, kv, bounds)
    for fusion in fuse(plan, program) if fuses else map(Fusion, plan):
        _add(program, fusion)
        if not isinstance(fusion.call, calls.AddBuffer | calls.SetInput | calls.SetOutput):
            program.ends.append(len(program.dispatches))
    output = program.output[0]
    program.tensors[output] = program.tensors[output]._replace(rows="logits")
    return program


def _add(program: Program, fusion: Fusion) -> None:
    """Add a call, and the calls around it that its kernel also computes."""
    call, quantising = fusion.call, fusion.quantising
    act = quantising.out.act if quantising else -1
    match call:
        case calls.AttendCall():
            add_attention(program, call, act, fusion.norms)
        case calls.LinearCall():
            add_linear(program, call, act)
            if quantising:  # a kernel of its own quantises many rows
                _normalise(program, quantising, few=(shaders.FEW_ROWS[-1] + 1, NONE))
        case calls.Normalise():
            _normalise(program, call, fusion.ending)
        case calls.ConvCall():
            add_conv(program, call, fusion.ending)
        case calls.ExpertsCall():
            add_experts(program, call, fusion.ending)
        case _:
            _ADDERS[type(call)](program, call)


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


def _normalise(
    program: Program,
    call: calls.Normalise,
    ending: calls.Elementwise | None = None,
    few: tuple[int, int] = (1, NONE),
) -> None:
    norm, (floats, act) = call.norm, call.out
    size = norm.group if norm.weight.size else call.width
    numbers = program.view("x", call.x) | {
        "norm": 3 if norm.limit > 0 else bool(norm.weight.size) + bool(norm.bias.size),
        "size": size,
        "weight": program.add_table(norm.weight), "bias": program.add_table(norm.bias),
        "eps": float_bits(norm.limit or norm.eps),
        "apart": size if norm.weight.size == call.width else 0,
    } | list_quants(program, act)  # fmt: skip
    numbers |= program.view("out", floats) if floats[0] >= 0 else no_view("out")
    numbers |= program.ending(ending, floats)
    kernel = Kernel("normalise", kind=ending.kind if ending else "")
    program.add(kernel, numbers, Grid(call.width // size, late=call.late, few=few))


def _magnitude(program: Program, call: calls.MagnitudeCall) -> None:
    numbers = program.view("x", call.x) | program.view("out", call.out)
    numbers |= {"size": call.width, "centred": int(call.is_centred)}
    program.add(Kernel("magnitude"), numbers, Grid(1, late=call.late))


def _weigh(program: Program, call: calls.WeighCall) -> None:
    numbers = program.view("x", call.x) | program.view("out", call.out)
    numbers["weight"] = program.add_table(call.weight)
    program.add_by_number("weigh", numbers, len(call.weight), late=call.late)


def _convolve_centred(program: Program, call: calls.CentredConvCall) -> None:
    weights = call.weights
    numbers = program.view("x", call.x) | program.view("out", call.out)
    numbers |= {
        "taps": weights.taps, "weight": program.add_table(weights.weight),
        "bias": program.add_table(weights.bias),
    }  # fmt: skip
    program.add_by_number("convolve_centred", numbers, weights.width)


def _own_value(program: Program, call: calls.OwnValueCall) -> None:
    numbers: Numbers = {"size": call.size}
    for name in ("a", "b", "v", "y", "out"):
        numbers = numbers | program.view(name, getattr(call, name))
    program.add(Kernel("own_value"), numbers, Grid(call.width // call.size, late=call.late))


def _softmax(program: Program, call: calls.SoftmaxCall) -> None:
    numbers = program.view("x", call.x) | program.view("out", call.out) | {"size": call.group}
    program.add(Kernel("softmax"), numbers, Grid(call.width // call.group, late=call.late))


def _rotate(program: Program, call: calls.RotateCall) -> None:
    numbers = program.view("x", call.x) | program.view("out", call.out)
    numbers |= program.rotation(call.rotation) | {"heads": call.heads, "head_dim": call.head_dim}
    program.add(Kernel("rotate"), numbers, Grid(call.heads))


def _elementwise(program: Program, call: calls.Elementwise) -> None:
    numbers = program.view("a", call.a) | program.view("out", call.out)
    numbers |= program.view("b", call.b if call.b[0] >= 0 else call.a)
    numbers |= {"number": float_bits(call.number), "spread": int(call.spread)}
    program.add_by_number("elementwise", numbers, call.width, late=call.late, kind=call.kind)


_ADDERS: dict[type, Callable[[Program, Any], None]] = {
    calls.AddBuffer: _add_buffer,
    calls.SetInput: _set_input,
    calls.SetOutput: _set_output,
    calls.EmbedRows: _embed_rows,
    calls.EmbedStoredCall: _embed_stored,
    calls.Gather: _gather,
    calls.JoinCall: _join,
    calls.ReorderCall: _reorder,
    calls.MagnitudeCall: _magnitude,
    calls.SoftmaxCall: _softmax,
    calls.RotateCall: _rotate,
    calls.Elementwise: _elementwise,
    calls.CentredConvCall: _convolve_centred,
    calls.DeltaNetCall: add_delta_net,
    calls.Mamba: add_mamba,
    calls.Mamba1: add_mamba1,
    calls.Wkv: add_wkv,
    calls.WeighCall: _weigh,
    calls.OwnValueCall: _own_value,
}
