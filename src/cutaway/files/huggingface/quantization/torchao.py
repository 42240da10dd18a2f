"""torchao's tensors, as transformers writes them: each matrix flattened into several.

A matrix `X.weight` becomes `X._weight_qdata`, `X._weight_scale` and `X._weight_zero_point`. The
safetensors file's own metadata has the class that they were. Int8Tensor and
IntxUnpackedToInt8Tensor have a byte for each code, (out, in), and scale · (code - zero_point).
Int4Tensor has two codes in a byte, the first in the low half, scales and zero points (groups, out),
and scale · code + zero_point, with codes from -8 to 7. Int4TilePackedTo4dTensor has the same sums,
and codes in the order of an NVIDIA GPU's matrix units (`_convert_weight_to_int4pack` of PyTorch),
padded to 8 outputs and 1,024 inputs. Int4PlainInt32Tensor has eight codes in a word, as Intel's
GPUs read them, and scale · (code - zero_point). Float8Tensor has floats (e4m3), and a scale
for a matrix, for each output, or for each block. MXTensor has floats (e4m3, or e2m1 in pairs), of
which 32 share a power of two; NVFP4Tensor has e2m1, of which 16 share a scale (e4m3), and perhaps a
scale of the matrix. The scales of both may be swizzled: in the order in which an NVIDIA GPU reads
them (cuBLAS's "block scaling factors layout"), padded to tiles of 128 outputs and 4 groups.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.floats import (
    E4M3,
    fp8_matrix,
    mxfp4_matrix,
    mxfp8_matrix,
    output_scale_sides,
    scale_sides,
)
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Bytes,
    Grouped,
    MatrixParts,
    as_bytes,
    bases,
    fields,
    format_of,
    group_of,
    pack_pairs,
    smooth,
)
from cutaway.files.huggingface.quantization.nvfp4 import nvfp4_matrix
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

_CODES, _SCALE, _ZERO = "._weight_qdata", "._weight_scale", "._weight_zero_point"
_SCALE_AND_ZERO = "._weight_scale_and_zero"
_FACTORS, _WHOLE_SCALE = "._weight_act_pre_scale", "._weight_per_tensor_scale"
_READ = (
    "Int8Tensor", "IntxUnpackedToInt8Tensor", "Int4Tensor", "Int4TilePackedTo4dTensor",
    "Int4PlainInt32Tensor", "Float8Tensor", "MXTensor", "NVFP4Tensor",
)  # fmt: skip
_TILE = (8, 128)  # outputs and inputs
_SCALED_GROUPS = {"MXTensor": 32, "NVFP4Tensor": 16}
"""How many weights share a scale, in the classes whose scales may be swizzled."""


class TorchAo:
    """The method; its settings are stored with each matrix."""

    @classmethod
    def read(cls, _config: JsonObject) -> "TorchAo":
        """Return the method; what a quantization_config says, each matrix says, too."""
        return cls()

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all quantised matrices."""
        for base in bases(shards, _CODES):
            parts, settings = MatrixParts(shards, base), _settings(shards, f"{base}.weight")
            kind = settings.text("_type")
            if kind not in _READ:
                settings.refuse("_type", f"{', '.join(_READ)} are: save it as one of these")
            if kind in _SCALED_GROUPS and _is_swizzled(settings.part("_data")):
                parts = _Swizzled(shards, base, _SCALED_GROUPS[kind])
            yield smooth(_matrix(kind, parts, settings), parts, _FACTORS)


def _matrix(kind: str, parts: MatrixParts, settings: JsonObject) -> Grouped:
    match kind:
        case "Int4Tensor":
            return _pairs(parts)
        case "Int4TilePackedTo4dTensor":
            return _tiles(parts, settings)
        case "Int4PlainInt32Tensor":
            return _words(parts)
        case "Float8Tensor" | "MXTensor" | "NVFP4Tensor":
            return _floats(kind, parts, settings.part("_data"))
        case _:
            return _bytes(parts, _bits(settings))


