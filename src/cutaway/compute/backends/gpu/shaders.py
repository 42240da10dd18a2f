"""The text of each kernel: the dispatch's constants, then files of wgsl/ one after the other.

Knows which files make up a kernel, which constants stand for the formats of matrices and of keys
and values, and in which order a kernel's file declares the numbers of its op. A page uses the same
texts. Knows no device.
"""

import re
import struct
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from cutaway.base import _native

FUSED = ("native", "f64", "int")
"""The ways to compute a multiply-add with one rounding, the fastest first."""
TESTED = ("flush",)
"""A way for tests only: the way "int", as computed by a device that flushes denormals."""
KV_FORMATS = ("f16", "q8_0", "q5_1", "q4_0")  # in the order of kv.wgsl
FEW_ROWS = (1, 2, 4, 8)  # the counts of rows for which linear_few is compiled
_SCALES = ("half", "shared", "byte", "e8m0", "e4m3", "group", "affine")  # quantised.wgsl's order
_FLOATS = ("F32", "F16", "BF16", "FP8", "NF4")  # in the order of floating.wgsl
_FUSED_FILES = {
    "native": ("fused_native",),
    "f64": ("fused_f64",),
    "int": ("fused_whole", "fused_int"),
    "flush": ("fused_whole", "fused_flush"),
}
_FILES = {
    "embed": ("quantised", "looked_up", "embed"),
    "embed_float": ("floating", "looked_up", "embed_float"),
    "normalise": ("quantise", "lanes", "ending", "normalise"),
    "magnitude": ("lanes", "magnitude"),
    "own_value": ("lanes", "own_value"),
    "softmax": ("lanes", "softmax"),
    "convolve": ("ending", "convolve"),
    "mix": ("ending", "mix"),
    "rotate": ("rotation", "rotate"),
    "linear_few": ("quantised", "dot", "quantise", "parts", "linear_few"),
    "linear_many": ("quantised", "parts", "linear_many"),
    "linear_float": ("floating", "parts", "linear_float"),
    "store": ("rotation", "kv", "kv_write", "lanes", "store"),
    "attend": ("kv", "kv_read", "quantise", "attention", "attend"),
    "merge": ("kv", "quantise", "attention", "merge"),
    "route": ("double", "route"),
    "gates": ("head_states", "gates"),
    "units": ("head_states", "units"),
    "scan": ("head_states", "scan"),
}
"""The files of each kernel that is made of more than the file of its name."""


class Kernel(NamedTuple):
    """A kernel with its constants; two that differ in these have different texts and pipelines.

    constants  pairs of a name and a value, as WGSL writes them
    format     the format of the matrices that the kernel reads; "" if it reads none
    kind       the kind of the elementwise op in which the kernel ends; "" if it ends in none
    """

    name: str
    constants: tuple[tuple[str, str], ...] = ()
    format: str = ""
    kind: str = ""


def text(kernel: Kernel, fused: str, flushes: bool = False) -> str:
    """Return the WGSL text of a kernel.

    fused: one of FUSED, or TESTED
    flushes: whether the kernel reports that a flushed denormal may have changed a result
    """
    way = fused_text(fused)
    return flag(flushes) + "".join(way if p is None else p for p in pieces(kernel, flushes))


def flag(flushes: bool) -> str:
    """Return the first line of a kernel's text."""
    return f"const FLUSHES = {str(flushes).lower()};\n"


def pieces(kernel: Kernel, reports: bool) -> list[str | None]:
    """Return the pieces that make a kernel's text after its first line; None: ``fused_text``.

    reports: whether the kernel tells the host at its end what ``note_hurt`` noted
    """
    constants = [*_format_constants(kernel.format), *kernel.constants]
    lines = "".join(f"const {name} = {value};\n" for name, value in constants)
    files_text = [_file(name) + "\n" for name in _FILES.get(kernel.name, (kernel.name,))]
    if reports:
        files_text[-1] = _reporting(files_text[-1])
    before, after = [lines, _file("common") + "\n"], ["\n" + _file("arithmetic") + "\n"]
    return [*before, None, *after, *files_text, _elementwise(kernel.kind), _values(kernel.format)]


