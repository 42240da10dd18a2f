"""A mixture of experts as dispatches: the choice, gate and up, down, and the weighted sum.

An item is one expert that a row chose; a row's items are in the order of rank. The device finds the
matrices of an item's expert by itself.
"""

import numpy as np

from cutaway.compute import calls
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.matrices import GATE, STORE, Part, list_parts
from cutaway.compute.backends.gpu.program import (
    NONE,
    THREADS,
    At,
    Grid,
    Numbers,
    Program,
    divide_up,
    no_view,
)  # fmt: skip
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits
from cutaway.errors import OutOfMemoryError

_SORTED_ROWS = 16  # the fewest rows whose items are sorted by expert
_TILE = 32  # the most items of a tile in sort.wgsl
_EXPERTS = ("EXPERTS", "true")
_GATINGS = ("softmax", "sigmoid", "sparsemixer")  # in the order of route.wgsl


def add_experts(
    program: Program, call: calls.ExpertsCall, ending: calls.Elementwise | None = None
) -> None:
    """Add a mixture of experts, whose last kernel may also compute an elementwise op."""
    late, _, _, choice, out, inner = call.arguments
    up, down = (program.matrices[m.matrix] for m in (call.experts[0].up, call.experts[0].down))
    choices = program.share_tensor("choices", 2 * choice.used)
    _add_route(program, call, choices)
    items: Numbers = {
        "choices": choices, "used": choice.used, "late": int(late),
        "sorted": _add_sort(program, call, choices),
    }  # fmt: skip
    middle = At(*inner) if inner[0] >= 0 else program.share_tensor("middle", choice.used * up.rows)
    places = _add_inward(program, call, items, middle)
    results = program.share_tensor("results", choice.used * down.rows)
    outward: Numbers = items | {"spread": 0, "weighs": 0, "number": 0}
    _add_chosen(program, places, [[expert.down] for expert in call.experts], outward, results)
    numbers = program.view("out", out) | {
        "x": results, "used": choice.used, "choices": choices,
        "weighs_input": int(choice.weighs_input),
    } | program.ending(ending, out)  # fmt: skip
    kind = ending.kind if ending else ""
    program.add_by_number("mix", numbers, down.rows, late=late, kind=kind)


def _add_inward(
    program: Program, call: calls.ExpertsCall, items: Numbers, middle: At
) -> calls.Places:
    """Add each item's gate and up matrices, or its up matrix alone, and the activation.

    The result goes to ``middle``. Return the place from which the down matrices read it.
    """
    late, x, _, choice, _, _ = call.arguments
    up, down = (program.matrices[m.matrix] for m in (call.experts[0].up, call.experts[0].down))
    width, fewest = up.rows, 1
    inward: Numbers = items | {
        "spread": 1, "weighs": int(choice.weighs_input), "number": float_bits(choice.limit),
    }  # fmt: skip
    act = -1
    if not shaders.is_float(down.format):
        act = program.share_tensor("middle acts", choice.used * width, quantised=True).tensor
    pairs = [[*expert.gate, expert.up] for expert in call.experts]
    if all(_buffer_of(program, pair) is not None for pair in pairs):
        is_fused = len(pairs[0]) == 2 and not shaders.is_float(up.format) and width % 32 == 0
        fused_act = act if is_fused else -1
        _add_chosen(program, x, pairs, inward, middle, kind=choice.activation, act=fused_act)
        fewest = _SORTED_ROWS * choice.used if is_fused else 1
    else:
        beside = program.share_tensor("up", choice.used * width)
        _add_chosen(program, x, [pair[:1] for pair in pairs], inward, middle)
        _add_chosen(program, x, [pair[1:] for pair in pairs], inward, beside)
        numbers: Numbers = {
            "a": middle, "a_width": width, "b": beside, "b_width": width, "out": middle,
            "out_width": width, "width": width, "number": float_bits(choice.limit), "spread": 0,
        }  # fmt: skip
        grid = Grid(divide_up(width, THREADS), items=choice.used, late=late)
        program.add(Kernel("elementwise", kind=choice.activation), numbers, grid)
    if act >= 0:
        grid = Grid(1, items=choice.used, late=late, few=(fewest, NONE))
        _quantise_middle(program, middle, width, act, grid)
    return calls.Places((middle.tensor, middle.column), act)


def _add_sort(program: Program, call: calls.ExpertsCall, choices: At) -> At:
    """Add the kernel that sorts many rows' items by expert, and return where their order goes."""
    late, choice, experts = call.arguments.late, call.arguments.choice, len(call.experts)
    tiles = 2 * divide_up(choice.used, _TILE) + divide_up(2 * experts, _SORTED_ROWS)
    place = program.share_tensor("sorted", choice.used + tiles)
    numbers: Numbers = {
        "choices": choices, "sorted": place, "used": choice.used, "late": int(late)
    }  # fmt: skip
    grid = Grid(1, y=1, few=(_SORTED_ROWS * choice.used, NONE), items=choice.used, late=late)
    program.add(Kernel("sort", (("COUNT", f"{experts}u"),)), numbers, grid)
    return place