def _floats(kind: str, parts: MatrixParts, data: JsonObject) -> Grouped:
    if kind == "Float8Tensor":
        return fp8_matrix(parts, None, codes=_CODES, scales=(_SCALE,))
    if kind == "NVFP4Tensor":
        factor = _WHOLE_SCALE if parts.has(_WHOLE_SCALE) else None
        return nvfp4_matrix(parts, _CODES, factor, _SCALE)
    data.must_be("block_size", 32)
    data.part("elem_dtype").must_be("_data", "float8_e4m3fn", "float4_e2m1fn_x2")
    if parts.dtype(_CODES) == "U8":
        return mxfp4_matrix(parts, _CODES, _SCALE)
    return mxfp8_matrix(parts, _CODES, _SCALE, parts.sides(_CODES, E4M3))


def _is_swizzled(data: JsonObject) -> bool:
    if data.get("is_swizzled_scales") is None:
        data.fail("is_swizzled_scales", "true or false")
    return data.flag("is_swizzled_scales")


class _Swizzled(MatrixParts):
    """The tensors of a matrix whose scales are swizzled: they are returned in rows of groups."""

    def __init__(self, shards: Shards, base: str, group: int) -> None:
        super().__init__(shards, base)
        self._group = group

    def shape(self, ending: str, *dtypes: str) -> tuple[int, ...]:
        """See ``MatrixParts``; FormatError for scales that are no whole tiles."""
        shape = super().shape(ending, *dtypes)
        if ending != _SCALE:
            return shape
        rows, groups = self._grid()
        if shape != (stored := (32 * -(-rows // 128), 16 * -(-groups // 4))):
            raise FormatError(
                f"the tensor {quote(self.base + ending)} has the shape {shape}, and swizzled "
                f"scales of {rows} x {groups} groups have {stored}; download the model again"
            )
        return rows, groups

    def array(self, ending: str) -> NDArray[Any]:
        """See ``MatrixParts``."""
        numbers = super().array(ending)
        if ending != _SCALE:
            return numbers
        rows, groups = self._grid()
        # Tiles: down, along; of a tile's row: its place among 32, which 32 of 128; group.
        tiles = numbers.reshape(-(-rows // 128), -(-groups // 4), 32, 4, 4)
        whole = tiles.transpose(0, 3, 2, 1, 4).reshape(len(tiles) * 128, -1)
        return np.ascontiguousarray(whole[:rows, :groups])

    def _grid(self) -> tuple[int, int]:
        """Return how many rows and groups there are."""
        rows, cols = self.sides(_CODES, "U8", E4M3)
        return rows, cols * (2 if self.dtype(_CODES) == "U8" else 1) // self._group


def _settings(shards: Shards, name: str) -> JsonObject:
    """Return what the files' metadata says of a matrix."""
    try:
        values = json.loads(shards.metadata.get(name, "null"))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise FormatError(
            f"the files' metadata does not say how {quote(name)} is quantised (torchao): save the "
            "model again with a newer transformers"
        )
    return JsonObject(values, f"the metadata of {quote(name)}")


def _bits(settings: JsonObject) -> int:
    """Return how many bits a code has: 4 for all that have no more."""
    target = settings.part("_data").get("target_dtype")
    name = target.get("_data") if isinstance(target, dict) else None
    return 4 if name in ("int1", "int2", "int3", "int4") else 8


def _bytes(parts: MatrixParts, bits: int) -> Grouped:
    rows, cols = parts.sides(_CODES, "I8")
    sides = output_scale_sides(parts, _SCALE, rows)
    group = group_of(parts.base + _SCALE, cols, sides[1])
    has_zeros = parts.has(_ZERO)
    if has_zeros and scale_sides(parts, _ZERO, "I8") != sides:
        raise FormatError(
            f"the tensor {quote(parts.base + _ZERO)} has another shape than the scales; download "
            "the model again"
        )
    format = format_of(f"INT{bits}", parts.base + _CODES, cols, group)

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.int8]]:
        codes = _numbers(parts, _CODES, bits).view(np.uint8)
        zeros = _numbers(parts, _ZERO, bits) if has_zeros else np.full(sides, _middle(bits))
        grid = (rows, sides[1])
        scales = np.broadcast_to(parts.array(_SCALE).reshape(sides), grid)
        packed = pack_pairs(codes) if bits == 4 else codes
        return packed, scales, np.broadcast_to(zeros.reshape(sides), grid)

    return Grouped(parts.base, tuple(parts.used), (rows, cols), format, group, read)


def _middle(bits: int) -> np.int8:
    """Return the code for 0, as `weights.formats` has it: of 4 bits, the code for -8 is 0."""
    return np.int8(8 if bits == 4 else 0)


def _numbers(parts: MatrixParts, ending: str, bits: int) -> NDArray[np.int8]:
    """Return codes or zero points as `weights.formats` has them; FormatError above ``bits``."""
    stored = parts.array(ending)
    if bits == 4 and not (stored.min() >= -8 and stored.max() <= 7):
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} holds numbers outside of -8 to 7, and its "
            "codes have 4 bits; download the model again"
        )
    numbers: NDArray[np.int8] = stored + _middle(bits)
    return numbers


def _pairs(parts: MatrixParts) -> Grouped:
    rows, half = parts.sides(_CODES, "I8", "U8")
    cols = 2 * half
    groups, _ = parts.sides(_SCALE, *FLOATS)
    for ending in (_SCALE, _ZERO):
        parts.expect(ending, (groups, rows), *FLOATS)
    group = group_of(parts.base + _SCALE, cols, groups)

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.float32]]:
        codes = parts.array(_CODES).view(np.uint8) ^ np.uint8(0x88)  # 8 more
        return codes, parts.array(_SCALE).T, parts.array(_ZERO).T

    format = format_of("AFFINE4", parts.base + _CODES, cols, group)
    return Grouped(parts.base, tuple(parts.used), (rows, cols), format, group, read)


