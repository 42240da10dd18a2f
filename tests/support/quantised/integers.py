"""Methods of integers: GPTQ, AWQ, those of compressed-tensors, LLM.int8."""

from typing import Any

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


def gptq(
    bits: int = 4, group: int = 128, *, symmetric: bool = False, act_order: bool = False,
    version: str | None = "gptq", g_idx: bool = True,
) -> Method:  # fmt: skip
    """AutoGPTQ's: words along the inputs; zeros along the outputs, minus 1 in the first version."""
    config: dict[str, Any] = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order,
        "sym": symmetric,
    }  # fmt: skip
    if version is not None:
        config["checkpoint_format"] = version

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        size = cols if group == -1 else group
        groups_of = np.arange(cols) // size
        if act_order:  # the same order for all matrices with the same inputs
            groups_of = orders.setdefault(cols, rng.permutation(groups_of))
        groups = cols // size
        codes = drawn_codes(rng, shape, bits)
        zeros = rng.integers(1, 1 << bits, (rows, groups))
        if symmetric:
            zeros[...] = 1 << (bits - 1)
        scales = drawn_scales(rng, (rows, groups), cols, bits).astype(np.float16)
        numbers = scales.astype(np.float32)
        matrix = numbers[:, groups_of] * (codes - zeros[:, groups_of]).astype(np.float32)
        stored = zeros if version == "gptq_v2" else zeros - 1
        parts = {
            ".qweight": np.ascontiguousarray(packed_words(codes, bits).T),
            ".qzeros": packed_words(stored.T, bits),
            ".scales": np.ascontiguousarray(scales.T),
        }
        if g_idx:
            parts[".g_idx"] = groups_of.astype(np.int32)
        return Quantised(parts, matrix)

    longest = 128 if group == -1 else min(group, 128)
    return Method(config, draw, f"INT{8 if bits == 8 else 4}_G{longest}")


def auto_round(packing: str) -> Method:
    """AutoRound's, which stores no order of columns."""
    if packing.endswith("awq"):
        method = awq()
    else:
        version = "gptq" if packing.endswith("auto_gptq") else "gptq_v2"
        method = gptq(symmetric=True, version=version, g_idx=False)
    config = {
        "quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 128,
        "sym": True, "data_type": "int", "block_name_to_quantize": "model.layers",
        "autoround_version": "0.9.0", "iters": 200, "extra_config": {"lm_head": {"bits": 16}},
    }  # fmt: skip
    return method._replace(config=config)


def auto_round_mixed() -> Method:
    """AutoRound's with bits and groups that differ from matrix to matrix."""
    method = auto_round("auto_round:auto_gptq")

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], orders: dict[int, Array]
    ) -> Quantised:
        bits, group = [(4, 128), (8, 64), (2, 32)][rng.integers(3)]
        return gptq(bits, group, symmetric=True, g_idx=False).draw(rng, shape, orders)

    overrides = {"model.layers.0.self_attn.k_proj": {"bits": 8, "group_size": 64}}
    return method._replace(draw=draw, config={**method.config, "extra_config": overrides})