def _add_route(program: Program, call: calls.ExpertsCall, choices: At) -> None:
    choice = call.arguments.choice
    low, high = np.array([choice.tolerance]).view(np.uint32)
    numbers = program.view("scores", call.arguments.scores) | {
        "gating": _GATINGS.index(choice.gating), "used": choice.used,
        "normed": int(choice.normed), "scale": float_bits(choice.scale),
        "used_groups": choice.used_groups, "best_of_group": choice.best_of_group,
        "tolerance_low": int(low), "tolerance_high": int(high),
        "bias": program.add_table(choice.bias), "choices": choices,
    }  # fmt: skip
    counts = ("COUNT", f"{len(call.experts)}u"), ("GROUPS", f"{max(choice.groups, 1)}u")
    kernel = Kernel("route", counts)
    program.add(kernel, numbers, Grid(1, late=call.arguments.late))


def _quantise_middle(program: Program, middle: At, width: int, act: int, grid: Grid) -> None:
    """Quantise the input of the down matrices, whose items have ``width`` numbers each."""
    numbers = no_view("out") | {
        "x": middle, "x_width": width, "quants": At(act), "quant_blocks": width // 32,
        "norm": 0, "size": width, "weight": NONE, "bias": NONE, "eps": 0, "apart": 0,
    } | program.ending(None, (0, 0))  # fmt: skip
    program.add(Kernel("normalise"), numbers, grid)


def _add_chosen(
    program: Program,
    x: calls.Places,
    experts: list[list[calls.Biased]],
    items: Numbers,
    out: At,
    *,
    kind: str = "",
    act: int = -1,
) -> None:
    """Add one matrix of each item's expert, or its gate and up with the activation ``kind``.

    act: the tensor to which the kernel of few rows writes the quant blocks of the results
    """
    first, used = program.matrices[experts[0][0].matrix], items["used"]
    assert isinstance(used, int)
    is_float, spread = shaders.is_float(first.format), bool(items["spread"])
    tensor = x.floats[0] if is_float else x.act
    width = program.tensors[tensor].width if spread else first.cols
    buffers = [_buffer_of(program, expert) for expert in experts]
    for buffer in sorted({home for home in buffers if home is not None}):
        parts = [
            _part(program, matrix, out, first.rows, is_here=home == buffer)
            for expert, home in zip(experts, buffers, strict=True)
            for matrix in expert
        ]
        numbers = items | list_parts(program, parts) | {
            "panel_words": first.panel_words, "mode": GATE if kind else STORE,
            "count": len(experts[0]), "x": At(*x.floats) if is_float else At(x.act),
            "x_width": width if is_float else width // 32,
            "columns": first.cols if is_float else first.cols // 32,
            "quants": At(act) if act >= 0 else NONE, "quant_blocks": first.rows // 32,
        }  # fmt: skip
        panels = divide_up(first.rows, 16)
        groups = panels if len(experts[0]) == 2 else divide_up(panels, 2)
        grid = Grid(groups, items=used, late=bool(items["late"]))
        if is_float:
            constants = (("ROWS", "1u"), _EXPERTS, ("TEAMS", "1u"))
            kernel = Kernel("linear_float", constants, first.format, kind)
            program.add(kernel, numbers, grid, weights=buffer)
            continue
        constants = (("ROWS", "1u"), _EXPERTS, ("QUANTISES", str(act >= 0).lower()))
        kernel, fewest = Kernel("linear_few", constants, first.format, kind), _SORTED_ROWS * used
        untiled = grid._replace(x=groups if act < 0 else groups // 2, few=(1, fewest - 1))
        program.add(kernel, numbers, untiled, weights=buffer)
        kernel = Kernel("linear_many", (_EXPERTS,), first.format, kind)
        tiled = grid._replace(per_row=_TILE, extra=len(experts), few=(fewest, NONE))
        program.add(kernel, numbers, tiled, weights=buffer)


def _buffer_of(program: Program, matrices: list[calls.Biased]) -> int | None:
    """Return the index of the buffer that has all these matrices; None if they lie in several."""
    buffers = {p.buffer for m in matrices for p in program.matrices[m.matrix].pieces}
    return buffers.pop() if len(buffers) == 1 else None


def _part(program: Program, matrix: calls.Biased, out: At, width: int, *, is_here: bool) -> Part:
    """Return a matrix as parts.wgsl reads it; it has 0 panels if another dispatch multiplies it."""
    m = program.matrices[matrix.matrix]
    if len(m.pieces) > 1:
        raise OutOfMemoryError(
            f"the GPU {program.weights.device.name} has buffers of at most "
            f"{program.weights.device.binding} bytes, too few for an expert of this model: take "
            "another backend"
        )
    [piece] = m.pieces
    return [
        piece.word, piece.count if is_here else 0, m.rows, out, width, 0, float_bits(m.factor),
        program.add_table(matrix.bias),
    ]  # fmt: skip