def _reporting(text: str) -> str:
    """Return the text of a kernel's last file, changed to tell the host what was noted."""
    [(main, arguments)] = re.findall(r"(@compute @workgroup_size\(\w+\) fn main\((.*?)\) {)", text)
    body = f"fn body({re.sub(r'@builtin[(][a-z_]+[)] ', '', arguments)}) {{"
    names = ", ".join(re.findall(r"(\w+): ", arguments))
    ending = f"\n{main} body({names}); if (hurt != 0u) {{ floats[0] = 1.0; }} }}\n"
    return text.replace(main, body) + ending


def fused_text(fused: str) -> str:
    """Return the part of each kernel's text that computes a multiply-add."""
    return "\n".join(map(_file, _FUSED_FILES[fused]))


def packed_dot_text() -> str:
    """Return the text of dot4I8Packed, for browsers without it."""
    return _file("packed_dot")


@cache
def _file(name: str) -> str:
    return (files(__package__) / "wgsl" / f"{name}.wgsl").read_text(encoding="utf-8")


def _elementwise(kind: str) -> str:
    """Return ENDS and the function of a kind in native/elementwise.def, which is ``x`` for ""."""
    expressions = dict(zip(_native.ELEMENTWISE, _native.ELEMENTWISE_EXPRESSIONS, strict=True))
    expression = expressions[kind] if kind else "x"
    ends = f"\nconst ENDS = {str(bool(kind)).lower()};"
    return (
        ends + f"\nfn elementwise(x: f32, y: f32, number: f32) -> f32 {{ return {expression}; }}\n"
    )


def is_float(format: str) -> bool:
    """Whether matrices of this format read activations unrounded."""
    return not _native.layout(format)


def _format_constants(format: str) -> list[tuple[str, str]]:
    if not format:
        return []
    if is_float(format):
        kind, _, group = format.partition("_G")
        columns = group or ("64" if kind == "NF4" else "1")
        return [("KIND", f"{_FLOATS.index(kind)}u"), ("GROUP_COLUMNS", f"{columns}u")]
    layout = _native.layout(format)
    return [
        ("BITS", f"{layout['bits']}u"),
        ("SUB", f"{layout['sub']}u"),
        ("OFFSET", str(layout["offset"])),
        ("SCALE", f"{_SCALES.index(layout['scale'])}u"),
        ("MINIMA", str(layout["minima"]).lower()),
        ("SUPER", f"{layout['blocks']}u"),
        ("UNIT", f"{float_bits(layout['unit'])}u"),
        ("LOOKED_UP", str(bool(layout["values"])).lower()),
    ]


def _values(format: str) -> str:
    """Return the table VALUES of what codes stand for, four signed bytes a word; "" for floats."""
    if not format or is_float(format):
        return ""
    values = [*_native.layout(format)["values"], *[0] * 16][:16]
    words = struct.unpack("<4I", struct.pack("<16b", *values))
    numbers = ", ".join(f"{word}u" for word in words)
    return f"\nvar<private> VALUES: array<u32, 4> = array({numbers});\n"


def float_bits(x: float) -> int:
    """Return the bits of a number in float32."""
    bits: int = struct.unpack("<I", struct.pack("<f", x))[0]
    return bits


@cache
def fields(name: str, struct_name: str) -> tuple[str, ...]:
    """Return the names of a structure's numbers, in order; name: a kernel's, or "common"."""
    for file in reversed(_FILES.get(name, (name,))):
        if match := re.search(rf"struct {struct_name} {{(.*?)}}", _file(file), re.S):
            return tuple(re.findall(r"(\w+): u32", re.sub("//.*", "", match[1])))
    raise KeyError(f"{name} has no structure {struct_name}")
