"""Matrices in every format have the CPU's bits on a GPU, for few rows and for many."""

import numpy as np
import pytest

from cutaway.compute import calls
from support.gpu_plans import assert_same, rows_apart, run_both
from support.native_plans import FLOATS, GROUPED_FLOATS, QUANTISED, pack, random_bytes, table

COLUMNS, ROWS = 256, 40
USUAL = (
    "Q4_1", "Q4_K", "Q6_K", "IQ3_S", "NVFP4", "INT4_G64", "AFFINE4_G128", "AFFINE8_G64", "Q1_0",
    "F16", "FP8_G32", "NF4",
)  # fmt: skip
"""Each way of scales, minima, codes that are looked up, and floats."""


ENDED = ("Q4_1", "F16")
"""Products of integers, and of floats: usual runs gate and add to theirs, which reads no format."""


def cases():
    for name in (*QUANTISED, *FLOATS, *GROUPED_FLOATS):
        if name in USUAL:
            yield pytest.param(name, name in ENDED, id=name)
        if name not in ENDED:
            yield pytest.param(name, True, marks=pytest.mark.slow, id=f"{name}-ended")


@pytest.mark.parametrize(("format", "is_ended"), [*cases()])
def test_products_and_rows_have_the_cpu_s_bits(device, format, is_ended):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, COLUMNS)).astype(np.float32)
    x[1] *= 1e-3
    x[2] = 0
    first, second = (
        pack(format, random_bytes(rng, format, ROWS, COLUMNS), ROWS, COLUMNS) for _ in range(2)
    )
    bias = rng.standard_normal(ROWS).astype(np.float32)
    is_quantised = format in QUANTISED
    places = calls.Places((0, 0), 3 if is_quantised else -1)
    blocks = calls.Normalise(False, (0, 0), COLUMNS, calls.Norm(), calls.Places(act=3))
    gated = [calls.LinearPart(1, (2, 0)), calls.LinearPart(2, (2, 0))]
    ended = [
        calls.LinearCall(False, places, calls.Finish(gate=("silu_mul",)), gated),
        calls.LinearCall(False, places, calls.Finish(adds=True), [calls.LinearPart(2, (1, 0))]),
        calls.Elementwise(False, "add", (1, 0), (2, 0), 0.0, ROWS, (1, 0)),
    ]
    plan = [
        calls.AddBuffer(COLUMNS, False), calls.AddBuffer(ROWS, False), calls.AddBuffer(ROWS, False),
        calls.AddBuffer(COLUMNS, True), calls.EmbedRows(0, (0, 0), "token"),
        *([blocks] if is_quantised else []),
        calls.LinearCall(False, places, calls.Finish(), [calls.LinearPart(1, (1, 0), bias)]),
        *(ended if is_ended else []), calls.SetOutput((1, 0)),
    ]  # fmt: skip
    matrices = [("F32", table(x)), (format, first), (format, second)]
    assert_same(run_both(device, plan, matrices, [rows_apart(n) for n in (1, 2, 3, 6, 40)]))
    looked_up = [
        calls.AddBuffer(COLUMNS, False), calls.EmbedRows(0, (0, 0), "token"),
        calls.SetOutput((0, 0)),
    ]  # fmt: skip
    assert_same(run_both(device, looked_up, [(format, first)], [rows_apart(ROWS)]))
