"""MLX's affine integers, and torchao's tensors as transformers flattens them."""

import json

import numpy as np

from support.quantised.method import (
    Array,
    Method,
    Quantised,
    Typed,
    bf16,
    drawn_codes,
    drawn_scales,
    packed_words,
)


def _store(numbers: Array, dtype: str) -> tuple[Array | Typed, Array]:
    """Return floats as a file of this dtype has them, and as float32."""
    if dtype == "BF16":
        return bf16(numbers)
    rounded = numbers.astype({"F16": np.float16, "F32": np.float32}[dtype])
    return rounded, rounded.astype(np.float32)


def mlx(bits: int = 4, group: int = 64, dtype: str = "BF16") -> Method:
    """mlx-lm's: unsigned words along the inputs, a float of each group to multiply, one to add."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = drawn_codes(rng, shape, bits)
        steps = drawn_scales(rng, (rows, cols // group), cols, bits)
        scale, scales = _store(steps, dtype)
        bias, biases = _store(-steps * 2 ** (bits - 1) * rng.uniform(0.9, 1.1), dtype)
        groups = np.arange(cols) // group
        matrix = scales[:, groups] * codes.astype(np.float32) + biases[:, groups]
        words = packed_words(codes, bits).view(np.uint32)
        return Quantised({".weight": words, ".scales": scale, ".biases": bias}, matrix)

    format = "Q5_1" if bits == 5 else "Q4_1" if bits < 5 else ""
    if dtype == "F32" or not format:
        format = f"AFFINE8_G{group}"
    config = {"group_size": group, "bits": bits, "mode": "affine"}
    return Method(config, draw, format, key="quantization")


def torchao_bytes(bits: int = 8, group: int | None = None, *, zeros: bool = False) -> Method:
    """torchao's with a byte a code: Int8Tensor for whole rows without zeros, else Intx…."""
    is_int8 = group is None and not zeros
    kind = "Int8Tensor" if is_int8 else "IntxUnpackedToInt8Tensor"

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        size, middle = group or cols, 1 << (bits - 1)
        codes = drawn_codes(rng, shape, bits) - middle
        scale, scales = bf16(drawn_scales(rng, (rows, cols // size), cols, bits))
        zero_codes = np.zeros(scales.shape, np.int64)
        if zeros:
            zero_codes = rng.integers(-middle, middle, scales.shape)
        groups = np.arange(cols) // size
        matrix = scales[:, groups] * (codes - zero_codes[:, groups]).astype(np.float32)
        data: dict[str, object] = {"block_size": [1, size]}
        if not is_int8:
            data["target_dtype"] = {"_type": "torch.dtype", "_data": f"int{bits}"}
        parts: dict[str, Array | Typed] = {
            "._weight_qdata": codes.astype(np.int8),
            "._weight_scale": scale,
        }
        if not is_int8:
            parts["._weight_zero_point"] = zero_codes.astype(np.int8)
        return Quantised(parts, matrix, json.dumps({"_type": kind, "_data": data}))

    format = f"INT{8 if bits == 8 else 4}_G{min(group or 128, 128)}"
    return Method({"quant_method": "torchao"}, draw, format)


def torchao_tiles(group: int = 64) -> Method:
    """torchao's Int4TilePackedTo4dTensor: what each thread of a tile of a GPU reads, in a word."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        high, wide = -(-rows // 8) * 8, -(-cols // 1024) * 1024
        codes = np.zeros((high, wide), np.int64)
        codes[:rows, :cols] = drawn_codes(rng, shape, 4)
        steps = drawn_scales(rng, (wide // group, high), cols, 4)
        stored, numbers = bf16(np.stack([steps, steps * rng.uniform(-1, 1)], axis=-1))
        groups = np.arange(cols) // group
        scales, zeros = numbers[groups, :rows, 0].T, numbers[groups, :rows, 1].T
        matrix = scales * (codes[:rows, :cols] - 8).astype(np.float32) + zeros
        words = np.zeros((high // 8, wide // 128, 32, 4), np.int64)
        for thread in range(32):
            for word in range(4):
                for i in range(4):  # the i-th pair of neighbours that the thread reads
                    first = 32 * word + 16 * (i // 2) + 8 * (i % 2) + 2 * (thread % 4)
                    of_thread = codes[thread // 4 :: 8]
                    even, odd = of_thread[:, first::128], of_thread[:, first + 1 :: 128]
                    words[:, :, thread, word] |= even << 4 * i | odd << 4 * (i + 4)
        data = {"block_size": [1, group], "shape": [rows, cols]}
        parts: dict[str, Array | Typed] = {
            "._weight_qdata": words.astype(np.uint32).view(np.int32),
            "._weight_scale_and_zero": stored,
        }
        settings = {"_type": "Int4TilePackedTo4dTensor", "_data": data}
        return Quantised(parts, matrix, json.dumps(settings))

    return Method({"quant_method": "torchao"}, draw, f"AFFINE4_G{min(group, 128)}")


def torchao_words(group: int = 64) -> Method:
    """torchao's Int4PlainInt32Tensor: eight codes in a word, scales and zeros along the outputs."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = drawn_codes(rng, shape, 4)
        scale, scales = bf16(drawn_scales(rng, (cols // group, rows), cols, 4))
        zeros = rng.integers(0, 16, (cols // group, rows))
        groups = np.arange(cols) // group
        matrix = scales[groups].T * (codes - zeros[groups].T).astype(np.float32)
        parts: dict[str, Array | Typed] = {
            "._weight_qdata": packed_words(codes, 4),
            "._weight_scale": scale,
            "._weight_zero_point": zeros.astype(np.int8),
        }
        settings = {"_type": "Int4PlainInt32Tensor", "_data": {"block_size": [1, group]}}
        return Quantised(parts, matrix, json.dumps(settings))

    return Method({"quant_method": "torchao"}, draw, f"INT4_G{group}")


def torchao_int4(group: int = 128) -> Method:
    """torchao's Int4Tensor: signed codes in pairs, scales and sums along the outputs."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = drawn_codes(rng, shape, 4) - 8
        steps = drawn_scales(rng, (rows, cols // group), cols, 4)
        scale, scales = bf16(np.ascontiguousarray(steps.T))
        zero, zeros = bf16(np.ascontiguousarray(steps.T * rng.uniform(-1, 1)))
        groups = np.arange(cols) // group
        matrix = scales.T[:, groups] * codes.astype(np.float32) + zeros.T[:, groups]
        halves = codes.astype(np.int8).view(np.uint8) & 15
        parts: dict[str, Array | Typed] = {
            "._weight_qdata": (halves[:, ::2] | halves[:, 1::2] << 4).view(np.int8),
            "._weight_scale": scale, "._weight_zero_point": zero,
        }  # fmt: skip
        settings = {"_type": "Int4Tensor", "_data": {"block_size": [1, group]}}
        return Quantised(parts, matrix, json.dumps(settings))

    return Method({"quant_method": "torchao"}, draw, f"AFFINE4_G{min(group, 128)}")
