"""bitsandbytes: 4-bit NF4 with its table, and scales that may be quantised themselves; LLM.int8.

Dettmers et al. 2023, arXiv 2305.14314. `weight` has two codes in each byte, the first in the high
half, row after row. Every 64 codes, or more, share an absmax. If the absmaxes are quantised, too
(double quantisation), each byte of `absmax` is an index of `nested_quant_map`. The number there is
multiplied by the `nested_absmax` that 256 of these bytes share, and an offset is added.
"""

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.grouped import Grouped, MatrixParts, bases, format_of
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quote
from cutaway.files.weights.decode import NF4

_STATE = ".quant_state.bitsandbytes__nf4"
_LONGEST_ROW = 2**31 - 1


class BitsAndBytes:
    """The method; its settings are stored with each matrix."""

    @classmethod
    def read(cls, config: JsonObject) -> "BitsAndBytes":
        """Read a quantization_config."""
        if config.flag("load_in_4bit") or config.flag("_load_in_4bit"):
            config.must_be("bnb_4bit_quant_type", "nf4")
        config.must_be("bnb_4bit_quant_storage", "uint8")
        return cls()

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all quantised matrices."""
        for base in bases(shards, ".weight" + _STATE):
            yield _nf4(MatrixParts(shards, base))
        for base in bases(shards, ".weight"):
            if shards.dtype(f"{base}.weight") == "I8":
                yield _int8(MatrixParts(shards, base))


def _nf4(parts: MatrixParts) -> Grouped:
    state = _state(parts)
    rows, cols = _shape(state)
    count, block = rows * cols, state.size("blocksize")
    length = FORMATS["NF4"].quant_block_elements
    if cols % length or block % length:
        raise FormatError(
            f"the tensor {quote(parts.base + '.weight')} has blocks of {block} in rows of {cols}, "
            "and "
            f"cutaway reads both of whole multiples of {length}: take the model in another format"
        )
    parts.expect(".weight", (-(-count // 2), 1), "U8")
    parts.expect(".weight.quant_map", (16,), "F32")
    if not np.array_equal(parts.array(".weight.quant_map"), NF4):
        raise FormatError(
            f"the tensor {quote(parts.base + '.weight.quant_map')} is another table than NF4's, "
            "which is not supported; take the model in another format"
        )
    nested = parts.has(".weight.nested_absmax")
    blocks = -(-count // block)
    parts.expect(".weight.absmax", (blocks,), "U8" if nested else "F32")
    if nested:
        of_scales = state.size("nested_blocksize")
        parts.expect(".weight.nested_absmax", (-(-blocks // of_scales),), "F32")
        parts.expect(".weight.nested_quant_map", (256,), "F32")
        state.number("nested_offset")

    def read() -> tuple[NDArray[np.uint8], NDArray[np.float32], None]:
        codes = parts.array(".weight").reshape(rows, cols // 2)
        codes = codes >> np.uint8(4) | codes << np.uint8(4)
        scales = _absmax(parts, state) if nested else parts.array(".weight.absmax")
        of_blocks = np.arange(count // length) * length // block
        return codes, scales[of_blocks].reshape(rows, -1), None

    return Grouped(parts.base, tuple(parts.used), (rows, cols), "NF4", length, read)


def _absmax(parts: MatrixParts, state: JsonObject) -> NDArray[np.float32]:
    """Return the scales, computed in float32 as bitsandbytes does."""
    codes = parts.array(".weight.absmax")
    factors = parts.array(".weight.nested_absmax")
    steps = parts.array(".weight.nested_quant_map")[codes]
    of_blocks = np.arange(len(codes)) // state.size("nested_blocksize")
    scales: NDArray[np.float32] = steps * factors[of_blocks] + np.float32(
        state.number("nested_offset")
    )
    return scales


def _state(parts: MatrixParts) -> JsonObject:
    name = ".weight" + _STATE
    parts.shape(name, "U8")
    try:
        values = json.loads(parts.array(name).tobytes())
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise FormatError(
            f"the tensor {quote(parts.base + name)} is no JSON object; download the model again"
        )
    state = JsonObject(values, f"the tensor {quote(parts.base + name)}")
    state.must_be("quant_type", "nf4")
    return state


def _shape(state: JsonObject) -> tuple[int, int]:
    shape = state.get("shape")
    sound = isinstance(shape, list) and len(shape) == 2
    if not sound or not all(type(n) is int and 0 < n <= _LONGEST_ROW for n in shape):
        state.fail("shape", "a list of two whole numbers above 0")
    return shape[0], shape[1]


def _int8(parts: MatrixParts) -> Grouped:
    """LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339): a row's scale is SCB / 127."""
    rows, cols = parts.sides(".weight", "I8")
    parts.expect(".SCB", (rows,), "F32")
    if parts.has(".weight_format"):
        parts.shape(".weight_format", "U8")
        if parts.array(".weight_format").item() != 0:
            raise FormatError(
                f"the tensor {quote(parts.base + '.weight_format')} says that the weights' rows "
                "are mixed for a GPU; save the model again with a newer bitsandbytes"
            )
    format = format_of("INT8", parts.base + ".weight", cols, cols)

    def read() -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int16]]:
        scales = np.divide(parts.array(".SCB")[:, None], 127, dtype=np.float32)
        return parts.array(".weight").view(np.uint8), scales, np.zeros((rows, 1), np.int16)

    return Grouped(parts.base, tuple(parts.used), (rows, cols), format, cols, read)
