"""FP8 (e4m3): bytes with one scale of a matrix, of each output, or of each block of both sides.

A weight is its byte's number times its scale, in float32. DeepSeek's and Qwen's files call the
scales of blocks `weight_scale_inv`, others `weight_scale`; both are factors. That activations are
to be rounded, too (activation_scheme, input_scale), is not followed: they are read as they are.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.grouped import Grouped, Lengths, format_of, group_of
from cutaway.files.huggingface.quantization.parts import FLOATS, MatrixParts, bases
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quoted

E4M3 = "F8_E4M3"
_SCALES = (".weight_scale_inv", ".weight_scale")
Sides = tuple[int, int]


class Fp8:
    """block: outputs and inputs that share a scale; None: as the scales' shape says."""

    def __init__(self, block: Sides | None = None) -> None:
        self.block = block

    @classmethod
    def read(cls, said: JsonObject) -> "Fp8":
        """From a quantization_config."""
        said.must_be("fmt", "e4m3")
        said.must_be("quant_algo", "FP8")
        return cls(block_of(said, "weight_block_size"))

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """All that are stored so."""
        for base in bases(shards, ".weight"):
            if shards.dtype(f"{base}.weight") == E4M3:
                yield fp8_matrix(MatrixParts(shards, base), self.block)


def block_of(said: JsonObject, key: str) -> Sides | None:
    """A block's outputs and inputs; None where the config names none."""
    block = said.get(key)
    if block is None:
        return None
    sound = isinstance(block, list) and len(block) == 2
    if not sound or not all(type(one) is int and one > 0 for one in block):
        said.fail(key, "a list of two whole numbers above 0")
    return block[0], block[1]


def scale_sides(parts: MatrixParts, ending: str, *dtypes: str) -> Sides:
    """How many rows and columns of scales there are: 1 and 1 where one is for all."""
    shape = parts.shape(ending, *(dtypes or FLOATS))
    if len(shape) > 2:
        raise FormatError(
            f"the tensor {quoted(parts.base + ending)} has the shape {shape}, which is no scale "
            "for outputs and groups of inputs"
        )
    padded = (*shape, 1, 1)
    return padded[0], padded[1]


def fp8_matrix(parts: MatrixParts, block: Sides | None, lengths: Lengths = frozenset()) -> Grouped:
    """block: as of `Fp8`; lengths: of groups that matrices without blocks may have."""
    shape = rows, cols = parts.sides(".weight", E4M3)
    ending = next((one for one in _SCALES if parts.has(one)), _SCALES[-1])
    sides = scale_sides(parts, ending)
    shared = _shared(shape, sides, block, mixed=bool(lengths))
    if shared is None:
        of = "equal blocks" if block is None else f"blocks of {block[0]} x {block[1]}"
        raise FormatError(
            f"the tensor {quoted(parts.base + ending)} has {sides[0]} x {sides[1]} scales, which "
            f"are not those of {of} of {rows} x {cols} weights; download the model again"
        )
    high, group = shared
    if block is None:
        group_of(parts.base + ending, cols, sides[1], lengths)
    format = format_of("FP8", parts.base + ending, cols, group)

    def read() -> tuple[NDArray[np.uint8], NDArray[np.float32], None]:
        codes = parts.array(".weight")
        if (codes & 0x7F == 0x7F).any():
            raise FormatError(
                f"the tensor {quoted(parts.base + '.weight')} holds weights that are not finite; "
                "download the model again"
            )
        scales = parts.array(ending).reshape(sides)
        return codes, scales[np.arange(rows) // high], None

    return Grouped(parts.base, tuple(parts.used), shape, format, group, read)


def _shared(shape: Sides, scales: Sides, block: Sides | None, *, mixed: bool) -> Sides | None:
    """The outputs and inputs that share a scale; None where the scales do not fit.

    A config's blocks may be cut off at the ends of a matrix; without one, all are equal.
    mixed: the config has matrices without blocks, too
    """
    if block is not None and scales == (-(-shape[0] // block[0]), -(-shape[1] // block[1])):
        return block[0], min(block[1], shape[1])
    if block is not None and not mixed:
        return None
    if shape[0] % scales[0] or shape[1] % scales[1]:
        return None
    return shape[0] // scales[0], shape[1] // scales[1]
