"""Attention as dispatches: rotate and store, attend, and merge the chunks if each had a workgroup.

Knows where a layer's keys and values lie, and which kernels run for few rows and for many.
"""

from collections.abc import Sequence

import numpy as np

from cutaway.compute import calls
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.matrices import list_quants
from cutaway.compute.backends.gpu.program import Grid, Numbers, Program, divide_up, no_view
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits

_MOST_HEADS = 8  # heads that a workgroup of attend.wgsl has, counted over all its rows
_SHARED_WORDS = 4096  # words of memory that a workgroup shares


def can_quantise(call: calls.AttendCall) -> bool:
    """Whether the kernel can also quantise its result: then no quant block spans two heads."""
    return call.shape.value_width % 32 == 0


def add_attention(
    program: Program,
    call: calls.AttendCall,
    act: int = -1,
    norms: Sequence[calls.Normalise] = (),
) -> None:
    """Add an attention: rotate q and k, store k and v, then attend.

    act    the tensor to which the quant blocks of the result go; -1: to none
    norms  the norms of each head's queries or keys before the rotation; see ``can_normalise``
    """
    shape = call.shape
    q, _, _, out = call.views
    home, values_after = program.memory.find_layer(shape.layer if shape.reads < 0 else shape.reads)
    keys, values = (shaders.KV_FORMATS.index(name) for name in program.kv_formats)
    formats = (("KEYS", f"{keys}u"), ("VALUES", f"{values}u"))
    common: Numbers = {
        "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "value_dim": shape.value_width,
        "block_bytes": home.stride, "keys": home.at, "values": home.at + values_after,
        "window": int(shape.window > 0),
    }  # fmt: skip
    if _has_store(call):
        numbers = common | _numbers_of_store(program, call, norms)
        stored_kinds = 0 if shape.reads >= 0 else 1 if shape.is_latent else 2
        grid = Grid(shape.heads + stored_kinds * shape.kv_heads)
        program.add(Kernel("store", formats), numbers, grid, memory=home.buffer)
    numbers = common | program.view("q", q) | program.view("out", out)
    numbers |= _span(shape) | _added_to_scores(program, call) | list_quants(program, act)
    width = divide_up(shape.value_width, 16) * 16
    numbers["partial"] = program.share_tensor("partial", (width + 2) * shape.heads, rows="partials")
    heads, rows = _tile(shape)
    x = shape.kv_heads * divide_up(shape.heads // shape.kv_heads, heads)
    for when, tile in (("split", 1), ("joined", 1), ("tiled", rows)):
        numbers = numbers | {"tiles": program.list_tiles(tile)}
        kernel = Kernel("attend", (*formats, *_constants(shape, heads, tile, when == "split")))
        grid = Grid(x, tile, z="chunks" if when == "split" else "", when=when)
        program.add(kernel, numbers, grid, memory=home.buffer)
    program.add(
        Kernel("merge", formats), numbers, Grid(shape.heads, when="split"), memory=home.buffer
    )


def _numbers_of_store(
    program: Program, call: calls.AttendCall, norms: Sequence[calls.Normalise]
) -> Numbers:
    """Return where queries, keys and values are, and the norms and rotation of queries and keys."""
    q, k, v, _ = call.views
    numbers = program.view("rotated", q) | program.view("v", v) | program.rotation(call.rotation)
    before = {norm.out.floats: norm for norm in norms}
    for name, view in (("q", q), ("k", k)):
        norm = before[view].norm if view in before else calls.Norm()
        numbers |= program.view(name, before[view].x if view in before else view)
        numbers |= {f"{name}_norm": program.add_table(norm.weight)}
        numbers |= {f"{name}_eps": float_bits(norm.eps)}
    return numbers


def _constants(
    shape: calls.AttendShape, heads: int, rows: int, is_split: bool
) -> list[tuple[str, str]]:
    """Return the constants of attend.wgsl for tiles of this many heads and rows."""
    width = divide_up(shape.value_width, 16) * 16
    sizes = {
        "HEADS": heads, "ROWS": rows, "DIM": shape.head_dim, "SLICES": divide_up(width, 256),
        "DIMS": 1 << (min(width, 256) - 1).bit_length(),
    }  # fmt: skip
    switches = {"LATENT": shape.is_latent, "SPLIT": is_split}
    return [
        *((name, str(value).lower()) for name, value in switches.items()),
        *((name, f"{value}u") for name, value in sizes.items()),
    ]


def can_normalise(call: calls.AttendCall, norms: Sequence[calls.Normalise]) -> bool:
    """Whether the kernel that stores keys can also compute these norms, as RMS norms of heads."""
    shape, (q, k, v, _) = call.shape, call.views
    widths = {q: shape.heads * shape.head_dim}
    if shape.reads < 0:
        widths[k] = shape.kv_heads * shape.head_dim
    for norm, (floats, act) in ((n, n.out) for n in norms):
        is_of_heads = norm.norm.group == shape.head_dim == norm.norm.weight.size
        is_plain = not norm.norm.bias.size and not norm.norm.limit
        if not is_of_heads or not is_plain or norm.late or act >= 0:
            return False
        if widths.get(floats) != norm.width:
            return False
    # The keys and values that are read must not lie where other workgroups write queries.
    read = {v[0], *(norm.x[0] for norm in norms if norm.out.floats == k)}
    return _has_store(call) and q[0] not in read


def _has_store(call: calls.AttendCall) -> bool:
    """Whether queries or keys are rotated, or keys stored."""
    return call.shape.reads < 0 or bool(call.rotation.frequencies)


def _tile(shape: calls.AttendShape) -> tuple[int, int]:
    """Return how many heads, and how many rows, a workgroup has; all of them read the same keys."""
    room = _SHARED_WORDS // (shape.head_dim + 256 + 16)
    most_items = min(_MOST_HEADS, room)
    group = shape.heads // shape.kv_heads
    heads = divide_up(group, divide_up(group, most_items))
    return heads, most_items // heads


def _span(shape: calls.AttendShape) -> Numbers:
    """Return which tokens a row sees, and how its scores are scaled."""
    back = shape.reach + 1 if shape.reach else shape.window
    return {
        "scale": float_bits(shape.scale),
        "softcap": float_bits(shape.softcap) if shape.softcap > 0 else 0,
        "back": 0 if shape.chunked else back,
        "chunked": shape.window if shape.chunked else 0,
        "reach": shape.reach,
        "causal": int(shape.causal),
        "value_first": max(shape.value_first, 0),
    }


def _added_to_scores(program: Program, call: calls.AttendCall) -> Numbers:
    """Return where sinks lie, biases by distance, and biases that depend on queries and keys."""
    relative, views = call.relative, Numbers()
    inputs = {"of_query": relative.of_query, "of_key": relative.of_key, "row_sinks": call.row_sinks}
    for name, view in inputs.items():
        views |= program.view(name, view) if view[0] >= 0 else no_view(name)
    return views | {
        "sinks": program.add_table(call.sinks), "bias": program.add_table(call.bias),
        "bias_count": len(call.bias) // call.shape.heads, "per_head": relative.per_head,
        "related": program.add_table(relative.rows, np.int32), "related_count": len(relative.rows),
    }  # fmt: skip
