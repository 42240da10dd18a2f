"""ggml's own quantisers, from llama-cpp-python where it is installed, and rows to try them on.

``PYTHONPATH=tests python -m support.ggml`` prints tests/data/quantised.json anew.
"""

import ctypes
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from cutaway.files.weights import FORMATS

QUANTISED = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
)  # fmt: skip
DIGESTS = Path(__file__).parents[1] / "data" / "quantised.json"
COLUMNS = 768


def library():
    """Load libggml-base of llama-cpp-python; None if that is not installed."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    libraries = sorted((Path(spec.origin).parent / "lib").glob("libggml-base.*"))
    library = ctypes.CDLL(str(libraries[0]))
    count, place = ctypes.c_int64, ctypes.c_void_p
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, place, place, count, count, count, place]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


def quantise(ggml, numbers, to, importance=None):
    """Quantise rows, (n, columns) float32, to ggml's quant blocks: uint8."""
    numbers = np.ascontiguousarray(numbers, np.float32)
    out = np.zeros(FORMATS[to].nbytes(numbers.size), np.uint8)
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    pointer = None if weights is None else weights.ctypes.data
    ggml.ggml_quantize_chunk(
        FORMATS[to].type_id, numbers.ctypes.data, out.ctypes.data, 0, *numbers.shape, pointer
    )
    return out


def rows():
    """Return name -> numbers, (4, COLUMNS) float32, of several kinds; equal on all machines."""
    random, shape = np.random.RandomState(32), (4, COLUMNS)
    normal = random.standard_normal
    sizes = np.repeat(10.0 ** random.randint(-20, 3, 96), 32).reshape(shape)
    signs = 2 * random.randint(0, 2, shape) - 1
    rows_by_name = {
        "normal": normal(shape),
        "groups of many sizes": normal(shape) * sizes,
        "heavy tails": 1e-3 * normal(shape) ** 9,
        "outliers": normal(shape) * np.where(random.random_sample(shape) < 0.01, 1e3, 0.01),
        "constant": np.full(shape, 0.37),
        "zeros": np.zeros(shape),
        "negative zeros": np.full(shape, -0.0),
        "few": normal(shape) * (random.random_sample(shape) < 0.02),
        "positive": np.abs(normal(shape)) + 0.5,
        "negative": -np.abs(normal(shape)) - 0.5,
        "three values": random.randint(-1, 2, shape) * 0.25,
        "a grid": random.randint(-8, 8, shape) / 16,
        "a ramp": np.linspace(-1, 1, 4 * COLUMNS).reshape(shape),
        "powers of two": 2.0 ** random.randint(-30, 10, shape) * signs,
        "almost nothing": normal(shape) * 1e-15,
        "tiny": normal(shape) * 1e-20,
        "large": normal(shape) * 1e3,
        "halves": normal(shape).astype(np.float16),
    }  # fmt: skip
    return {name: numbers.astype(np.float32) for name, numbers in rows_by_name.items()}


def importances():
    """Return name -> importance of COLUMNS columns; None: no importance."""
    random = np.random.RandomState(33)
    spread = np.exp(2 * random.standard_normal(COLUMNS))
    hashes = {
        "spread": spread, "ones": np.ones(COLUMNS), "zeros": np.zeros(COLUMNS),
        "few": spread * (random.random_sample(COLUMNS) < 0.1),
        "of many sizes": 10.0 ** random.randint(-12, 6, COLUMNS),
    }  # fmt: skip
    return {"none": None} | {name: weights.astype(np.float32) for name, weights in hashes.items()}


def digests(write):
    """Hash all rows that ``write(numbers, format, weights)`` gives, by format and importance."""
    return {
        to: {
            name: hashlib.sha256(b"".join(write(x, to, w).tobytes() for x in rows().values()))
            .hexdigest()[:16]
            for name, w in importances().items()
        }
        for to in QUANTISED
    }  # fmt: skip


if __name__ == "__main__":
    ggml = library()
    print(json.dumps(digests(lambda *arguments: quantise(ggml, *arguments)), indent=1))
