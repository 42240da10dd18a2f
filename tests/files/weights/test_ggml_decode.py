"""Each decoder against ggml itself, which comes with llama-cpp-python: the same bits."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from cutaway.files.weights import FORMATS, FORMATS_BY_ID, dequantize
from random_blocks import BYTE_SCALES, set_scales

pytestmark = pytest.mark.slow
COUNT = 600  # blocks: every pattern is named, since a block names at least 32


class Traits(ctypes.Structure):
    """`struct ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("elements", ctypes.c_int64), ("interleaved", ctypes.c_int64),
        ("bytes", ctypes.c_size_t), ("quantised", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float", ctypes.c_void_p),
    )  # fmt: skip


@pytest.fixture(scope="module")
def traits():
    """By ggml type id."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python: ggml is in it")
    path = min(
        (Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base.*")
    )  # the others link to it
    library = ctypes.CDLL(str(path))
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return lambda type_id: library.ggml_get_type_traits(type_id).contents


@pytest.mark.parametrize("name", [f.name for f in FORMATS_BY_ID.values() if f.name != "F32"])
def test_random_blocks_decode_to_the_bits_of_ggml(name, traits):
    format = FORMATS[name]
    theirs = traits(format.type_id)
    assert (theirs.elements, theirs.bytes) == (
        format.quant_block_elements,
        format.quant_block_bytes,
    )
    rng = np.random.default_rng(format.type_id)
    raw = rng.integers(0, 256, COUNT * format.quant_block_bytes, np.uint8)
    if name not in ("F16", "BF16", *BYTE_SCALES):
        halves = rng.integers(0, 0x7C00, (3, COUNT)) | rng.integers(0, 2, (3, COUNT)) << 15
        d, m, dmin = halves.astype(np.uint16).view(np.float16)
        set_scales(name, raw, d=d, m=m, dmin=dmin)
    expected = np.empty(COUNT * format.quant_block_elements, np.float32)
    theirs.to_float(raw.ctypes.data, expected.ctypes.data, expected.size)
    ours, nan = dequantize(format, raw), np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), expected[~nan].view(np.uint32))
