"""Methods of small floats: FP8, NF4, MXFP4, MXFP8, NVFP4."""

import json
from typing import Any

import numpy as np

from support.quantised.method import (
    Array,
    Method,
    Quantised,
    Typed,
    bf16,
    drawn_codes,
    packed_words,
)


def _e4m3(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Typed, Array]:
    """Return bytes that are no NaN, and the number of each by definition."""
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[codes & 127 == 127] = 0
    return Typed("F8_E4M3", codes), _number(codes)


def _number(codes: Array) -> Array:
    """Return the number of each byte of e4m3."""
    exponent, fraction = (codes >> 3 & 15).astype(int), (codes & 7).astype(int)
    magnitude = np.where(
        exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7)
    )
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


def fp8(block: int | None = 128, *, scale: str = "") -> Method:
    """FP8 with a scale per square block (DeepSeek, Qwen); block None: per "tensor" or "channel"."""
    config: dict[str, Any]
    if block is not None:
        config = {
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
            "weight_block_size": [block, block],
        }  # fmt: skip
    else:
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": scale}
        scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        config = {
            "quant_method": "compressed-tensors", "format": "float-quantized",
            "ignore": ["lm_head"], "config_groups": {"group_0": scheme},
        }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        stored, numbers = _e4m3(rng, shape)
        size = 1.0 / np.sqrt(cols) / 100
        if block is not None:
            sides = (-(-rows // block), -(-cols // block))
            scales = (size * rng.uniform(0.5, 1.5, sides)).astype(np.float32)
            scale_of_each = scales[np.arange(rows)[:, None] // block, np.arange(cols) // block]
            return Quantised(
                {".weight": stored, ".weight_scale_inv": scales}, numbers * scale_of_each
            )
        count = (rows, 1) if scale == "channel" else (1,)
        as_stored, scales = bf16(size * rng.uniform(0.5, 1.5, count))
        parts: dict[str, Array | Typed] = {".weight": stored, ".weight_scale": as_stored}
        parts[".input_scale"] = np.ones(1, np.float32)
        return Quantised(parts, numbers * scales.reshape(-1, 1))

    return Method(config, draw, f"FP8_G{32 if block == 96 else 128}", floats=True)


NF4_TABLE = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0], np.float32,
)  # fmt: skip


def nf4(*, double: bool = True, block: int = 64) -> Method:
    """bitsandbytes' NF4: the first of two codes in the high half; a scale per 256 scales."""
    config = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": double, "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_compute_dtype": "float32",
    }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = drawn_codes(rng, shape, 4).astype(np.uint8).reshape(-1)
        blocks = rows * cols // block
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": [rows, cols]}
        parts: dict[str, Array | Typed] = {
            ".weight": (codes[::2] << 4 | codes[1::2])[:, None],
            ".weight.quant_map": NF4_TABLE,
        }
        if double:
            table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            indexes = rng.integers(0, 256, blocks).astype(np.uint8)
            factors = (0.02 * rng.uniform(0.5, 1, -(-blocks // 256))).astype(np.float32)
            offset = 0.1
            states = [
                table[i] * factors[b // 256] + np.float32(offset) for b, i in enumerate(indexes)
            ]
            absmax = np.array(states, np.float32)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            parts[".weight.absmax"] = indexes
            parts[".weight.nested_absmax"], parts[".weight.nested_quant_map"] = factors, table
        else:
            absmax = (0.1 * rng.uniform(0.5, 1.5, blocks)).astype(np.float32)
            parts[".weight.absmax"] = absmax
        document = np.frombuffer(json.dumps(state).encode(), np.uint8)
        parts[".weight.quant_state.bitsandbytes__nf4"] = document
        matrix = NF4_TABLE[codes] * np.repeat(absmax, block)
        return Quantised(parts, matrix.reshape(shape))

    return Method(config, draw, "NF4", floats=True)


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e2m1(codes: Array) -> Array:
    """Return the number of each code of 4 bits."""
    return np.array([*E2M1, *(-x for x in E2M1)], np.float32)[codes]


def _drawn_e2m1(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Draw codes of 4 bits; return them as bytes, the first of two in the low half, and numbers."""
    codes = drawn_codes(rng, shape, 4).astype(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << np.uint8(4), _e2m1(codes)


def mxfp4() -> Method:
    """compressed-tensors' MXFP4: the first of two codes in the low half; exponents + 127."""
    weights = {
        "num_bits": 4, "type": "float", "symmetric": True, "group_size": 32, "strategy": "group",
        "scale_dtype": "torch.uint8",
    }  # fmt: skip
    config = {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        packed, numbers = _drawn_e2m1(rng, shape)
        exponents = rng.integers(119, 122, (rows, cols // 32)).astype(np.uint8)
        powers = np.ldexp(np.float32(1), exponents.astype(int) - 127)
        parts = {".weight_packed": packed, ".weight_scale": exponents}
        return Quantised(parts, numbers * np.repeat(powers, 32, axis=1))

    return Method(config, draw, "MXFP4")


def nvfp4(library: str) -> Method:
    """NVFP4 of "modelopt", or of "compressed-tensors", which stores the factor's reciprocal."""
    weights = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    if library == "modelopt":
        names = ".weight", ".weight_scale_2", ".input_scale"
        config: dict[str, Any] = {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        }  # fmt: skip
    else:
        names = ".weight_packed", ".weight_global_scale", ".input_global_scale"
        weights |= {"symmetric": True, "strategy": "tensor_group"}
        config = {
            "quant_method": library, "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        packed, numbers = _drawn_e2m1(rng, shape)
        stored, signed = _e4m3(rng, (rows, cols // 16))
        scales = Typed(stored.dtype, stored.data & 127)
        factor = np.float32(rng.uniform(0.5, 1.5) / np.sqrt(cols) / 400)
        as_stored = factor if library == "modelopt" else np.float32(1) / factor
        if library != "modelopt":
            factor = np.float32(1) / as_stored
        matrix = numbers * np.repeat(np.abs(signed), 16, axis=1) * factor
        sides = () if library == "modelopt" else (1,)
        parts: dict[str, Array | Typed] = {
            names[0]: packed, ".weight_scale": scales,
            names[1]: np.full(sides, as_stored, np.float32),
            names[2]: np.full(sides, 0.7, np.float32),
        }  # fmt: skip
        return Quantised(parts, matrix)

    return Method(config, draw, "NVFP4")


def inkling_nvfp4(rng: np.random.Generator, shape: tuple[int, int, int]) -> Quantised:
    """NVFP4 of Inkling 2's experts, (experts, out, in); each expert's factor is a quotient."""
    experts, rows, cols = shape
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    scales = rng.integers(1, 120, (experts, rows, cols // 16)).astype(np.uint8)
    denominator = np.float32(6 * 448)
    largest = (rng.uniform(0.5, 1.5, experts) / np.sqrt(cols) * 20).astype(np.float32)
    matrix = _e2m1(codes) * np.repeat(_number(scales), 16, axis=-1)
    matrix *= (largest / denominator)[:, None, None]
    parts: dict[str, Array | Typed] = {
        "": codes[..., ::2] | codes[..., 1::2] << 4, "_scale": Typed("F8_E4M3", scales),
        "_amax": largest, "_outer_scale_denominator": np.array(denominator),
    }  # fmt: skip
    return Quantised(parts, matrix)


def inkling_mxfp8(rng: np.random.Generator, shape: tuple[int, int, int]) -> Quantised:
    """MXFP8 of Inkling 2's experts: powers of two as bytes, and no factors."""
    experts, rows, cols = shape
    stored, numbers = _e4m3(rng, shape)
    powers = rng.integers(115, 118, (experts, rows, cols // 32)).astype(np.uint8)
    scales = np.ldexp(np.float32(1), powers.astype(int) - 127)
    return Quantised({"": stored, "_scale": powers}, numbers * np.repeat(scales, 32, axis=-1))


def mlx_floats(mode: str) -> Method:
    """mlx-lm's mxfp4, mxfp8 and nvfp4: unsigned words along the inputs, scales as bytes."""
    bits, group = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}[mode]

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = drawn_codes(rng, shape, 4).astype(np.uint8)
        numbers = _e2m1(codes)
        if bits == 8:
            stored, numbers = _e4m3(rng, shape)
            codes = stored.data
        least = 115 if bits == 8 else 119
        scales = rng.integers(least, least + 3, (rows, cols // group)).astype(np.uint8)
        factors = np.ldexp(np.float32(1), scales.astype(int) - 127)
        if mode == "nvfp4":
            scales = rng.integers(1, 24, (rows, cols // group)).astype(np.uint8)
            factors = _number(scales)
        matrix = numbers * np.repeat(factors, group, axis=1)
        words = packed_words(codes, bits).view(np.uint32)
        return Quantised({".weight": words, ".scales": scales}, matrix)

    format = {"mxfp4": "MXFP4", "mxfp8": "FP8_G32", "nvfp4": "NVFP4"}[mode]
    config = {"group_size": group, "bits": bits, "mode": mode}
    return Method(config, draw, format, floats=bits == 8, key="quantization")


def _swizzle(scales: Array) -> Array:
    """Return scales as an NVIDIA GPU reads them: each number goes to its place of 512 in a tile.

    See "block scaling factors layout" of cuBLAS, whose formula of the place this is.
    """
    rows, groups = scales.shape
    down, along = -(-rows // 128), -(-groups // 4)
    stored = np.zeros(down * along * 512, scales.dtype)
    outer, inner = np.indices(scales.shape)
    tile = outer // 128 * along + inner // 4
    stored[tile * 512 + outer % 32 * 16 + outer % 128 // 32 * 4 + inner % 4] = scales
    return stored.reshape(32 * down, 16 * along)


def torchao_blocks(mode: str, *, is_swizzled: bool = False) -> Method:
    """torchao's MXTensor of "mxfp4" or "mxfp8", or its NVFP4Tensor: "nvfp4"."""
    element, group, kind = {
        "mxfp4": ("float4_e2m1fn_x2", 32, "MXTensor"), "mxfp8": ("float8_e4m3fn", 32, "MXTensor"),
        "nvfp4": ("float4_e2m1fn_x2", 16, "NVFP4Tensor"),
    }[mode]  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        stored: Array | Typed
        stored, numbers = _drawn_e2m1(rng, shape)
        sides = rows, cols // group
        if mode == "mxfp8":
            stored, numbers = _e4m3(rng, shape)
        least = 115 if mode == "mxfp8" else 119
        powers = rng.integers(least, least + 3, sides).astype(np.uint8)
        scales, factors = (
            Typed("F8_E8M0", powers),
            np.ldexp(np.float32(1), powers.astype(int) - 127),
        )
        parts: dict[str, Array | Typed] = {}
        factor = np.float32(1)
        if mode == "nvfp4":
            scales, factors = _e4m3(rng, sides)
            scales, factors = Typed(scales.dtype, scales.data & 127), np.abs(factors)
            factor = np.float32(1 / np.sqrt(cols) / 400)
            parts["._weight_per_tensor_scale"] = np.array(factor)
            parts["._weight_act_per_tensor_scale"] = np.array(np.float32(0.25))
        data = {"elem_dtype": {"_type": "torch.dtype", "_data": element}, "block_size": group,
                "is_swizzled_scales": is_swizzled}  # fmt: skip
        if is_swizzled:
            scales = Typed(scales.dtype, _swizzle(scales.data))
        parts |= {"._weight_qdata": stored, "._weight_scale": scales}
        matrix = numbers * np.repeat(factors, group, axis=1) * factor
        return Quantised(parts, matrix, json.dumps({"_type": kind, "_data": data}))

    format = {"mxfp4": "MXFP4", "mxfp8": "FP8_G32", "nvfp4": "NVFP4"}[mode]
    return Method({"quant_method": "torchao"}, draw, format, floats=mode == "mxfp8")


def modelopt_blocks(algorithm: str) -> Method:
    """ModelOpt's floats with powers of two as bytes: e4m3 of MXFP8, e2m1 of W4A8_MXFP4_FP8."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        stored: Array | Typed
        stored, numbers = _drawn_e2m1(rng, shape)
        least = 119
        if algorithm == "MXFP8":
            (stored, numbers), least = _e4m3(rng, shape), 115
        powers = rng.integers(least, least + 3, (rows, cols // 32)).astype(np.uint8)
        factors = np.ldexp(np.float32(1), powers.astype(int) - 127)
        parts = {".weight": stored, ".weight_scale": powers}
        return Quantised(parts, numbers * np.repeat(factors, 32, axis=1))

    is_float8 = algorithm == "MXFP8"
    format = "FP8_G32" if is_float8 else "MXFP4"
    config = {"quant_method": "modelopt", "quant_algo": algorithm}
    return Method(config, draw, format, floats=is_float8)


def torchao_float8(block: tuple[int, int] | None = None) -> Method:
    """torchao's Float8Tensor: a scale for each output, or for each block of outputs and inputs."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        high, wide = block or (1, cols)
        stored, numbers = _e4m3(rng, shape)
        scales = rng.uniform(0.5, 1.5, (rows // high, cols // wide)) / np.sqrt(cols) / 100
        scales = scales.astype(np.float32)
        matrix = numbers * np.repeat(np.repeat(scales, high, axis=0), wide, axis=1)
        settings = {"_type": "Float8Tensor", "_data": {"block_size": [high, wide]}}
        parts = {"._weight_qdata": stored, "._weight_scale": scales}
        return Quantised(parts, matrix, json.dumps(settings))

    format = f"FP8_G{min(block[1] if block else 128, 128)}"
    return Method({"quant_method": "torchao"}, draw, format, floats=True)