def _words(parts: MatrixParts) -> Grouped:
    rows, words = parts.sides(_CODES, "I32")
    cols = 8 * words
    groups, _ = parts.sides(_SCALE, *FLOATS)
    parts.expect(_SCALE, (groups, rows), *FLOATS)
    parts.expect(_ZERO, (groups, rows), "I8")  # those for Huawei's NPUs are floats
    group = group_of(parts.base + _SCALE, cols, groups)

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.int8]]:
        return as_bytes(parts.array(_CODES)), parts.array(_SCALE).T, parts.array(_ZERO).T

    format = format_of("INT4", parts.base + _CODES, cols, group)
    return Grouped(parts.base, tuple(parts.used), (rows, cols), format, group, read)


def _tiles(parts: MatrixParts, settings: JsonObject) -> Grouped:
    high, wide = _tile_counts(parts)
    rows, cols = _sides(settings, (high * _TILE[0], wide * _TILE[1]))
    groups = (parts.shape(_SCALE_AND_ZERO, *FLOATS) or (0,))[0]
    parts.expect(_SCALE_AND_ZERO, (groups, high * _TILE[0], 2), *FLOATS)
    group = group_of(parts.base + _SCALE_AND_ZERO, wide * _TILE[1], groups)
    format = format_of("AFFINE4", parts.base + _CODES, cols, group)

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.float32]]:
        codes = fields(as_bytes(parts.array(_CODES).reshape(high, -1)), 4)
        # Tiles: down, along; threads: down, along; words; of a word: odd or even, halves, quarters.
        codes = codes.reshape(high, wide, 8, 4, 4, 2, 2, 2).transpose(0, 2, 1, 4, 6, 7, 3, 5)
        numbers = parts.array(_SCALE_AND_ZERO)[: -(-cols // group), :rows]
        matrix = codes.reshape(high * _TILE[0], -1)[:rows, :cols]
        return pack_pairs(matrix), numbers[..., 0].T, numbers[..., 1].T

    return Grouped(parts.base, tuple(parts.used), (rows, cols), format, group, read)


def _tile_counts(parts: MatrixParts) -> tuple[int, int]:
    """Return how many tiles there are along the outputs and along the inputs."""
    shape = parts.shape(_CODES, "I32")
    if len(shape) != 4 or shape[2:] != (32, 4):
        raise FormatError(
            f"the tensor {quote(parts.base + _CODES)} has the shape {shape}, which is no tiles of "
            "32 x 4 words; download the model again"
        )
    return shape[0], shape[1]


def _sides(settings: JsonObject, padded: tuple[int, int]) -> tuple[int, int]:
    """Return the shape of a padded matrix, as the metadata has it."""
    data = settings.part("_data")
    shape = data.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or any(type(n) is not int for n in shape):
        data.fail("shape", "a list of two whole numbers")
    rows, cols = shape
    if not (0 < rows <= padded[0] and 0 < cols <= padded[1]):
        data.fail("shape", f"from 1 x 1 to {padded[0]} x {padded[1]}, which are stored")
    return rows, cols
