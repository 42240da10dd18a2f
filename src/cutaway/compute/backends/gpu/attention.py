"""Attention as dispatches: rotate and store, attend, and merge the chunks if they were split.

Knows where a layer's keys and values lie, and which kernels run for few rows and for many.
"""

import numpy as np

from cutaway.compute import calls
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.program import NONE, Grid, Numbers, Program, divide_up, no_view
from cutaway.compute.backends.gpu.shaders import Kernel, float_bits


def add_attention(program: Program, call: calls.AttendCall) -> None:
    """Add an attention: rotate q and k, store k and v, then attend."""
    shape = call.shape
    q, k, v, out = call.views
    home, values_after = program.memory.find_layer(shape.layer if shape.reads < 0 else shape.reads)
    keys, values = (shaders.KV_FORMATS.index(name) for name in program.kv_formats)
    formats = (("KEYS", f"{keys}u"), ("VALUES", f"{values}u"))
    common: Numbers = {
        "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "block_bytes": home.stride, "keys": home.at, "values": home.at + values_after,
        "window": int(shape.window > 0),
    }  # fmt: skip
    stored_kinds = 0 if shape.reads >= 0 else 1 if shape.value_dim else 2
    if stored_kinds or call.rotation.frequencies:
        numbers = common | program.view("q", q) | program.view("k", k) | program.view("v", v)
        numbers |= program.rotation(call.rotation)
        grid = Grid(shape.heads + stored_kinds * shape.kv_heads)
        program.add(Kernel("store", formats), numbers, grid, memory=home.buffer)
    numbers = common | program.view("q", q) | program.view("out", out)
    numbers |= _span(shape) | _added_to_scores(program, call)
    width = divide_up(shape.value_dim or shape.head_dim, 16) * 16
    numbers["partial"] = program.share_tensor("partial", (width + 2) * shape.heads, rows="partials")
    latent = ("LATENT", str(shape.value_dim > 0).lower())
    for split in (True, False):
        kernel = Kernel("attend", (*formats, latent, ("SPLIT", str(split).lower())))
        when, z = ("split", "chunks") if split else ("joined", "")
        program.add(kernel, numbers, Grid(shape.heads, z=z, when=when), memory=home.buffer)
    program.add(
        Kernel("merge", formats), numbers, Grid(shape.heads, when="split"), memory=home.buffer
    )


def _span(shape: calls.AttendShape) -> Numbers:
    """Which tokens a row sees, and how its scores are scaled."""
    back = shape.reach + 1 if shape.reach else shape.window
    return {
        "scale": float_bits(shape.scale),
        "softcap": float_bits(shape.softcap) if shape.softcap > 0 else 0,
        "back": 0 if shape.chunked else back,
        "chunked": shape.window if shape.chunked else 0,
        "reach": shape.reach,
        "value_first": shape.value_first,
        "value_dim": shape.value_dim,
    }


def _added_to_scores(program: Program, call: calls.AttendCall) -> Numbers:
    """Sinks, biases by distance, and relative biases that depend on queries and keys."""
    relative = call.relative
    if len(relative.rows):
        views = program.view("of_query", relative.of_query)
        views |= program.view("of_key", relative.of_key)
        related = program.add_table(relative.rows, np.int32)
    else:
        views, related = no_view("of_query") | no_view("of_key"), NONE
    return views | {
        "sinks": program.add_table(call.sinks), "bias": program.add_table(call.bias),
        "bias_count": len(call.bias) // call.shape.heads, "per_head": relative.per_head,
        "related": related, "related_count": len(relative.rows),
    }  # fmt: skip
