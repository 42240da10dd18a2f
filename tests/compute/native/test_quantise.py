"""The native quantisers give the bytes of ggml, of gguf-py, and of Q6_K's definition."""

import json
import math

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cutaway.base import _native
from cutaway.files.weights import FORMATS, dequantize
from support.examples import few_or_many
from support.ggml import COLUMNS, DIGESTS, QUANTISED, digests, importances, library, rows
from support.ggml import quantise as by_ggml
from support.quantise_by_hand import q6_k

BY_GGUF = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
BLOCK = 256  # weights: whole quant blocks of every format
MODERATE = st.floats(-8, 8, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)


def quantise(numbers, to, threads=1, source="F32", importance=None):
    """(bytes, the first number that could not be written or -1)."""
    raw = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    out = np.full(FORMATS[to].nbytes(numbers.size), 0xAA, np.uint8)
    return out, _native.quantise(_native.Pool(threads), source, raw, to, out, importance)


def by_gguf(numbers, to):
    return gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[to]).reshape(-1).view(np.uint8)


def oracle(numbers, to):
    return q6_k(numbers) if to == "Q6_K" else by_gguf(numbers, to)


def normal(count, seed=0):
    rng = np.random.default_rng(seed)
    scales = np.repeat(rng.lognormal(-4, 2, count // 32), 32)
    return (rng.normal(size=count) * scales).astype(np.float32)


def written(numbers, to, importance):
    out, bad = quantise(numbers, to, importance=importance)
    assert bad == -1
    return out


def test_the_bytes_are_those_of_ggml():
    """Which support/ggml.py noted, of llama-cpp-python 0.3.36."""
    assert digests(written) == json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("to", QUANTISED)
def test_the_bytes_are_those_of_ggml_as_it_is_here(to):
    if (ggml := library()) is None:
        pytest.skip("llama-cpp-python is not installed")
    for name, numbers in rows().items():
        for kind, weights in importances().items():
            same = written(numbers, to, weights) == by_ggml(ggml, numbers, to, weights)
            assert same.all(), (name, kind)


@pytest.mark.parametrize("to", QUANTISED)
def test_importance_takes_whole_rows_however_long_they_are(to):
    """Formats of 32 ask for the mean square of the row, of which a thread takes pieces."""
    long = np.tile(normal(COLUMNS), (3, 12))  # 9216 columns
    weights = np.tile(importances()["spread"], 12)
    whole = quantise(long, to, threads=3, importance=weights)[0]
    one = [quantise(row, to, importance=weights)[0] for row in long]
    assert np.array_equal(whole, np.concatenate(one))
    halves = quantise(long.astype(np.float16), to, 2, "F16", weights)[0]
    assert np.array_equal(
        halves, quantise(long.astype(np.float16).astype(np.float32), to, importance=weights)[0]
    )


@pytest.mark.parametrize("to", QUANTISED)
def test_importance_lessens_the_error_that_it_weighs(to):
    numbers, weights = normal(64 * COLUMNS).reshape(64, COLUMNS), importances()["spread"]

    def error(importance):
        back = dequantize(FORMATS[to], quantise(numbers, to, importance=importance)[0])
        return float((weights * (back.reshape(numbers.shape) - numbers) ** 2).sum())

    unused = to in ("Q8_0", "MXFP4")  # these have no use for it
    assert error(weights) <= error(None) * (1 if unused else 0.95)


def test_importance_that_does_not_fit_is_refused():
    for columns in (0, 40, 512):
        with pytest.raises(ValueError, match="importance"):
            quantise(normal(COLUMNS), "Q4_K", importance=np.ones(columns, np.float32))


@pytest.mark.parametrize("to", [*BY_GGUF, "Q6_K", "F16", "BF16", "F32"])
def test_the_bytes_are_those_of_the_definition(to):
    numbers = normal(64 * BLOCK if to == "Q6_K" else 2000 * BLOCK)
    out, bad = quantise(numbers, to, threads=2)
    assert bad == -1
    assert np.array_equal(out, oracle(numbers, to))


@pytest.mark.parametrize("to", [*BY_GGUF, "Q6_K"])
@few_or_many(12, 200, arrays(np.float32, BLOCK, elements=MODERATE, fill=st.nothing()))
def test_so_are_those_of_odd_numbers(to, numbers):
    numbers += 0.0  # gguf-py tells -0 from 0 where all of a quant block is 0
    assert np.array_equal(quantise(numbers, to)[0], oracle(numbers, to))


@pytest.mark.parametrize("to", QUANTISED)
def test_zeros_stay_zeros(to):
    for zero in (0.0, -0.0):
        out, bad = quantise(np.full(BLOCK, zero, np.float32), to)
        assert bad == -1 and not dequantize(FORMATS[to], out).any()


@pytest.mark.parametrize("to", QUANTISED)
def test_every_half_is_read_as_it_is(to):
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))]
    halves = np.random.default_rng(0).permutation(halves)[: len(halves) // BLOCK * BLOCK]
    floats = halves.view(np.float16).astype(np.float32)
    assert np.array_equal(quantise(halves, to, source="F16")[0], quantise(floats, to)[0])
    brains = (floats.view(np.uint32) >> 16).astype(np.uint16)
    floats = (brains.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(quantise(brains, to, source="BF16")[0], quantise(floats, to)[0])


@pytest.mark.parametrize("to", ["F16", "BF16"])
def test_ties_go_to_even_and_subnormals_are_numbers(to):
    top = np.arange(0, 1 << 15, dtype=np.uint32) << 16
    numbers = (top[:, None] | np.array([0, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xF000])).reshape(-1)
    numbers = np.concatenate([numbers, numbers | 1 << 31]).astype(np.uint32).view(np.float32)
    most = 65519 if to == "F16" else 3.3895e38  # what rounds to infinity is refused
    numbers = numbers[np.abs(numbers) < most]
    out, bad = quantise(numbers, to)
    assert bad == -1
    expected = numbers.astype(np.float16).view(np.uint8) if to == "F16" else by_gguf(numbers, to)
    assert np.array_equal(out, expected)


def test_the_exponent_of_mxfp4_is_of_the_logarithm_as_a_float():
    """Numbers next below 2^k have a logarithm that rounds up to k, and the larger exponent."""
    exponents, gaps = np.meshgrid(np.arange(-124, 127), np.arange(100))
    most = np.ldexp(1 - gaps.reshape(-1) * 2.0**-24, exponents.reshape(-1)).astype(np.float32)
    numbers = np.zeros((len(most), 32), np.float32)
    numbers[:, 7] = most
    made = quantise(numbers, "MXFP4")[0].view(FORMATS["MXFP4"].layout)
    logarithms = np.array([np.float32(math.log2(x)) for x in most])
    assert np.array_equal(made["e"], np.floor(logarithms) + 125)


@pytest.mark.parametrize("to", QUANTISED)
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_no_byte(to, threads):
    numbers = normal(200 * BLOCK, seed=1)
    assert np.array_equal(quantise(numbers, to, threads)[0], quantise(numbers, to)[0])


@pytest.mark.parametrize("to", [*QUANTISED, "F16", "BF16", "F32"])
@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_where_it_is_first(to, wrong):
    numbers = normal(100 * BLOCK)
    numbers[[70 * BLOCK + 40, 99 * BLOCK]] = wrong
    first = 70 * BLOCK + 40
    group = FORMATS[to].quant_block_elements
    for threads in (1, 3):
        assert quantise(numbers, to, threads)[1] == first // group * group


@pytest.mark.parametrize("to, large", [
    ("F16", 7e4), ("BF16", 3.4e38), ("Q8_0", 1e7), ("Q8_0", 3e38), ("Q4_0", 6e5), ("Q4_1", 1e6),
    ("Q4_1", -7e4), ("Q4_1", -3e38), ("Q6_K", 3e8), ("Q6_K", 3e38), ("Q5_0", 2e6), ("Q5_1", -7e4),
    ("Q2_K", 4e6), ("Q2_K", 3e38), ("Q3_K", 1e8), ("Q3_K", 3e38), ("Q4_K", -1e8), ("Q4_K", 1e20),
    ("IQ4_NL", 1e7), ("IQ4_XS", 3e8), ("IQ4_XS", 1e20),
    ("Q5_K", 3e8), ("Q5_K", 3e38),
])  # fmt: skip
def test_so_is_what_the_format_cannot_hold(to, large):
    numbers = normal(4 * BLOCK)
    numbers[BLOCK + 1] = large
    numbers[BLOCK + 2] = -large / 2
    group = FORMATS[to].quant_block_elements
    assert quantise(numbers, to)[1] == (BLOCK + 1) // group * group
    if to in QUANTISED:
        weights = np.ones(BLOCK, np.float32)
        assert quantise(numbers, to, importance=weights)[1] // BLOCK == 1


@pytest.mark.parametrize("to", QUANTISED)
@given(scale=st.integers(-149, 18), seed=st.integers(0, 99))
def test_numbers_of_any_size_come_back_near(to, scale, seed):
    numbers = np.random.default_rng(seed).normal(size=BLOCK).clip(-3, 3)
    numbers = (numbers * 2.0 ** min(scale, 13)).astype(np.float32)
    out, bad = quantise(numbers, to)
    back = dequantize(FORMATS[to], out)
    step, least = {
        "Q8_0": (1 / 127, 127), "Q4_0": (1 / 8, 8), "Q4_1": (2 / 15, 15), "Q5_0": (1 / 16, 16),
        "Q5_1": (2 / 31, 31), "Q2_K": (1, 15 * 4), "Q3_K": (1 / 2, 32 * 4),
        "IQ4_NL": (1 / 6, 127), "IQ4_XS": (1 / 5, 127 * 32), "MXFP4": (1 / 3, 1),
        "Q4_K": (1 / 4, 63 * 16), "Q5_K": (1 / 8, 63 * 32), "Q6_K": (1 / 20, 32 * 128),
    }[to]  # fmt: skip
    least *= 2.0**-24
    assert bad == -1
    assert np.abs(back - numbers).max() <= np.abs(numbers).max() * step + least


def test_other_formats_and_sizes_are_refused():
    pool, raw, out = _native.Pool(1), np.zeros(128, np.uint8), np.zeros(34, np.uint8)
    assert _native.quantise(pool, "F32", raw, "Q8_0", out) == -1
    for source, to, bytes_in, bytes_out in [
        ("Q8_0", "Q8_0", 34, 34), ("F32", "IQ3_S", 1024, 110), ("F32", "Q8_0", 128, 33),
        ("F32", "Q8_0", 124, 34), ("F16", "Q8_0", 63, 34), ("F32", "Q6_K", 128, 210),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=r"format|quantised|numbers"):
            _native.quantise(pool, source, raw[:bytes_in], to, np.zeros(bytes_out, np.uint8))
