"""Ops that keep a recurrent state, as dispatches.

Knows where each op's part of a state lies, which follows from the order of the ops.
"""

from cutaway.compute import calls
from cutaway.compute.backends.gpu.program import (
    NONE,
    THREADS,
    Grid,
    Numbers,
    Program,
    divide_up,
    no_view,
)
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits
from cutaway.compute.calls import View


def add_conv(
    program: Program, call: calls.ConvCall, ending: calls.Elementwise | None = None
) -> None:
    """Add a convolution that may end in an elementwise op, and the kernel that stores its state."""
    weights = call.weights
    place, buffer = _next_state(program)
    numbers = program.view("x", call.x) | program.view("out", call.out) | place
    numbers |= program.ending(ending, call.out) | {
        "width": weights.width, "taps": weights.taps,
        "weight": program.add_table(weights.weight), "bias": program.add_table(weights.bias),
        "group": weights.width // weights.groups,
    }  # fmt: skip
    more = weights.more
    numbers |= program.view("more", more) if more[0] >= 0 else no_view("more")
    x = divide_up(weights.width, THREADS)
    for stores, grid in ((False, Grid(x)), (True, Grid(x, y=1, when="stored"))):
        kind = ending.kind if ending and not stores else ""
        kernel = Kernel("convolve", (("STORES", str(stores).lower()),), kind=kind)
        program.add(kernel, numbers, grid, memory=buffer)


def add_delta_net(program: Program, call: calls.DeltaNetCall) -> None:
    """Add a gated delta net."""
    qkv, a, b, out = call.views
    k_heads, heads, keys, values, grouped, learn_factor = call.shape
    numbers = program.view("a", a) | program.view("b", b)
    numbers |= {
        "keep_weight": program.add_table(call.a), "step_weight": program.add_table(call.dt),
        "skip_weight": NONE, "grouped": int(grouped), "learn_factor": float_bits(learn_factor),
        "units": program.share_tensor("units", 2 * k_heads * keys),
    }  # fmt: skip
    shape = k_heads, heads, keys, values
    _add_scan(program, (qkv, out), shape, numbers, is_delta=True, keeps=len(call.a) // heads)


def add_mamba(program: Program, call: calls.Mamba) -> None:
    """Add the heads of Mamba 2."""
    vkq, dt, out = call.views
    keep, step, skip = map(program.add_table, call.weights)
    numbers = program.view("a", dt) | program.view("b", dt)
    numbers |= {
        "keep_weight": keep, "step_weight": step, "skip_weight": skip, "grouped": 1,
        "learn_factor": 0, "units": 0,
    }  # fmt: skip
    _add_scan(program, (vkq, out), call.shape, numbers, is_delta=False)


def add_mamba1(program: Program, call: calls.Mamba1) -> None:
    """Add Mamba 1, whose scan computes the gates of its columns itself."""
    x, dt, k, q, out = call.views
    keep, skip = map(program.add_table, call.weights)
    place, buffer = _next_state(program)
    numbers = place
    for name, view in (("x", x), ("a", dt), ("b", k), ("q", q), ("out", out)):
        numbers = numbers | program.view(name, view)
    numbers |= {
        "keep_weight": keep, "step_weight": NONE, "skip_weight": skip, "grouped": 1, "units": 0,
        "learn_factor": 0, "k_heads": 1, "heads": 1, "values": call.columns, "gates": 0,
    }  # fmt: skip
    grid = Grid(call.columns // 16, y=1, z="sequences")
    constants = _constants(call.keys, of_columns=True)
    program.add(Kernel("scan", constants), numbers, grid, memory=buffer)


def add_wkv(program: Program, call: calls.Wkv) -> None:
    """Add the heads of RWKV-7."""
    numbers, buffer = _next_state(program)
    names = ("v", "r", "keep", "k", "removed", "loss", "out")
    for name, view in zip(names, call.views, strict=True):
        numbers = numbers | program.view(name, view)
    grid = Grid(call.size // 16, y=call.heads, z="sequences")
    program.add(Kernel("wkv", (("KEYS", f"{call.size}u"),)), numbers, grid, memory=buffer)


def _add_scan(
    program: Program,
    views: tuple[View, View],
    shape: tuple[int, int, int, int],
    numbers: Numbers,
    *,
    is_delta: bool,
    keeps: int = 1,
) -> None:
    """Add the kernel that computes all rows' gates, then the scan over each sequence's rows.

    keeps: how many factors a head's state has: 1, or one for each key
    """
    x, out = views
    k_heads, heads, keys, values = shape
    place, buffer = _next_state(program)
    numbers = numbers | program.view("x", x) | program.view("out", out) | place
    numbers |= no_view("q") | {"k_heads": k_heads, "heads": heads, "values": values}
    numbers["gates"] = program.share_tensor("gates", (keeps + 1) * heads)
    constants = _constants(keys, is_delta=is_delta, keeps=keeps)
    if is_delta:
        program.add(Kernel("units", constants), numbers, Grid(2 * k_heads), memory=buffer)
    grid = Grid(divide_up(keeps * heads, THREADS))
    program.add(Kernel("gates", constants), numbers, grid, memory=buffer)
    grid = Grid(values // 16, y=heads, z="sequences")
    program.add(Kernel("scan", constants), numbers, grid, memory=buffer)


def _constants(
    keys: int, *, is_delta: bool = False, of_columns: bool = False, keeps: int = 1
) -> tuple[tuple[str, str], ...]:
    """Return the constants of a scan.

    of_columns: whether each column has gates of its own; keeps: see ``_add_scan``
    """
    flags = (("DELTA", is_delta), ("OF_COLUMNS", of_columns))
    sizes = (("KEYS", f"{keys}u"), ("KEEPS", f"{keeps}u"))
    return (*sizes, *((name, str(flag).lower()) for name, flag in flags))


def _next_state(program: Program) -> tuple[Numbers, int]:
    """Return where the next op's part of a state lies, and the index of its buffer."""
    home = program.memory.find_state(program.num_states)
    program.num_states += 1
    return {"state": home.at // 4, "state_size": home.stride // 4}, home.buffer