def awq(group: int = 128) -> Method:
    """AutoAWQ's gemm: words along the outputs, in its order."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def words(fields: Array) -> Array:  # (n, outputs)
        words = np.zeros((len(fields), fields.shape[1] // 8), np.uint32)
        for word in range(words.shape[1]):
            for i, of in enumerate(order):
                words[:, word] |= fields[:, 8 * word + of].astype(np.uint32) << np.uint32(4 * i)
        return words.view(np.int32)

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        size = cols if group == -1 else group
        codes, zeros = drawn_codes(rng, shape, 4), rng.integers(0, 16, (rows, cols // size))
        scales = drawn_scales(rng, zeros.shape, cols, 4).astype(np.float16)
        of = np.arange(cols) // size
        matrix = scales.astype(np.float32)[:, of] * (codes - zeros[:, of]).astype(np.float32)
        return Quantised(
            {".qweight": words(codes.T), ".qzeros": words(zeros.T), ".scales": scales.T.copy()},
            matrix,
        )

    config = {
        "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
        "version": "gemm", "modules_to_not_convert": None,
    }  # fmt: skip
    return Method(config, draw, f"INT4_G{128 if group == -1 else min(group, 128)}")


def make_compressed(
    bits: int = 4, group: int | None = 128, *, symmetric: bool = True, packed: bool = True,
    act_order: bool = False, half: bool = False,
) -> Method:  # fmt: skip
    """compressed-tensors' integers. group None: one scale a row; half: scales in F16, else BF16."""
    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group,
        "strategy": "channel" if group is None else "group",
        "actorder": "group" if act_order else None, "dynamic": False, "observer": "minmax",
    }  # fmt: skip
    name = "pack-quantized" if packed else "int-quantized"
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = {
        "quant_method": "compressed-tensors", "format": name, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": scheme},
    }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        size, offset = group or cols, 1 << (bits - 1)
        of = np.arange(cols) // size
        if act_order:
            of = orders.setdefault(cols, rng.permutation(of))
        q = drawn_codes(rng, shape, bits) - offset
        zeros = np.zeros((rows, cols // size), np.int64)
        if not symmetric:
            zeros = rng.integers(-offset, offset, zeros.shape)
        scales = drawn_scales(rng, zeros.shape, cols, bits)
        scale: Array | Typed = scales.astype(np.float16)
        if not half:
            scale, _ = bf16(scales)
        numbers = bf16(scales)[1] if not half else scales.astype(np.float16).astype(np.float32)
        matrix = numbers[:, of] * (q - zeros[:, of]).astype(np.float32)
        parts: dict[str, Array | Typed] = {".weight_scale": scale}
        if packed:
            parts[".weight_packed"] = packed_words(q + offset, bits)
            parts[".weight_shape"] = np.array(shape, np.int64)
        else:
            parts[".weight"] = q.astype(np.int8)
        if not symmetric:
            as_words = np.ascontiguousarray(packed_words(zeros.T + offset, bits).T)
            parts[".weight_zero_point"] = as_words if packed else zeros.astype(np.int8)
        if act_order:
            parts[".weight_g_idx"] = of.astype(np.int32)
        return Quantised(parts, matrix)

    return Method(config, draw, f"INT{bits}_G{128 if group is None else min(group, 128)}")


def modelopt_int4(group: int = 128, algorithm: str = "W4A16_AWQ") -> Method:
    """ModelOpt's AWQ of 4 bits: signed codes of two outputs in a byte, the first one's low.

    algorithm: W4A8_AWQ has one more number, by which a GPU rounds these weights to FP8
    """

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = drawn_codes(rng, shape, 4) - 8
        scale, scales = bf16(drawn_scales(rng, (rows, cols // group), cols, 4))
        matrix = scales[:, np.arange(cols) // group] * codes.astype(np.float32)
        halves = codes.astype(np.int8).view(np.uint8) & 15
        parts: dict[str, Array | Typed] = {
            ".weight": halves[::2] | halves[1::2] << 4, ".weight_scale": scale,
        }  # fmt: skip
        if algorithm == "W4A8_AWQ":
            parts |= {".weight_scale_2": np.array(np.abs(matrix).max() / np.float32(448))}
            parts |= {".input_scale": np.array(np.float32(0.7))}
        return Quantised(parts, matrix)

    return Method({"quant_method": "modelopt", "quant_algo": algorithm}, draw, f"INT4_G{group}")


def llm_int8() -> Method:
    """bitsandbytes' LLM.int8: a row's scale is SCB / 127."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        q = rng.integers(-127, 128, shape)
        peak = (1.5 / np.sqrt(cols) * rng.uniform(1, 3, rows)).astype(np.float32)
        matrix = (peak / np.float32(127))[:, None] * q.astype(np.float32)
        parts = {
            ".weight": q.astype(np.int8), ".SCB": peak,
            ".weight_format": np.array(0, np.uint8),
        }  # fmt: skip
        return Quantised(parts, matrix)

    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return Method(config, draw, "INT8_G128")
