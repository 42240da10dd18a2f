"""Each decoder against the reference implementation, as bits."""

import gguf
import numpy as np
import pytest

from cutaway.files.weights import FORMATS, FORMATS_BY_ID, dequantize
from random_blocks import BYTE_SCALES, set_scales

IN_GGUF = [format.name for format in FORMATS_BY_ID.values()]
SPECIAL = np.array([0x7C00, 0xFC00, 0x7E00, 0x0000, 0x8000, 0x0001, 0x7BFF], np.uint16)
"""float16 inf, -inf, NaN, 0, -0, the smallest and the largest."""


def random_quant_blocks(format, count, scales):
    """`count` quant blocks of random bytes, with the given float16 patterns in d, m and dmin."""
    random = np.random.default_rng(format.type_id)
    raw = random.integers(0, 256, count * format.quant_block_bytes, np.uint8)
    if format.name not in ("F32", "F16", "BF16", *BYTE_SCALES):
        d, m, dmin = random.choice(scales, (3, count)).view(np.float16)
        set_scales(format.name, raw, d=d, m=m, dmin=dmin)
    return raw


def finite_scales():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    return patterns[np.isfinite(patterns.view(np.float16))]


def oracle(format, raw):
    rows = raw.reshape(-1, format.quant_block_bytes)
    if format.name in BY_HAND:
        return np.float32([BY_HAND[format.name](row) for row in rows]).reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[format.name]).reshape(-1)


def q1_0(raw):
    d = raw[:2].view("<f2").astype(np.float32)
    return np.concatenate([d if raw[2 + i // 8] >> i % 8 & 1 else -d for i in range(128)])


def q2_0(raw):
    d = raw[:2].view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):
        return np.concatenate([d * (int(raw[2 + i // 4] >> i % 4 * 2 & 3) - 1) for i in range(64)])


BY_HAND = {"Q1_0": q1_0, "Q2_0": q2_0}
"""By the definition: gguf-py 0.19 does not decode these."""


@pytest.mark.parametrize("count", [1, 1025, 2500])
@pytest.mark.parametrize("name", IN_GGUF)
def test_random_bytes_decode_to_the_same_bits(name, count):
    format = FORMATS[name]
    raw = random_quant_blocks(format, count, finite_scales())
    ours, theirs = dequantize(format, raw), oracle(format, raw)
    assert ours.dtype == np.float32
    assert ours.shape == (count * format.quant_block_elements,)
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("name", IN_GGUF)
def test_special_scales_decode_to_the_same_bits(name):
    format = FORMATS[name]
    raw = random_quant_blocks(format, 500, SPECIAL)
    assert_same_bits(dequantize(format, raw), oracle(format, raw))


def assert_same_bits(ours, theirs):
    """Equal as uint32, but that the payload and sign of a NaN are the processor's affair."""
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_every_float_pattern_crosses_the_chunks(name):
    format = FORMATS[name]
    patterns = np.append(np.arange(1 << 16, dtype=np.uint16), np.uint16(1))  # an odd tail
    if name == "F32":
        patterns = patterns.astype(np.uint32) << 16 | 0x1234
    raw = patterns.view(np.uint8)
    assert_same_bits(dequantize(format, raw), oracle(format, raw))


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_a_quant_block_by_hand(name):
    """Independent of any library: the definition, one weight at a time."""
    format = FORMATS[name]
    raw = random_quant_blocks(format, 3, finite_scales())
    definition = {"Q4_1": q4_1, "Q6_K": q6_k}[name]
    expected = [definition(b) for b in raw.reshape(3, -1)]
    assert dequantize(format, raw).tolist() == np.float32(expected).reshape(-1).tolist()


def q4_1(raw):
    d, m = np.float32(raw[:4].view("<f2"))
    nibble = [raw[4 + i % 16] >> (0 if i < 16 else 4) & 15 for i in range(32)]
    return [d * np.float32(q) + m for q in nibble]


def q6_k(raw):
    low, high, scales = raw[:128], raw[128:192], raw[192:208].view(np.int8)
    d = np.float32(raw[208:].view("<f2")[0])
    weights = []
    for i in range(256):
        half, k = divmod(i, 128)
        nibble = low[64 * half + k % 64] >> 4 * (k // 64) & 15
        pair = high[32 * half + k % 32] >> 2 * (k // 32) & 3
        q = int(nibble) + 16 * int(pair) - 32
        weights.append(d * np.float32(scales[i // 16]) * np.float32(q))
    return weights


def test_part_of_a_quant_block_is_refused():
    with pytest.raises(ValueError):
        dequantize(FORMATS["Q4_0"], np.zeros(17, np.uint8))


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_decodes_to_nothing(name):
    assert dequantize(FORMATS[name], np.zeros(0, np.uint8)).shape == (0,)
